"""Algorithms by name: the plan that each makes, what it puts on the wire, which one `auto` takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from testbed.comm.collectives import definitions
from testbed.comm.collectives.algorithms import all_gather, all_reduce, all_to_all, all_to_all_v, trees
from testbed.comm.collectives.plan import Plan
from testbed.comm.collectives.registry import (
    AUTO,
    Algorithm,
    Collective,
    PlanRequest,
    algorithm_of,
    collective_of,
)

Traffic = dict[tuple[int, int], int]

OWN = (definitions, all_reduce, all_gather, trees, all_to_all, all_to_all_v)
"""Modules that register what the testbed has itself: known with them, with no look at what is installed."""


def plan_of(collective: str | Collective, algorithm: str | Algorithm, request: PlanRequest) -> Plan:
    """One rank's plan. PluginError names the algorithms that there are."""
    return algorithm_of(collective, algorithm)(request)


def pieces_for(collective: str | Collective, algorithm: str | Algorithm, size_bytes: int, ranks: int) -> int:
    """In how many channels or chunks an array goes; 1 for algorithms that have neither. Sizes: see `traffic`."""
    return algorithm_of(collective, algorithm).pieces(size_bytes, ranks)


def automatic(collective: str | Collective, size_bytes: int, groups: Sequence[int]) -> str:
    """What `algorithm="auto"` takes where no tuning table says otherwise; sizes are those of `traffic`, in bytes.

    Small arrays go with the fewest steps: halving_doubling, far_first (near_first backwards), binomial trees. Large
    ones go by rings, which keep every link busy with neighbours; where there are several buildings, hierarchically, for
    then the least possible crosses. All-to-all crosses hierarchically while blocks are small, directly after that.
    """
    return collective_of(collective).automatic(size_bytes, groups)


def traffic(
    collective: str | Collective,
    algorithm: str | Algorithm,
    numel: int,
    itemsize: int,
    groups: Sequence[int],
    root: int = 0,
) -> Traffic:
    """Payload bytes per ordered pair of ranks (source, target), without pairs that send nothing.

    numel: elements of the array in all_reduce, broadcast, reduce; of one rank's block in all_gather (its input),
    reduce_scatter (its output), gather, scatter and all_to_all (what it has for one rank); of a block in any other.
    groups: the building of each rank. "auto" is what `automatic` takes. PluginError for an algorithm that there is not.
    """
    size, known = len(groups), collective_of(collective)
    if algorithm == AUTO:
        algorithm = known.automatic(numel * itemsize, groups)
    made = algorithm_of(known, algorithm)
    pairs: Traffic = {}
    bounds: list[int] = []
    for rank in range(size):
        plan = made(PlanRequest(rank, tuple(groups), root))
        bounds = bounds or plan.bounds(numel * known.blocks(size))
        for peer, count in plan.sent(bounds).items():
            pairs[rank, peer] = count * itemsize
    return pairs


def between_groups(pairs: Mapping[tuple[int, int], float], groups: Sequence[int]) -> int:
    """The part of some traffic that goes between different groups, in bytes."""
    return round(sum(count for (source, target), count in pairs.items() if groups[source] != groups[target]))


def wan_bytes(
    collective: str | Collective, algorithm: str | Algorithm, numel: int, itemsize: int, groups: Sequence[int]
) -> int:
    """Of a collective's traffic (see `traffic`), all bytes between different buildings, all directions."""
    return between_groups(traffic(collective, algorithm, numel, itemsize, groups), groups)

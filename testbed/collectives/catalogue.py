"""All algorithms by collective and name: the plan that each makes, what it puts on the wire, which one `auto` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from testbed.collectives import exchanging, gathering, reducing, trees
from testbed.collectives.plan import Plan, in_lanes, reverse

Traffic = dict[tuple[int, int], int]

AUTO = "auto"

# Parts of a message are reduced, or passed on, while others travel: up to so many, of at least so many bytes. Measured
# with benchmarks/peers: a ring needs few parts, for its links are busy anyway; a hierarchy many, for only then are
# links inside and between buildings busy at the same time.
RING_LANES, TIER_LANES, CHUNKS = (4, 128 * 1024), (16, 16 * 1024), (64, 256 * 1024)
# what `auto` takes for small, where steps count and not bytes
SMALL_BYTES = 64 * 1024


class Ask(NamedTuple):
    """What a plan is for: this rank, the building of each rank, the root where there is one, lanes or chunks."""

    rank: int
    groups: tuple[int, ...]
    root: int = 0
    pieces: int = 1

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.groups)


Maker = Callable[[Ask], Plan]

ALGORITHMS: dict[str, dict[str, Maker]] = {
    "all_reduce": {
        "ring": lambda ask: in_lanes(reducing.ring(ask.rank, ask.groups), ask.pieces),
        "bidirectional_ring": lambda ask: in_lanes(
            reducing.bidirectional_ring(ask.rank, ask.groups), ask.pieces
        ),
        "halving_doubling": lambda ask: in_lanes(reducing.halving_doubling(ask.rank, ask.groups), ask.pieces),
        "double_tree": lambda ask: trees.double_tree_all_reduce(ask.rank, ask.groups, ask.pieces),
        "hierarchical": lambda ask: in_lanes(reducing.hierarchical(ask.rank, ask.groups), ask.pieces),
        "hierarchical_tree": lambda ask: in_lanes(
            reducing.hierarchical_tree(ask.rank, ask.groups), ask.pieces
        ),
    },
    "all_gather": {
        "ring": lambda ask: gathering.ring(ask.rank, ask.groups),
        "bidirectional_ring": lambda ask: gathering.bidirectional_ring(ask.rank, ask.groups),
        "near_first": lambda ask: gathering.near_first(ask.rank, ask.groups),
        "far_first": lambda ask: gathering.far_first(ask.rank, ask.groups),
        "bruck": lambda ask: gathering.bruck(ask.rank, ask.groups),
        "direct": lambda ask: gathering.direct(ask.rank, ask.groups),
        "hierarchical": lambda ask: gathering.hierarchical(ask.rank, ask.groups),
    },
    # the same played backwards: of the recursive ones, far first ends with neighbours, near first far away
    "reduce_scatter": {
        "ring": lambda ask: in_lanes(reducing.ring_reduce_scatter(ask.rank, ask.groups), ask.pieces),
        "bidirectional_ring": lambda ask: in_lanes(
            reducing.backwards(gathering.bidirectional_ring(ask.rank, ask.groups)), ask.pieces
        ),
        "near_first": lambda ask: reducing.backwards(gathering.far_first(ask.rank, ask.groups)),
        "far_first": lambda ask: reducing.backwards(gathering.near_first(ask.rank, ask.groups)),
        "bruck": lambda ask: reducing.backwards(gathering.bruck(ask.rank, ask.groups)),
        "direct": lambda ask: reducing.backwards(gathering.direct(ask.rank, ask.groups)),
        "hierarchical": lambda ask: in_lanes(
            reducing.backwards(gathering.hierarchical(ask.rank, ask.groups)), ask.pieces
        ),
    },
    "broadcast": {
        "binomial": lambda ask: trees.binomial_broadcast(ask.rank, ask.size, ask.root),
        "chain": lambda ask: trees.chain_broadcast(ask.rank, ask.size, ask.root, ask.pieces),
    },
    "reduce": {
        "binomial": lambda ask: reverse(
            trees.binomial_broadcast(ask.rank, ask.size, ask.root), "reduce", True
        ),
        "chain": lambda ask: reverse(
            trees.chain_broadcast(ask.rank, ask.size, ask.root, ask.pieces), "reduce", True
        ),
    },
    "scatter": {
        "direct": lambda ask: trees.direct_scatter(ask.rank, ask.size, ask.root),
        "binomial": lambda ask: trees.binomial_scatter(ask.rank, ask.size, ask.root),
    },
    "gather": {
        "direct": lambda ask: reverse(trees.direct_scatter(ask.rank, ask.size, ask.root), "gather", False),
        "binomial": lambda ask: reverse(
            trees.binomial_scatter(ask.rank, ask.size, ask.root), "gather", False
        ),
    },
    "all_to_all": {
        "direct": lambda ask: exchanging.direct(ask.rank, ask.groups),
        "pairwise": lambda ask: exchanging.pairwise(ask.rank, ask.groups),
        "hierarchical": lambda ask: exchanging.hierarchical(ask.rank, ask.groups),
    },
}
# (most pieces, least bytes of a piece) of a rank's messages where it says lanes, of the whole array where chunks
_LANES = {
    ("all_reduce", "ring"): RING_LANES,
    ("all_reduce", "bidirectional_ring"): RING_LANES,
    ("all_reduce", "halving_doubling"): RING_LANES,
    ("all_reduce", "hierarchical"): TIER_LANES,
    ("all_reduce", "hierarchical_tree"): TIER_LANES,
    ("reduce_scatter", "ring"): RING_LANES,
    ("reduce_scatter", "bidirectional_ring"): RING_LANES,
    ("reduce_scatter", "hierarchical"): TIER_LANES,
}
_CHUNKS = {("all_reduce", "double_tree"): CHUNKS, ("broadcast", "chain"): CHUNKS, ("reduce", "chain"): CHUNKS}
# blocks that an array of the collective's "count" elements on one rank makes: what formulas multiply it by
_PER_RANK = {"all_gather", "reduce_scatter", "scatter", "gather"}


@lru_cache(maxsize=512)
def plan_of(collective: str, algorithm: str, ask: Ask) -> Plan:
    """One rank's plan. ValueError names the algorithms that there are."""
    known = ALGORITHMS[collective]
    if algorithm not in known:
        expected = ", ".join([AUTO, *known])
        raise ValueError(f"algorithm: got {algorithm!r}, expected one of {expected}")
    return known[algorithm](ask)


def pieces_for(collective: str, algorithm: str, size_bytes: int, ranks: int) -> int:
    """In how many lanes or chunks an array goes; 1 for algorithms that have neither. Sizes are those of `traffic`."""
    if (collective, algorithm) in _LANES:
        most, least_bytes = _LANES[collective, algorithm]
        message_bytes = size_bytes if collective in _PER_RANK else size_bytes // ranks
        return max(1, min(most, message_bytes // least_bytes))
    most, least_bytes = _CHUNKS.get((collective, algorithm), (1, 1))
    return max(1, min(most, size_bytes // least_bytes))


def automatic(collective: str, size_bytes: int, groups: Sequence[int]) -> str:
    """What `algorithm="auto"` takes where no tuning table says otherwise; sizes are those of `traffic`, in bytes.

    Small arrays go with the fewest steps: halving_doubling, far_first (near_first backwards), binomial trees. Large
    ones go by rings, which keep every link busy with neighbours; where there are several buildings, hierarchically, for
    then the least possible crosses. All-to-all crosses hierarchically while blocks are small, directly after that.
    """
    small, spread = size_bytes <= SMALL_BYTES, len(set(groups)) > 1
    if collective == "all_reduce":
        return "halving_doubling" if small else "hierarchical" if spread else "ring"
    if collective in ("all_gather", "reduce_scatter"):
        fewest = "far_first" if collective == "all_gather" else "near_first"
        return fewest if small else "hierarchical" if spread else "ring"
    if collective in ("broadcast", "reduce"):
        return "binomial" if small else "chain"
    if collective == "all_to_all":
        return "hierarchical" if spread and size_bytes // len(groups) <= SMALL_BYTES // 16 else "direct"
    return "binomial" if small else "direct"


def traffic(
    collective: str, algorithm: str, numel: int, itemsize: int, groups: Sequence[int], root: int = 0
) -> Traffic:
    """Payload bytes per ordered pair of ranks (source, target), without pairs that send nothing.

    numel: elements of the array in all_reduce, broadcast, reduce; of one rank's block in all_gather (its input),
    reduce_scatter (its output), gather, scatter and all_to_all (what it has for one rank). groups: the building of
    each rank. "auto" is what `automatic` takes. ValueError for an algorithm that there is not.
    """
    size = len(groups)
    if algorithm == AUTO:
        algorithm = automatic(collective, numel * itemsize, groups)
    blocks = size * size if collective == "all_to_all" else size if collective in _PER_RANK else 1
    pairs: Traffic = {}
    bounds: list[int] = []
    for rank in range(size):
        plan = plan_of(collective, algorithm, Ask(rank, tuple(groups), root))
        bounds = bounds or plan.bounds(numel * blocks)
        for peer, count in plan.sent(bounds).items():
            pairs[rank, peer] = count * itemsize
    return pairs


def between_groups(pairs: Mapping[tuple[int, int], float], groups: Sequence[int]) -> int:
    """The part of some traffic that goes between different groups, in bytes."""
    return round(sum(count for (source, target), count in pairs.items() if groups[source] != groups[target]))


def wan_bytes(collective: str, algorithm: str, numel: int, itemsize: int, groups: Sequence[int]) -> int:
    """Of a collective's traffic (see `traffic`), all bytes between different buildings, all directions."""
    return between_groups(traffic(collective, algorithm, numel, itemsize, groups), groups)

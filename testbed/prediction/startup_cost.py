"""What starting a job of many ranks takes: finding each other, looking at the network, making groups, connecting.

After NCCLX's scalable start (arXiv:2510.20171, figure 21), whose remedies are choices here: addresses round a ring of
neighbours in place of tables from rank 0; work on the topology that grows with ranks, not with pairs; groups made of
what everybody knows already; connections when they are used. A closed form for far more ranks than can be run; bytes
and messages are those of `comm.transport.bootstrap`. Seconds of software are costs that are given: see `SoftwareCosts`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

ENTRY_BYTES = 6  # of an address, as bootstraps send it
STAR, RING = "star", "ring_hybrid"


@dataclass(frozen=True)
class SoftwareCosts:
    """Seconds of software, and of the network between neighbours.

    base_s: whatever the number of ranks. caller_s: of rank 0, for each that calls: accept, hear, answer. entry_s: of
    any, for an address that it has and passes on. connection_s: of one more connection. pair_s: of each pair of ranks,
    where topology is worked out by pairs. rank_s: of each rank, where it is by ranks. hop_s: from one to the next.
    rate_bps: of a card.
    """

    base_s: float
    caller_s: float
    entry_s: float = 0.0
    connection_s: float = 0.0
    pair_s: float = 0.0
    rank_s: float = 0.0
    hop_s: float = 0.0
    rate_bps: float = 400e9


@dataclass(frozen=True)
class StartupMethod:
    """How a job starts. bootstrap: STAR or RING. by_pairs: whether work on the topology grows with pairs of ranks.

    reuses: groups are made of what is known of all ranks, not found anew. eager: every pair of a group connects.
    """

    bootstrap: str = STAR
    by_pairs: bool = True
    reuses: bool = False
    eager: bool = True


BASELINE = StartupMethod()
SCALABLE = StartupMethod(RING, by_pairs=False, reuses=True, eager=False)


@dataclass(frozen=True)
class StartupCost:
    """Seconds by what they go to, and what the busiest rank has in the end."""

    base_s: float
    finding_s: float
    topology_s: float
    connecting_s: float
    connections: int
    master_bytes: int

    @property
    def seconds(self) -> float:
        """One after the other."""
        return self.base_s + self.finding_s + self.topology_s + self.connecting_s


FIGURE_21 = {8_192: (14.5, 3.97), 32_768: (55.71, 11.89), 98_304: (265.0, 24.0)}
"""Seconds by ranks, before and after, as summaries of the paper have its figure 21."""

PUBLISHED = SoftwareCosts(
    base_s=2.15, caller_s=0.2e-3, entry_s=15e-6, connection_s=1.18e-3, pair_s=1.29e-8, rank_s=2e-6, hop_s=5e-6
)
"""Costs by which the first and the last point of figure 21 are met, with `usual_groups`; the share of each is ours."""


def usual_groups(ranks: int) -> tuple[int, ...]:
    """Tensor ranks in a node, a pipeline of 16, replicas of both: sizes of a rank's groups."""
    return 8, 16, max(1, ranks // 128)


def estimate_startup(
    ranks: int, groups: Sequence[int], way: StartupMethod, costs: SoftwareCosts
) -> StartupCost:
    """Of so many ranks, each in groups of these sizes besides all of them, one of a kind at a time.

    Groups of one kind are made side by side, so each kind counts once, with its size.
    """
    found = [ranks] if way.reuses else [ranks, *groups]
    finding_s = sum(_finding_s(size, way, costs) for size in found)
    # what is known of all ranks is enough to agree on a group, in as many steps as a tree has
    finding_s += sum(
        2 * costs.hop_s * math.ceil(math.log2(size)) for size in groups if way.reuses and size > 1
    )
    topology_s = sum(costs.pair_s * size * size if way.by_pairs else costs.rank_s * size for size in found)
    connections = sum(connections_of(size, eager=way.eager) for size in (ranks, *groups))
    master_bytes = sum(_master_bytes(size, way) for size in found)
    return StartupCost(
        costs.base_s, finding_s, topology_s, connections * costs.connection_s, connections, master_bytes
    )


def connections_of(size: int, *, eager: bool) -> int:
    """Of a rank in a group: with all others; or with the two of a ring and, across, those of a doubling.

    The nearest of a doubling is one of the ring's.
    """
    if eager or size <= 3:
        return size - 1
    return min(size - 1, 1 + math.ceil(math.log2(size)))


def _finding_s(size: int, way: StartupMethod, costs: SoftwareCosts) -> float:
    calls_s = (size - 1) * costs.caller_s
    if way.bootstrap == STAR:
        return calls_s + 8 * _master_bytes(size, way) / costs.rate_bps + 2 * costs.hop_s
    # addresses go round, one behind the other
    return calls_s + (size - 1) * (costs.entry_s + costs.hop_s) + 2 * costs.hop_s


def _master_bytes(size: int, way: StartupMethod) -> int:
    """What rank 0 sends of addresses."""
    return (size - 1) * ENTRY_BYTES * (size if way.bootstrap == STAR else 2)


def growth_exponent(points: Sequence[tuple[int, float]]) -> float:
    """The exponent of ranks by which seconds grow: the slope of log over log, least squares."""
    pairs = [(math.log(ranks), math.log(seconds)) for ranks, seconds in points]
    mean_x, mean_y = (sum(values) / len(pairs) for values in zip(*pairs, strict=True))
    return math.fsum((x - mean_x) * (y - mean_y) for x, y in pairs) / math.fsum(
        (x - mean_x) ** 2 for x, _ in pairs
    )

"""Closed form for the start of a large job: bootstrap, topology discovery, group creation, connection setup.

It follows NCCLX's scalable start-up (arXiv:2510.20171, figure 21), whose optimisations are options here. Addresses
travel around a ring of neighbours instead of in tables from rank 0. Topology work grows with the number of ranks, not
of pairs. Groups reuse information that all ranks already have. Connections are opened on first use. The formula covers
far more ranks than can be run. Bytes and messages are those of `comm.transport.bootstrap`; software costs are inputs,
see `SoftwareCosts`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression

ENTRY_BYTES = 6  # size of an address in bootstrap messages
STAR, RING = "star", "ring_hybrid"


@dataclass(frozen=True)
class SoftwareCosts:
    """Software costs in seconds, and the network between neighbours.

    Attributes:
        base_s: Fixed cost, independent of the number of ranks.
        caller_s: Cost at rank 0 per connecting rank: accept, receive, reply.
        entry_s: Cost at any rank per address that it receives and forwards.
        connection_s: Cost per additional connection.
        pair_s: Cost per pair of ranks, if topology work grows with the number of pairs.
        rank_s: Cost per rank, if topology work grows with the number of ranks.
        hop_s: Latency to the next rank.
        rate_bps: Rate of a NIC.
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
    """The method by which a job starts.

    Attributes:
        bootstrap: STAR or RING.
        by_pairs: Whether topology work grows with the number of pairs of ranks.
        reuses: Whether groups are created from information that all ranks already have, without another bootstrap.
        eager: Whether every pair of a group connects at once.
    """

    bootstrap: str = STAR
    by_pairs: bool = True
    reuses: bool = False
    eager: bool = True


BASELINE = StartupMethod()
SCALABLE = StartupMethod(RING, by_pairs=False, reuses=True, eager=False)


@dataclass(frozen=True)
class StartupCost:
    """Startup time by phase in seconds, and the connections and bytes of the busiest rank."""

    base_s: float
    finding_s: float
    topology_s: float
    connecting_s: float
    connections: int
    master_bytes: int

    @property
    def seconds(self) -> float:
        """The sum of all phases."""
        return self.base_s + self.finding_s + self.topology_s + self.connecting_s


FIGURE_21 = {8_192: (14.5, 3.97), 32_768: (55.71, 11.89), 98_304: (265.0, 24.0)}
"""Seconds before and after by number of ranks: figure 21 according to summaries of the paper."""

PUBLISHED = SoftwareCosts(
    base_s=2.15, caller_s=0.2e-3, entry_s=15e-6, connection_s=1.18e-3, pair_s=1.29e-8, rank_s=2e-6, hop_s=5e-6
)
"""Costs that fit the first and last points of figure 21 with `usual_groups`; how they divide is our assumption."""


def usual_groups(ranks: int) -> tuple[int, ...]:
    """Return the usual sizes of a rank's groups: tensor-parallel ranks in a node, a pipeline of 16, and replicas."""
    return 8, 16, max(1, ranks // 128)


def estimate_startup(
    ranks: int, groups: Sequence[int], way: StartupMethod, costs: SoftwareCosts
) -> StartupCost:
    """Estimate the startup of a job whose ranks are each in groups of these sizes and in the group of all ranks.

    Groups of one kind are created in parallel, so each kind counts once, with its size.
    """
    found = [ranks] if way.reuses else [ranks, *groups]
    finding_s = sum(_finding_s(size, way, costs) for size in found)
    # agreeing on a group of known ranks takes one step per level of a tree
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
    """Return a rank's number of connections in a group.

    It connects to all others, or to its ring neighbours and the peers of recursive doubling. The nearest of those peers
    is a ring neighbour.
    """
    if eager or size <= 3:
        return size - 1
    return min(size - 1, 1 + math.ceil(math.log2(size)))


def _finding_s(size: int, way: StartupMethod, costs: SoftwareCosts) -> float:
    calls_s = (size - 1) * costs.caller_s
    if way.bootstrap == STAR:
        return calls_s + 8 * _master_bytes(size, way) / costs.rate_bps + 2 * costs.hop_s
    # addresses travel around the ring, one after another
    return calls_s + (size - 1) * (costs.entry_s + costs.hop_s) + 2 * costs.hop_s


def _master_bytes(size: int, way: StartupMethod) -> int:
    """Return the bytes of addresses that rank 0 sends."""
    return (size - 1) * ENTRY_BYTES * (size if way.bootstrap == STAR else 2)


def growth_exponent(points: Sequence[tuple[int, float]]) -> float:
    """Return the exponent with which seconds grow with ranks: the least-squares slope in log-log space."""
    ranks, seconds = zip(*points, strict=True)
    return linear_regression(
        [math.log(many) for many in ranks], [math.log(took_s) for took_s in seconds]
    ).slope

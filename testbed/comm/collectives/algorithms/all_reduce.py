"""All-reduce and reduce-scatter, put together from all-gathers played backwards and forwards.

n is the number of ranks, B the array's bytes; "sends" is per rank, where n divides the elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from testbed.comm.collectives.algorithms import all_gather
from testbed.comm.collectives.algorithms.all_gather import members_of, ring_strand
from testbed.comm.collectives.algorithms.trees import CHUNKS, double_tree_strands
from testbed.comm.collectives.plan import Plan, Stage, Strand, even, relabel, reverse, runs_of, then
from testbed.comm.collectives.registry import (
    ALL_REDUCE,
    REDUCE_SCATTER,
    Pieces,
    PlanRequest,
    large_across,
    large_inside,
    small,
)

REDUCE = "reduce-scatter"
# Parts of a message are reduced, or passed on, while others travel. Measured with benchmarks/peers: a ring needs few
# parts, for its links are busy anyway; a hierarchy many, for only then are links inside and between buildings busy at
# the same time.
RING_CHANNELS, TIER_CHANNELS = Pieces(4, 128 * 1024), Pieces(16, 16 * 1024)


def backwards(gather: Plan) -> Plan:
    """The reduce-scatter that an all-gather is when played backwards: as many steps, as many bytes."""
    return reverse(gather, REDUCE)


@REDUCE_SCATTER.register("ring", channels=RING_CHANNELS, auto=large_inside)
def ring_reduce_scatter(request: PlanRequest) -> Plan:
    """Everybody adds its own to what came from the one before and passes it on to the next.

    Steps: n - 1. Sends B (n - 1) / n, all to the next rank.
    """
    return backwards(all_gather.ring(request, direction=-1))


@ALL_REDUCE.register("ring", channels=RING_CHANNELS, auto=large_inside)
def ring(request: PlanRequest) -> Plan:
    """Ring reduce-scatter, then ring all-gather, both in the same direction.

    Steps: 2 (n - 1). Sends 2 B (n - 1) / n, all to the next rank: a boundary between groups of consecutive ranks is
    crossed in one place in each direction. Source: Patarasuk and Yuan 2009,
    "Bandwidth optimal all-reduce algorithms for
    clusters of workstations".
    """
    return then(ring_reduce_scatter(request), all_gather.ring(request))


@ALL_REDUCE.register("bidirectional_ring", channels=RING_CHANNELS)
def bidirectional_ring(request: PlanRequest) -> Plan:
    """Reduce-scatter, then all-gather, over a ring in both directions at once.

    Steps: 2 ceil((n - 1) / 2), half of the ring's. Sends 2 B (n - 1) / n, half of it to either side.
    """
    gather = all_gather.bidirectional_ring(request)
    return then(backwards(gather), gather)


@ALL_REDUCE.register("halving_doubling", channels=RING_CHANNELS, auto=small)
def halving_doubling(request: PlanRequest) -> Plan:
    """Recursive halving, neighbours first, then recursive doubling, the farthest first.

    For n a power of two, partners differ in one bit; for other n see `gathering.recursive_doubling`. The large messages
    go to neighbours, the small ones far. Steps: 2 per prime factor of n, 2 log2 n for powers of two. Sends
    2 B (n - 1) / n. Source: Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations
    in MPICH", without its extra step for other n.
    """
    size = request.size
    # which block a rank ends up with is free: numbered by reversed digits, what it has is always one run
    names = [0] * size
    for number in range(size):
        name, weight = 0, size
        for distance, factor in all_gather.digit_order(size, far_first=False):
            weight //= factor
            name += number // distance % factor * weight
        names[number] = name
    gather = relabel(all_gather.far_first(request), names.__getitem__)
    return then(backwards(gather), gather)


@ALL_REDUCE.register("double_tree", chunks=CHUNKS)
def double_tree_all_reduce(request: PlanRequest) -> Plan:
    """Half of the array is reduced up one binary tree and sent down again, the other half along another.

    Nearly every rank is a leaf of one tree and has two children in the other, so that all work alike.
    Steps: 2 ceil(log2 n) at most, for the first chunk. Sends at most 2 B, 2 B (n - 1) / n on the average. Source:
    Sanders, Speck and Traff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan".
    """
    chunks = request.pieces
    blocks = [range(0, chunks), range(chunks, 2 * chunks)]
    return even(2 * chunks, tuple(double_tree_strands(range(request.size), request.rank, blocks)))


@ALL_REDUCE.register("hierarchical", channels=TIER_CHANNELS, auto=large_across)
def hierarchical(request: PlanRequest, across: Literal["ring", "tree"] = "ring") -> Plan:
    """Ring reduce-scatter inside each building, all-reduce across, ring all-gather inside.

    Inside a building of m ranks the i-th reduces shard i of m. Buildings of unequal size have different shards, so
    what goes across is cut where any building's shards are: within such a segment every building has one owner. The
    owners of a segment all-reduce it by a ring, or by the double binary tree, in the order of the buildings' first
    ranks; all segments at once.
    Steps: 2 (m - 1) inside, 2 (g - 1) across g buildings by rings. Sends inside 2 B (m - 1) / m; across, of each
    segment of S bytes that it owns, 2 S (g - 1) / g. With g buildings 2 B (g - 1) go between buildings in all, by
    either kind across; with two, B in each direction, the least possible, whatever their sizes.
    """
    rank = request.rank
    members = members_of(request.groups)
    inside = next(ranks for ranks in members if rank in ranks)
    index = inside.index(rank)
    whole = math.lcm(*map(len, members))
    edges = sorted({shard * (whole // len(ranks)) for ranks in members for shard in range(len(ranks) + 1)})
    parts = len(members) if across == "ring" else 2
    cuts = [start * parts + part * (end - start) for start, end in pairwise(edges) for part in range(parts)]
    segments = len(edges) - 1
    held = []
    for shard in range(len(inside)):
        low, high = shard * whole // len(inside), (shard + 1) * whole // len(inside)
        mine = [number for number in range(segments) if low <= edges[number] < high]
        held.append(runs_of(number * parts + part for number in mine for part in range(parts)))
    strands: list[Strand] = []
    for number in range(segments):
        owners = [ranks[edges[number] * len(ranks) // whole] for ranks in members]
        first = number * parts
        if across == "tree":
            blocks = [[first], [first + 1]]
            empty: list[Strand] = [()] * parts
            strands += double_tree_strands(owners, owners.index(rank), blocks) if rank in owners else empty
        else:
            own = [runs_of([first + part]) for part in range(parts)]
            strands.append(_ring_across(owners, owners.index(rank), own) if rank in owners else ())
    stages: list[Stage] = []
    several = max(map(len, members)) > 1  # somewhere: stages are the same on all ranks
    if several:
        around = even(1, (ring_strand(inside, index, held, direction=-1),))
        stages += reverse(around, "reduce-scatter inside").stages
    if len(members) > 1:
        stages.append(tuple(strands))
    if several:
        stages.append((ring_strand(inside, index, held, phase="all-gather inside"),))
    return Plan(whole * parts, (*cuts, whole * parts), (tuple(stages),))


def _ring_across(owners: Sequence[int], index: int, own: Sequence[tuple[tuple[int, int], ...]]) -> Strand:
    there = even(1, (ring_strand(owners, index, own, direction=-1),))
    back = even(1, (ring_strand(owners, index, own, phase="all-gather across"),))
    return then(reverse(there, "reduce-scatter across"), back).stages[0][0]


@ALL_REDUCE.register("hierarchical_tree", channels=TIER_CHANNELS)
def hierarchical_tree(request: PlanRequest) -> Plan:
    """As `hierarchical`, with the double binary tree across: for many buildings, as it takes 2 ceil(log2 g) steps."""
    return hierarchical(request, "tree")


# all-gathers played backwards: of the recursive ones, far first ends with neighbours, near first far away


@REDUCE_SCATTER.register("bidirectional_ring", channels=RING_CHANNELS)
def bidirectional_ring_reduce_scatter(request: PlanRequest) -> Plan:
    """`gathering.bidirectional_ring` backwards."""
    return backwards(all_gather.bidirectional_ring(request))


@REDUCE_SCATTER.register("near_first", auto=small)
def near_first_reduce_scatter(request: PlanRequest) -> Plan:
    """`gathering.far_first` backwards: neighbours first, with the large messages."""
    return backwards(all_gather.far_first(request))


@REDUCE_SCATTER.register("far_first")
def far_first_reduce_scatter(request: PlanRequest) -> Plan:
    """`gathering.near_first` backwards: the farthest first, with the large messages."""
    return backwards(all_gather.near_first(request))


@REDUCE_SCATTER.register("bruck")
def bruck_reduce_scatter(request: PlanRequest) -> Plan:
    """`gathering.bruck` backwards."""
    return backwards(all_gather.bruck(request))


@REDUCE_SCATTER.register("direct")
def direct_reduce_scatter(request: PlanRequest) -> Plan:
    """`gathering.direct` backwards: everybody sends each its part, all at once."""
    return backwards(all_gather.direct(request))


@REDUCE_SCATTER.register("hierarchical", channels=TIER_CHANNELS, auto=large_across)
def hierarchical_reduce_scatter(request: PlanRequest) -> Plan:
    """`gathering.hierarchical` backwards: each building reduces first, and each block crosses once."""
    return backwards(all_gather.hierarchical(request))

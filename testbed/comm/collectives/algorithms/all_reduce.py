"""All-reduce and reduce-scatter, composed of all-gathers played backwards and forwards.

n is the number of ranks, B the array's bytes. "Sends" is per rank, if n divides the number of elements.
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
# Parts of a message are reduced, or passed on, while others are in flight. Measured with benchmarks/peers: a ring needs
# few parts, because its links are busy anyway; a hierarchy needs many, to keep links inside and between buildings busy
# at the same time.
RING_CHANNELS, TIER_CHANNELS = Pieces(4, 128 * 1024), Pieces(16, 16 * 1024)


def backwards_ring(request: PlanRequest) -> Plan:
    """Plan the all-gather that becomes a ring reduce-scatter when played backwards: blocks go around in reverse."""
    return all_gather.ring(request, direction=-1)


# Played backwards, far first becomes near first, with the large messages to neighbours, and vice versa.
for name, gather_of, channels, rule in (
    ("ring", backwards_ring, RING_CHANNELS, large_inside),
    ("bidirectional_ring", all_gather.bidirectional_ring, RING_CHANNELS, None),
    ("near_first", all_gather.far_first, None, small),
    ("far_first", all_gather.near_first, None, None),
    ("bruck", all_gather.bruck, None, None),
    ("direct", all_gather.direct, None, None),
    ("hierarchical", all_gather.hierarchical, TIER_CHANNELS, large_across),
):
    REDUCE_SCATTER.register_reversed(name, gather_of, channels=channels, auto=rule)


@ALL_REDUCE.register("ring", channels=RING_CHANNELS, auto=large_inside)
def ring(request: PlanRequest) -> Plan:
    """Ring reduce-scatter, then ring all-gather, both in the same direction.

    Steps: 2 (n - 1). Sends 2 B (n - 1) / n, all to the next rank. Between two groups of consecutive ranks, one
    connection crosses in each direction. Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for
    clusters of workstations".
    """
    return then(reverse(backwards_ring(request), REDUCE), all_gather.ring(request))


@ALL_REDUCE.register("bidirectional_ring", channels=RING_CHANNELS)
def bidirectional_ring(request: PlanRequest) -> Plan:
    """Reduce-scatter, then all-gather, over a ring in both directions at once.

    Steps: 2 ceil((n - 1) / 2), half of the ring's. Sends 2 B (n - 1) / n, half to each side.
    """
    gather = all_gather.bidirectional_ring(request)
    return then(reverse(gather, REDUCE), gather)


@ALL_REDUCE.register("halving_doubling", channels=RING_CHANNELS, auto=small)
def halving_doubling(request: PlanRequest) -> Plan:
    """Recursive halving, neighbours first, then recursive doubling, farthest first.

    For n a power of two, partners differ in one bit; for other n see `all_gather.recursive_doubling`. Large messages go
    to neighbours, small ones to distant ranks.
    Steps: 2 per prime factor of n, 2 log2 n for powers of two. Sends 2 B (n - 1) / n.
    Source: Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations in MPICH",
    without its extra step for other n.
    """
    size = request.size
    # a rank may end up with any block; with blocks numbered by reversed digits, those that it has always form one run
    names = [0] * size
    for number in range(size):
        name, weight = 0, size
        for distance, factor in all_gather.digit_order(size, far_first=False):
            weight //= factor
            name += number // distance % factor * weight
        names[number] = name
    gather = relabel(all_gather.far_first(request), names.__getitem__)
    return then(reverse(gather, REDUCE), gather)


@ALL_REDUCE.register("double_tree", chunks=CHUNKS)
def double_tree_all_reduce(request: PlanRequest) -> Plan:
    """All-reduce each half of the array over its own binary tree: reduce it up the tree and send it down again.

    Nearly every rank is a leaf of one tree and has two children in the other, so all ranks send and receive equally
    much.
    Steps: at most 2 ceil(log2 n) for the first chunk. Sends at most 2 B, on average 2 B (n - 1) / n.
    Source: Sanders, Speck and Traff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan".
    """
    chunks = request.pieces
    blocks = [range(0, chunks), range(chunks, 2 * chunks)]
    return even(2 * chunks, tuple(double_tree_strands(range(request.size), request.rank, blocks)))


@ALL_REDUCE.register("hierarchical", channels=TIER_CHANNELS, auto=large_across)
def hierarchical(request: PlanRequest, across: Literal["ring", "tree"] = "ring") -> Plan:
    """Ring reduce-scatter inside each building, all-reduce across, ring all-gather inside.

    In a building of m ranks the i-th reduces shard i of m. Buildings of unequal size have different shards. For the
    exchange across, the array is therefore cut wherever any building's shards are cut: each such segment has one owner
    per building. The owners of a segment all-reduce it by a ring, or by the double binary tree, in the order of the
    buildings' first ranks, all segments at once.
    Steps: 2 (m - 1) inside, 2 (g - 1) across g buildings with rings. Sends inside 2 B (m - 1) / m; across, 2 S (g - 1)
    / g for each owned segment of S bytes. With g buildings, 2 B (g - 1) go between buildings in all, with a ring or a
    tree; with two, B in each direction, the minimum, whatever their sizes.
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
    several = max(map(len, members)) > 1  # the largest building decides: all ranks need the same stages
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
    """Execute `hierarchical` with the double binary tree across.

    It takes 2 ceil(log2 g) steps across g buildings, which suits many buildings.
    """
    return hierarchical(request, "tree")

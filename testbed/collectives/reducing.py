"""All-reduce and reduce-scatter, put together from all-gathers played backwards and forwards.

n is the number of ranks, B the array's bytes; "sends" is per rank, where n divides the elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from testbed.collectives import gathering
from testbed.collectives.gathering import members_of, ring_strand
from testbed.collectives.plan import Plan, Stage, Strand, even, relabel, reverse, runs_of, then
from testbed.collectives.trees import double_tree_strands

REDUCE = "reduce-scatter"


def ring_reduce_scatter(rank: int, groups: Sequence[int]) -> Plan:
    """Everybody adds its own to what came from the one before and passes it on to the next.

    Steps: n - 1. Sends B (n - 1) / n, all to the next rank.
    """
    return backwards(gathering.ring(rank, groups, direction=-1))


def backwards(gather: Plan) -> Plan:
    """The reduce-scatter that an all-gather is when played backwards: as many steps, as many bytes."""
    return reverse(gather, REDUCE)


def ring(rank: int, groups: Sequence[int]) -> Plan:
    """Ring reduce-scatter, then ring all-gather, both in the same direction.

    Steps: 2 (n - 1). Sends 2 B (n - 1) / n, all to the next rank: a boundary between groups of consecutive ranks is
    crossed in one place each way. Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for
    clusters of workstations".
    """
    return then(ring_reduce_scatter(rank, groups), gathering.ring(rank, groups))


def bidirectional_ring(rank: int, groups: Sequence[int]) -> Plan:
    """Reduce-scatter, then all-gather, over a ring in both directions at once.

    Steps: 2 ceil((n - 1) / 2), half of the ring's. Sends 2 B (n - 1) / n, half of it to either side.
    """
    gather = gathering.bidirectional_ring(rank, groups)
    return then(backwards(gather), gather)


def halving_doubling(rank: int, groups: Sequence[int]) -> Plan:
    """Recursive halving, neighbours first, then recursive doubling, the farthest first.

    For n a power of two, partners differ in one bit; for other n see `gathering.recursive_doubling`. The large messages
    go to neighbours, the small ones far. Steps: 2 per prime factor of n, 2 log2 n for powers of two. Sends
    2 B (n - 1) / n. Source: Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations
    in MPICH", without its extra step for other n.
    """
    size = len(groups)
    # which block a rank ends up with is free: numbered by reversed digits, what it has is always one run
    names = [0] * size
    for number in range(size):
        place, weight = 0, size
        for distance, factor in gathering.digit_order(size, far_first=False):
            weight //= factor
            place += number // distance % factor * weight
        names[number] = place
    gather = relabel(gathering.far_first(rank, groups), names.__getitem__)
    return then(backwards(gather), gather)


def hierarchical(rank: int, groups: Sequence[int], across: Literal["ring", "tree"] = "ring") -> Plan:
    """Ring reduce-scatter inside each building, all-reduce across, ring all-gather inside.

    Inside a building of m ranks the i-th reduces shard i of m. Buildings of unequal size have different shards, so
    what goes across is cut where any building's shards are: within such a segment every building has one owner. The
    owners of a segment all-reduce it by a ring, or by the double binary tree, in the order of the buildings' first
    ranks; all segments at once.
    Steps: 2 (m - 1) inside, 2 (g - 1) across g buildings by rings. Sends inside 2 B (m - 1) / m; across, of each
    segment of S bytes that it owns, 2 S (g - 1) / g. With g buildings 2 B (g - 1) go between buildings in all, by
    either way across; with two B each way, the least possible, whatever their sizes.
    """
    members = members_of(groups)
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


def hierarchical_tree(rank: int, groups: Sequence[int]) -> Plan:
    """As `hierarchical`, with the double binary tree across: for many buildings, as it takes 2 ceil(log2 g) steps."""
    return hierarchical(rank, groups, "tree")

"""All-gather: block r, from rank r, ends at all ranks. Played backwards (`plan.reverse`), each is a reduce-scatter.

Below, n is the number of ranks and B the size in bytes of all blocks together. Every algorithm here sends each
block to each rank exactly once, so each rank receives B (n - 1) / n in all. "Sends" is per rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from testbed.comm.collectives.plan import Plan, Round, Runs, Stage, Strand, Transfer, even, runs_of
from testbed.comm.collectives.registry import ALL_GATHER, PlanRequest, large_across, large_inside, small

GATHER = "all-gather"


def own_blocks(size: int) -> list[Runs]:
    """Return the initial blocks of each rank: block r at rank r."""
    return [((block, block + 1),) for block in range(size)]


def ring_strand(
    members: Sequence[int], index: int, held: Sequence[Runs], direction: int = 1, phase: str = GATHER
) -> Strand:
    """Return the strand of the `index`-th rank in a ring of `members`.

    `held[i]` are the blocks that the i-th member starts with.
    """
    size = len(members)
    ahead, behind = members[(index + direction) % size], members[(index - direction) % size]
    return tuple(
        Round(
            phase,
            (Transfer(ahead, held[(index - step * direction) % size]),),
            (Transfer(behind, held[(index - (step + 1) * direction) % size]),),
        )
        for step in range(size - 1)
    )


@ALL_GATHER.register("ring", auto=large_inside)
def ring(request: PlanRequest, direction: int = 1) -> Plan:
    """Pass blocks around the ring: each rank forwards to the next rank what it receives from the previous one.

    Steps: n - 1. Sends B (n - 1) / n, all to the next rank. Between two groups of consecutive ranks, one connection
    crosses in each direction, with B (n - 1) / n bytes.
    """
    rank, size = request.rank, request.size
    return even(size, (ring_strand(range(size), rank, own_blocks(size), direction),))


@ALL_GATHER.register("bidirectional_ring")
def bidirectional_ring(request: PlanRequest) -> Plan:
    """Pass blocks around the ring in both directions until they meet; neither direction waits for the other.

    Steps: ceil((n - 1) / 2). Sends B (n - 1) / n, half to each side, or one block more to the next rank.
    """
    rank, size = request.rank, request.size
    held = own_blocks(size)
    rightwards = ring_strand(range(size), rank, held)[: size // 2]
    leftwards = ring_strand(range(size), rank, held, direction=-1)[: (size - 1) // 2]
    return even(size, (rightwards, leftwards))


def factors(number: int) -> list[int]:
    """Return the prime factors, smallest first."""
    found, factor = [], 2
    while factor * factor <= number:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return [*found, number] if number > 1 else found


def digit_order(size: int, far_first: bool) -> list[tuple[int, int]]:
    """Return (distance, factor) of each exchange: ranks that differ in one mixed-radix digit are `distance` apart.

    The least significant digit counts neighbours, the most significant one the farthest groups of ranks.
    """
    found, distance = [], 1
    for factor in factors(size):
        found.append((distance, factor))
        distance *= factor
    return found[::-1] if far_first else found


def recursive_doubling(request: PlanRequest, far_first: bool) -> Plan:
    """Exchange everything held so far with partners at different distances; each exchange doubles what a rank holds.

    For n a power of two, partners differ in one bit. For other n the distances are products of the prime factors of
    n. In an exchange over factor f, each of f ranks exchanges messages with the f - 1 others; no rank idles.
    Steps: one per prime factor of n, log2 n for powers of two. Sends B (n - 1) / n.
    Near first: neighbours exchange first, with little data; the last and largest exchange, B (f - 1) / f per rank, goes
    farthest.
    Far first: the farthest exchange is done while each rank has only one block. Between two halves of the ranks,
    near first sends n x B / 2 bytes, both directions added; far first sends B, the minimum.
    """
    rank, size = request.rank, request.size
    held = {rank}
    open_digits = digit_order(size, far_first)
    rounds = []
    for distance, factor in open_digits:
        digit = rank // distance % factor
        peers = [rank + ((digit + step) % factor - digit) * distance for step in range(1, factor)]
        sends = tuple(Transfer(peer, runs_of(held)) for peer in peers)
        received = {peer: {block + peer - rank for block in held} for peer in reversed(peers)}
        receives = tuple(Transfer(peer, runs_of(blocks)) for peer, blocks in received.items())
        rounds.append(Round(GATHER, sends, receives))
        held = held.union(*received.values())
    return even(size, (tuple(rounds),))


@ALL_GATHER.register("near_first")
def near_first(request: PlanRequest) -> Plan:
    """Recursive doubling, neighbours first; see `recursive_doubling`."""
    return recursive_doubling(request, far_first=False)


@ALL_GATHER.register("far_first", auto=small)
def far_first(request: PlanRequest) -> Plan:
    """Recursive doubling, farthest first; see `recursive_doubling`."""
    return recursive_doubling(request, far_first=True)


@ALL_GATHER.register("bruck")
def bruck(request: PlanRequest) -> Plan:
    """In round k, send to the rank 2^k before this one the blocks that it lacks; receive from the rank 2^k after it.

    Steps: ceil(log2 n) for any n, one message in each direction. Sends B (n - 1) / n. Source: Bruck et al. 1997,
    "Efficient algorithms for all-to-all communications in multiport message-passing systems".
    """
    rank, size = request.rank, request.size
    rounds = []
    distance = 1
    while distance < size:
        count = min(distance, size - distance)
        target, source = (rank - distance) % size, (rank + distance) % size
        sent = runs_of((rank + offset) % size for offset in range(count))
        received = runs_of((source + offset) % size for offset in range(count))
        rounds.append(Round(GATHER, (Transfer(target, sent),), (Transfer(source, received),)))
        distance *= 2
    return even(size, (tuple(rounds),))


@ALL_GATHER.register("direct")
def direct(request: PlanRequest) -> Plan:
    """Send this rank's block to all other ranks at once.

    Steps: 1, with n - 1 messages out and in. Sends B (n - 1) / n.
    """
    rank, size = request.rank, request.size
    held = own_blocks(size)
    if size == 1:
        return even(1, ((),))
    sends = tuple(Transfer((rank + step) % size, held[rank]) for step in range(1, size))
    sources = [(rank - step) % size for step in range(1, size)]
    return even(size, ((Round(GATHER, sends, tuple(Transfer(peer, held[peer]) for peer in sources)),),))


@ALL_GATHER.register("hierarchical", auto=large_across)
def hierarchical(request: PlanRequest) -> Plan:
    """Send each block once into every other building, then spread all received blocks by a ring inside each building.

    The i-th rank of a building sends its block to the (i mod m)-th of each other building, m being that building's
    size.
    Steps: 1 across (if there is more than one building), m - 1 inside. Sends across: B / n to each other building;
    with g buildings B (g - 1) in all, the minimum. Sends inside: B minus the blocks with which the next rank in the
    ring starts.
    """
    rank, size = request.rank, request.size
    members = members_of(request.groups)
    home = next(number for number, ranks in enumerate(members) if rank in ranks)
    inside = members[home]
    index = inside.index(rank)
    held: list[set[int]] = [{own} for own in inside]
    sends, receives = [], []
    for step in range(1, len(members)):
        there = members[(home + step) % len(members)]
        sends.append(Transfer(there[index % len(there)], ((rank, rank + 1),)))
        here = members[(home - step) % len(members)]
        for number, source in enumerate(here):
            held[number % len(inside)].add(source)
            if number % len(inside) == index:
                receives.append(Transfer(source, ((source, source + 1),)))
    stages: list[Stage] = []
    if len(members) > 1:
        stages.append(((Round("all-gather across", tuple(sends), tuple(receives)),),))
    stages.append((ring_strand(inside, index, [runs_of(h) for h in held], phase="all-gather inside"),))
    return even(size, *stages)


def members_of(groups: Sequence[int]) -> list[list[int]]:
    """Return the ranks of each group, groups in the order of their first rank."""
    found: dict[int, list[int]] = {}
    for rank, group in enumerate(groups):
        found.setdefault(group, []).append(rank)
    return list(found.values())

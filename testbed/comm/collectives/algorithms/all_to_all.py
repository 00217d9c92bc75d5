"""All-to-all: every rank has one block for every rank. Block s * n + d goes from rank s to rank d.

n is the number of ranks, B the bytes of a rank's input, including the block for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from testbed.comm.collectives.algorithms.all_gather import members_of
from testbed.comm.collectives.plan import Plan, Round, Stage, Strand, Transfer, blocks_of, even, runs_of
from testbed.comm.collectives.registry import ALL_TO_ALL, SENDRECV, Algorithm, PlanRequest, small_across

CONCURRENCY = 8


@ALL_TO_ALL.register("direct")
def direct(request: PlanRequest, concurrency: int = CONCURRENCY) -> Plan:
    """Send each block directly to its destination, starting with the next rank.

    At most `concurrency` messages are in flight in each direction. Steps: ceil((n - 1) / concurrency). Sends B (n -
    1) / n.
    """
    rank, size = request.rank, request.size
    strands: list[list[Round]] = [[] for _ in range(max(1, min(concurrency, size - 1)))]
    for step in range(1, size):
        target, source = (rank + step) % size, (rank - step) % size
        sent, received = rank * size + target, source * size + rank
        sends = (Transfer(target, ((sent, sent + 1),)),)
        receives = (Transfer(source, ((received, received + 1),)),)
        strands[(step - 1) % len(strands)].append(Round("exchange", sends, receives))
    return even(size * size, tuple(map(tuple, strands)))


@ALL_TO_ALL.register("pairwise")
def pairwise(request: PlanRequest) -> Plan:
    """In round k, send to the rank k ahead and receive from the one k behind: one message per direction at a time.

    Steps: n - 1. Sends B (n - 1) / n.
    """
    return direct(request, concurrency=1)


@ALL_TO_ALL.register("hierarchical", auto=small_across)
def hierarchical(request: PlanRequest) -> Plan:
    """Collect a building's blocks for one rank of another building first, then send them across as one message.

    In a building of m ranks, the (i mod m)-th collects the blocks for the i-th rank of any other building.
    Steps: 1 inside, with m - 1 messages, then 1 across. A rank sends across one message for every rank it collects
    for: m blocks each, to n / m - 1 ranks if buildings are equal, instead of n - m messages of one block. The bytes
    between buildings are the same, the minimum; inside, blocks that cross are sent one more time, unless the collector
    is their sender.
    """
    rank, size = request.rank, request.size
    members = members_of(request.groups)
    home = next(number for number, ranks in enumerate(members) if rank in ranks)
    inside = members[home]
    index_of = {other: position for ranks in members for position, other in enumerate(ranks)}

    def collector(ranks: Sequence[int], target: int) -> int:
        return ranks[index_of[target] % len(ranks)]

    def first_blocks(source: int, to: int) -> list[int]:
        """Return the blocks that one rank of this building first sends to another."""
        far = [d for d in range(size) if d not in inside and collector(inside, d) == to]
        return [source * size + d for d in (to, *far)]

    index = inside.index(rank)
    first_sends, first_receives = [], []
    for step in range(1, len(inside)):
        target, source = inside[(index + step) % len(inside)], inside[index - step]
        first_sends.append(Transfer(target, runs_of(first_blocks(rank, target))))
        first_receives.append(Transfer(source, runs_of(first_blocks(source, rank))))
    sends, receives = [], []
    for step in range(1, len(members)):
        there, back = members[(home + step) % len(members)], members[home - step]
        for target in there:
            if collector(inside, target) == rank:
                sends.append(Transfer(target, runs_of(source * size + target for source in inside)))
        receives.append(Transfer(collector(back, rank), runs_of(source * size + rank for source in back)))
    stages: list[Stage] = []
    strand: Strand
    if max(map(len, members)) > 1:  # the largest building decides: all ranks need the same stages
        strand = (Round("exchange inside", tuple(first_sends), tuple(first_receives)),)
        stages.append((strand,))
    if len(members) > 1:
        strand = (Round("exchange across", tuple(sends), tuple(receives)),)
        stages.append((strand,))
    return even(size * size, *stages)


@lru_cache(maxsize=128)
def relays_blocks(algorithm: Algorithm, groups: tuple[int, ...]) -> bool:
    """Return whether any rank relays blocks of an all-to-all between two other ranks."""
    size = len(groups)
    for rank in range(size):
        for stages in algorithm(PlanRequest(rank, groups)).channels:
            steps = [step for stage in stages for strand in stage for step in strand]
            runs = [transfer.runs for step in steps for transfer in (*step.sends, *step.receives)]
            if any(rank not in divmod(block, size) for own in runs for block in blocks_of(own)):
                return True
    return False


@SENDRECV.register("direct")
def shift(request: PlanRequest) -> Plan:
    """Send this rank's array to the next rank and receive that of the previous one. Steps: 1. Sends B / n."""
    rank, size = request.rank, request.size
    right, left = (rank + 1) % size, (rank - 1) % size
    if size == 1:
        return even(1, ((),))
    sends, receives = (Transfer(right, ((rank, rank + 1),)),), (Transfer(left, ((left, left + 1),)),)
    return even(size, ((Round("sendrecv", sends, receives),),))

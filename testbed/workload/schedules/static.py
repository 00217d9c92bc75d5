"""Schedules with a fixed order, independent of times. Each returns the order of every rank of a pipeline.

Stages are assigned to ranks round-robin (loops), or forward and back (V). Orders and names are those of PyTorch's
torch.distributed.pipelining.schedules, where it has them.
"""

from __future__ import annotations

from testbed.workload.schedules.actions import (
    FORWARD,
    FULL,
    INPUT,
    WEIGHT,
    Action,
    Kind,
    Order,
    ScheduleError,
)
from testbed.workload.schedules.base import SCHEDULES, ScheduleRequest, schedule

Counts = dict[tuple[int, Kind], int]


@SCHEDULES.register("GPipe")
@schedule()
def gpipe(request: ScheduleRequest) -> tuple[Order, ...]:
    """Return GPipe: all forward, then all backward (Huang et al. 2019, arXiv:1811.06965)."""
    return _chunk_by_chunk(request)


@SCHEDULES.register("LoopedBFS")
@schedule(chunks=None)
def looped_bfs(request: ScheduleRequest) -> tuple[Order, ...]:
    """Return all microbatches of a chunk before the next chunk (Lamy-Poirier 2023, arXiv:2211.05953)."""
    return _chunk_by_chunk(request)


def _chunk_by_chunk(request: ScheduleRequest) -> tuple[Order, ...]:
    ranks, microbatches, chunks = request.ranks, request.microbatches, request.chunks
    orders = []
    for rank in range(ranks):
        stages = range(rank, ranks * chunks, ranks)
        forward = [Action(stage, FORWARD, number) for stage in stages for number in range(microbatches)]
        backward = [
            Action(stage, FULL, number)
            for stage in reversed(stages)
            for number in reversed(range(microbatches))
        ]
        orders.append((*forward, *backward))
    return tuple(orders)


@SCHEDULES.register("1F1B")
@schedule()
def one_f_one_b(request: ScheduleRequest) -> tuple[Order, ...]:
    """Return 1F1B: as few microbatches in flight as keep the ranks busy (Narayanan et al. 2021, arXiv:2104.04473)."""
    ranks, microbatches = request.ranks, request.microbatches
    orders = []
    for rank in range(ranks):
        ahead = min(microbatches, ranks - rank)
        order = [Action(rank, FORWARD, number) for number in range(ahead)]
        for number in range(microbatches):
            order.append(Action(rank, FULL, number))
            if number + ahead < microbatches:
                order.append(Action(rank, FORWARD, number + ahead))
        orders.append(tuple(order))
    return tuple(orders)


@SCHEDULES.register("Interleaved1F1B")
@schedule(chunks=None)
def interleaved_1f1b(request: ScheduleRequest) -> tuple[Order, ...]:
    """Return 1F1B with `chunks` stages per rank (arXiv:2104.04473, section 2.2). Raises ScheduleError.

    Microbatches run in rounds of `ranks`, or more where they do not divide evenly, as in PyTorch.
    """
    ranks, microbatches, chunks = request.ranks, request.microbatches, request.chunks
    rounds = max(1, microbatches // ranks)
    if microbatches % rounds:
        raise ScheduleError(
            where="Interleaved1F1B",
            got=f"{microbatches} microbatches on {ranks} ranks",
            expected=f"a multiple of {rounds}, the number of rounds",
        )
    together = microbatches // rounds
    orders = []
    for rank in range(ranks):
        count = microbatches * chunks
        ahead = min(count, (chunks - 1) * together + 2 * (ranks - 1 - rank))

        def action(kind: Kind, step: int, rank: int = rank) -> Action:
            chunk = step // together % chunks
            if kind is not FORWARD:
                chunk = chunks - 1 - chunk
            number = step // (together * chunks) * together + step % together
            return Action(chunk * ranks + rank, kind, number)

        order = [action(FORWARD, step) for step in range(ahead)]
        for step in range(ahead, count):
            order += [action(FORWARD, step), action(FULL, step - ahead)]
        order += [action(FULL, step) for step in range(count - ahead, count)]
        orders.append(tuple(order))
    return tuple(orders)


@SCHEDULES.register("ZBVZeroBubble")
@schedule(chunks=2, split=True)
def zb_v(request: ScheduleRequest) -> tuple[Order, ...]:
    """Return ZBVZeroBubble: two chunks per rank in a V (arXiv:2401.10241).

    It has no bubble where forward and both gradients take equal time. It needs as much memory as 1F1B. The rule assumes
    at least 2 x ranks - 1 microbatches; with fewer, the missing ones are left out.
    """
    ranks, microbatches = request.ranks, request.microbatches
    planned = max(2 * ranks - 1, microbatches)
    orders = []
    for rank in range(ranks):
        there, back = rank, 2 * ranks - 1 - rank
        done: Counts = {}
        order: list[Action] = []

        def add(stage: int, *kinds: Kind, done: Counts = done, order: list[Action] = order) -> None:
            for kind in kinds:
                number = done.get((stage, kind), 0)
                done[stage, kind] = number + 1
                if number < microbatches:
                    order.append(Action(stage, kind, number))

        for _ in range(2 * (ranks - rank) - 1):
            add(there, FORWARD)
        for _ in range(rank):
            add(back, FORWARD)
            add(there, FORWARD)
        for _ in range(ranks - rank):
            add(back, FORWARD, INPUT, WEIGHT)
        while done.get((back, FORWARD), 0) < done[there, FORWARD] or done[there, FORWARD] < planned:
            if done[there, FORWARD] < planned:
                add(there, FORWARD)
            add(there, INPUT, WEIGHT)
            add(back, FORWARD, INPUT, WEIGHT)
        for _ in range(rank):
            add(there, INPUT)
            add(back, INPUT)
        for _ in range(ranks - rank):
            add(there, INPUT, WEIGHT)
        for stage in (back, there):
            while done[stage, WEIGHT] < done[stage, INPUT]:
                add(stage, WEIGHT)
        orders.append(tuple(order))
    return tuple(orders)

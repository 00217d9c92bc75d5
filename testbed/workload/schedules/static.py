"""Schedules with a fixed order, independent of times. Each returns the order of every rank of a pipeline.

Stages are assigned to ranks round-robin (loops), or forward and back (V). Orders and names are those of PyTorch's
torch.distributed.pipelining.schedules, if it has the schedule.
"""

from __future__ import annotations

from collections.abc import Callable

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
    """Return GPipe: all forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965)."""
    return _chunk_by_chunk(request)


@SCHEDULES.register("LoopedBFS")
@schedule(chunks=None)
def looped_bfs(request: ScheduleRequest) -> tuple[Order, ...]:
    """Return looped BFS: all microbatches of a chunk before the next chunk (Lamy-Poirier 2023, arXiv:2211.05953)."""
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
    """Return 1F1B: the fewest microbatches in flight that keep ranks busy (Narayanan et al. 2021, arXiv:2104.04473)."""
    ranks, microbatches = request.ranks, request.microbatches

    def order(rank: int) -> Order:
        def action(kind: Kind, step: int) -> Action:
            return Action(rank, kind, step)

        return _one_forward_one_backward(microbatches, min(microbatches, ranks - rank) - 1, action)

    return tuple(map(order, range(ranks)))


def _one_forward_one_backward(count: int, ahead: int, action: Callable[[Kind, int], Action]) -> Order:
    """Return `ahead` forwards, then forward and backward alternately, then the remaining backwards."""
    warm_up = [action(FORWARD, step) for step in range(ahead)]
    steady = [
        pair for step in range(ahead, count) for pair in (action(FORWARD, step), action(FULL, step - ahead))
    ]
    return (*warm_up, *steady, *(action(FULL, step) for step in range(count - ahead, count)))


@SCHEDULES.register("Interleaved1F1B")
@schedule(chunks=None)
def interleaved_1f1b(request: ScheduleRequest) -> tuple[Order, ...]:
    """Return 1F1B with `chunks` stages per rank (arXiv:2104.04473, section 2.2); may raise ScheduleError.

    Microbatches run in rounds of `ranks`, or more if they do not divide evenly, as in PyTorch.
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
    count = microbatches * chunks

    def order(rank: int) -> Order:
        def action(kind: Kind, step: int) -> Action:
            chunk = step // together % chunks
            if kind is not FORWARD:
                chunk = chunks - 1 - chunk
            number = step // (together * chunks) * together + step % together
            return Action(chunk * ranks + rank, kind, number)

        ahead = min(count, (chunks - 1) * together + 2 * (ranks - 1 - rank))
        return _one_forward_one_backward(count, ahead, action)

    return tuple(map(order, range(ranks)))


@SCHEDULES.register("ZBVZeroBubble")
@schedule(chunks=2, split=True)
def zb_v(request: ScheduleRequest) -> tuple[Order, ...]:
    """Return ZBVZeroBubble: two chunks per rank in a V (arXiv:2401.10241).

    It has no bubble if forward and both gradients take equal time. It needs the same memory as 1F1B. The rule assumes
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

"""Schedules that go by what computing and links take: those of CrossPipe (arXiv:2507.00217), and ZBH1."""

from __future__ import annotations

from collections.abc import Iterator

from testbed.workload.schedules.action_times import time_orders
from testbed.workload.schedules.actions import Order
from testbed.workload.schedules.base import SCHEDULES, Costs, ScheduleRequest, schedule
from testbed.workload.schedules.greedy import Rules, greedy

SUB_BLOCKS = 4  # of CrossUDSub: parts of a weight gradient


@SCHEDULES.register("ZBH1")
@schedule(split=True, by_costs=True)
def zbh1(request: ScheduleRequest) -> tuple[Order, ...]:
    """As far ahead as 1F1B, but weight gradients wait as long as rank 0's memory would do on every rank."""
    free = Costs(request.costs.forward_s, request.costs.input_s, request.costs.weight_s)
    rules = Rules((request.ranks,) * request.ranks, request.nearer)
    return greedy(request.loop, request.microbatches, free, rules)


@SCHEDULES.register("CrossUD")
@schedule(split=True, by_costs=True)
def cross_ud(request: ScheduleRequest) -> tuple[Order, ...]:
    """One stage per rank, memory in multiples of 1F1B's."""
    return _cross_ud(request, 1)


@SCHEDULES.register("CrossUDSub")
@schedule(split=True, by_costs=True)
def cross_ud_sub(request: ScheduleRequest) -> tuple[Order, ...]:
    """The same with weight gradients in SUB_BLOCKS parts, which fill shorter bubbles."""
    return _cross_ud(request, SUB_BLOCKS)


@SCHEDULES.register("CrossWave")
@schedule(chunks=2, split=True, by_costs=True)
def cross_wave(request: ScheduleRequest) -> tuple[Order, ...]:
    """Two stages per rank, there and back.

    How many places of its memory a rank's first stage leaves to its second is played out: over long ways one is too
    few, as a microbatch on its way back then waits for one on its way there.
    """
    room = max(2, round(2 * request.memory * request.ranks))  # a stage is half of what it is elsewhere
    return min(_waves(request, room), key=lambda wave: wave[0])[1]


def _waves(request: ScheduleRequest, room: int) -> Iterator[tuple[float, tuple[Order, ...]]]:
    """(step time, orders) with more and more places left; one alone never comes to a stop."""
    owners = request.there_and_back
    for spared in range(1, max(2, min(room, request.ranks + 1))):
        rules = Rules((room,) * request.ranks, spared=spared)
        orders = greedy(owners, request.microbatches, request.costs, rules)
        timed = time_orders(owners, orders, request.costs)
        if timed is not None and sum(map(len, orders)) == 3 * len(owners) * request.microbatches:
            yield timed.step_s, orders


def _cross_ud(request: ScheduleRequest, parts: int) -> tuple[Order, ...]:
    room = tuple(max(1, round(request.memory * slots)) for slots in request.nearer)
    return greedy(request.loop, request.microbatches, request.costs, Rules(room, parts=parts))

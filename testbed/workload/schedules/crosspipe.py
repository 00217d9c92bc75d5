"""Schedules that depend on compute and link times: those of CrossPipe (arXiv:2507.00217), and ZBH1."""

from __future__ import annotations

from collections.abc import Iterator

from testbed.workload.schedules.action_times import time_orders
from testbed.workload.schedules.actions import Order
from testbed.workload.schedules.base import SCHEDULES, Costs, ScheduleRequest, schedule
from testbed.workload.schedules.greedy import Limits, greedy

SUB_BLOCKS = 4  # parts of a weight gradient in CrossUDSub


@SCHEDULES.register("ZBH1")
@schedule(split=True, by_costs=True)
def zbh1(request: ScheduleRequest) -> tuple[Order, ...]:
    """Return ZBH1: as far ahead as 1F1B, with weight gradients delayed as far as memory allows.

    Every rank may use as much memory as rank 0 under 1F1B.
    """
    free = Costs(request.costs.forward_s, request.costs.input_s, request.costs.weight_s)
    limits = Limits((request.ranks,) * request.ranks, request.in_flight_1f1b)
    return greedy(request.loop, request.microbatches, free, limits)


@SCHEDULES.register("CrossUD")
@schedule(split=True, by_costs=True)
def cross_ud(request: ScheduleRequest) -> tuple[Order, ...]:
    """Return CrossUD: one stage per rank, memory in multiples of 1F1B's."""
    return _cross_ud(request, 1)


@SCHEDULES.register("CrossUDSub")
@schedule(split=True, by_costs=True)
def cross_ud_sub(request: ScheduleRequest) -> tuple[Order, ...]:
    """Return CrossUD with weight gradients in SUB_BLOCKS parts, which fill shorter bubbles."""
    return _cross_ud(request, SUB_BLOCKS)


@SCHEDULES.register("CrossWave")
@schedule(chunks=2, split=True, by_costs=True)
def cross_wave(request: ScheduleRequest) -> tuple[Order, ...]:
    """Return CrossWave: two stages per rank in a V.

    How much of a rank's memory the first stage leaves to the second is found by simulation. With long delays, one place
    is too few: a microbatch on its way back then waits for one on its way forward.
    """
    max_alive = max(2, round(2 * request.memory * request.ranks))  # a stage is half of what it is elsewhere
    return min(_waves(request, max_alive), key=lambda wave: wave[0])[1]


def _waves(request: ScheduleRequest, max_alive: int) -> Iterator[tuple[float, tuple[Order, ...]]]:
    """Yield step time and orders for more and more reserved places; one reserved place never deadlocks."""
    owners = request.there_and_back
    for reserved in range(1, max(2, min(max_alive, request.ranks + 1))):
        limits = Limits((max_alive,) * request.ranks, reserved=reserved)
        orders = greedy(owners, request.microbatches, request.costs, limits)
        timed = time_orders(owners, orders, request.costs)
        if timed is not None and sum(map(len, orders)) == 3 * len(owners) * request.microbatches:
            yield timed.step_s, orders


def _cross_ud(request: ScheduleRequest, parts: int) -> tuple[Order, ...]:
    max_alive = tuple(max(1, round(request.memory * slots)) for slots in request.in_flight_1f1b)
    return greedy(request.loop, request.microbatches, request.costs, Limits(max_alive, parts=parts))

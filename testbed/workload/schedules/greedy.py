"""Greedy list scheduling: each free rank takes the best ready action, with compute and link times simulated.

The module has CrossPipe's dynamic schedules (arXiv:2507.00217), as we understand the paper. ZBH1 (Qi et al. 2023, "Zero
Bubble Pipeline Parallelism", arXiv:2401.10241) is the same rule with links that take no time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from testbed.workload.schedules.action_times import time_orders
from testbed.workload.schedules.actions import FORWARD, INPUT, WEIGHT, Action, Kind, Order
from testbed.workload.schedules.base import SCHEDULES, Costs, ScheduleRequest, schedule

SUB_BLOCKS = 4  # parts of a weight gradient in CrossUDSub

# stage (negative for forward), microbatch, part: later stages first, since they finish sooner and free memory
Place = tuple[int, int, int]


@dataclass
class _Rank:
    """The state of one rank.

    Attributes:
        max_alive: Number of activations that it may keep.
        ahead: Number of forwards by which it may be ahead of its backwards.
        incoming: Actions whose input is in flight, by arrival time.
        ready: Ready actions by class, with the best first. Classes are forward of stages that reserve slots, forward of
            other stages, INPUT and WEIGHT.
    """

    max_alive: int
    ahead: int
    incoming: list[tuple[float, int, Place]] = field(default_factory=list)
    ready: tuple[list[Place], ...] = field(default_factory=lambda: ([], [], [], []))
    order: list[Action] = field(default_factory=list)
    free_s: float = 0.0
    alive: int = 0
    forward: int = 0
    started: bool = False
    last: Kind = WEIGHT


_RESERVING, _PLAIN, _INPUT, _WEIGHT = range(4)


@dataclass(frozen=True)
class Limits:
    """Limits of a rank.

    Attributes:
        max_alive: Number of microbatches x stages whose activations each rank may keep until their weight gradients are
            done.
        ahead: Number of forwards by which each rank may be ahead of its backwards, if that is less.
        parts: Parts of a weight gradient.
        reserved: Activation slots that the first of several stages must leave free, so that started microbatches can
            finish.
    """

    max_alive: tuple[int, ...]
    ahead: tuple[int, ...] = ()
    parts: int = 1
    reserved: int = 1


def greedy(owners: Sequence[int], microbatches: int, costs: Costs, limits: Limits) -> tuple[Order, ...]:
    """Return the order of every rank; `owners` has the rank of each stage.

    A free rank takes a ready action: forward until its first backward arrives, then forward and backward alternately.
    It takes weight gradients when memory is full, or nothing else is ready.
    """
    return _Simulation(owners, microbatches, costs, limits).run()


class _Simulation:
    def __init__(self, owners: Sequence[int], microbatches: int, costs: Costs, limits: Limits) -> None:
        self.owners, self.costs, self.limits = owners, costs, limits
        self.ranks = [
            _Rank(max_alive, limits.ahead[number] if limits.ahead else max_alive)
            for number, max_alive in enumerate(limits.max_alive)
        ]
        self.link_free: dict[tuple[int, int], float] = {}
        self.moments: list[float] = [0.0]
        self.reserving = {
            min(mine)
            for number in range(len(self.ranks))
            if len(mine := [stage for stage, owner in enumerate(owners) if owner == number]) > 1
        }
        for number in range(microbatches):
            self._offer(FORWARD, 0, number, 0.0)

    def run(self) -> tuple[Order, ...]:
        """Run until no rank has anything to do."""
        moments = self.moments
        while moments:
            now_s = heapq.heappop(moments)
            while moments and moments[0] == now_s:
                heapq.heappop(moments)
            for rank in self.ranks:
                if rank.free_s <= now_s and (action_class := self._choose(rank, now_s)) is not None:
                    self._start(rank, action_class, now_s)
        return tuple(tuple(rank.order) for rank in self.ranks)

    def _choose(self, rank: _Rank, now_s: float) -> int | None:
        """Return the class of the next action."""
        incoming, ready = rank.incoming, rank.ready
        while incoming and incoming[0][0] <= now_s:
            _, action_class, place = heapq.heappop(incoming)
            heapq.heappush(ready[action_class], place)
        forward: int | None = None
        free_places = rank.max_alive - rank.alive
        reserving, plain = ready[_RESERVING], ready[_PLAIN]
        if rank.forward < rank.ahead and free_places > 0:
            if plain:
                forward = _PLAIN
            if reserving and free_places > self.limits.reserved and (not plain or reserving[0] < plain[0]):
                forward = _RESERVING
        back = _INPUT if ready[_INPUT] else None
        weight = _WEIGHT if ready[_WEIGHT] else None
        full = forward is None and (reserving or plain)
        wanted: tuple[int | None, ...] = (forward, back, weight)
        if rank.started and full and weight is not None:  # prefer the action that frees memory
            wanted = (weight, back) if rank.last is INPUT else (back, weight)
        elif rank.started and rank.last is FORWARD:
            wanted = (back, forward, weight)
        for own in wanted:
            if own is not None:
                return own
        return None

    def _start(self, rank: _Rank, action_class: int, now_s: float) -> None:
        stage, microbatch, part = heapq.heappop(rank.ready[action_class])
        if action_class in (_RESERVING, _PLAIN):
            kind, stage, parts = FORWARD, -stage, 1
        elif action_class == _INPUT:
            kind, parts = INPUT, 1
        else:
            kind, parts = WEIGHT, self.limits.parts
        rank.order.append(Action(stage, kind, microbatch, part, parts))
        end_s = now_s + self.costs.seconds(kind) / parts
        rank.free_s, rank.last = end_s, kind
        heapq.heappush(self.moments, end_s)
        if kind is FORWARD:
            rank.alive += 1
            rank.forward += 1
            if stage + 1 < len(self.owners):
                self._pass_on(stage, FORWARD, stage + 1, microbatch, end_s)
            else:
                self._offer(INPUT, stage, microbatch, end_s)
        elif kind is INPUT:
            rank.started = True
            rank.forward -= 1
            for number in range(self.limits.parts):
                self._offer(WEIGHT, stage, microbatch, end_s, number)
            if stage:
                self._pass_on(stage, INPUT, stage - 1, microbatch, end_s)
        elif part == parts - 1:
            rank.alive -= 1

    def _pass_on(self, stage: int, kind: Kind, target: int, microbatch: int, end_s: float) -> None:
        here, there = self.owners[stage], self.owners[target]
        if here != there:
            latency_s, busy_s = self.costs.hop(here, there)
            sent_s = max(end_s, self.link_free.get((here, there), 0.0)) + busy_s
            self.link_free[here, there] = sent_s
            end_s = sent_s + latency_s
        self._offer(kind, target, microbatch, end_s)

    def _offer(self, kind: Kind, stage: int, microbatch: int, since_s: float, part: int = 0) -> None:
        if kind is FORWARD:
            action_class = _RESERVING if stage in self.reserving else _PLAIN
        else:
            action_class = _INPUT if kind is INPUT else _WEIGHT
        place = (-stage if kind is FORWARD else stage), microbatch, part
        heapq.heappush(self.ranks[self.owners[stage]].incoming, (since_s, action_class, place))
        heapq.heappush(self.moments, since_s)


@SCHEDULES.register("ZBH1")
@schedule(split=True, by_costs=True)
def zbh1(request: ScheduleRequest) -> tuple[Order, ...]:
    """Return ZBH1: as far ahead as 1F1B, with weight gradients delayed as long as memory allows.

    Every rank may use as much memory as rank 0 under 1F1B.
    """
    free = Costs(request.costs.forward_s, request.costs.input_s, request.costs.weight_s)
    limits = Limits((request.ranks,) * request.ranks, request.in_flight_1f1b)
    return greedy(request.loop, request.microbatches, free, limits)


@SCHEDULES.register("CrossUD")
@schedule(split=True, by_costs=True)
def cross_ud(request: ScheduleRequest) -> tuple[Order, ...]:
    """Return CrossUD: one stage per rank, with memory in multiples of 1F1B's."""
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

    Simulation determines how much of a rank's memory the first stage leaves to the second. With long delays, one slot
    is too few: a microbatch on its way back then waits for one on its way forward.
    """
    max_alive = max(2, round(2 * request.memory * request.ranks))  # a stage is half as large as elsewhere
    return min(_waves(request, max_alive), key=lambda wave: wave[0])[1]


def _waves(request: ScheduleRequest, max_alive: int) -> Iterator[tuple[float, tuple[Order, ...]]]:
    """Yield step time and orders for increasing numbers of reserved slots; one reserved slot never deadlocks."""
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

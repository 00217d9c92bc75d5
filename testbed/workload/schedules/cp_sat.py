"""A pipeline's step as a job-shop problem for OR-Tools' CP-SAT: the shortest makespan's order, and a lower bound.

Jobs are microbatches; machines are ranks and the links between them. All microbatches are equal. So, without loss of
generality, the k-th forward, input gradient and weight gradient of a stage are those of the k-th microbatch: any other
order becomes such an order when microbatches are renamed. With one stage per rank, memory becomes a precedence
constraint, too: forward k + room starts after weight gradient k has ended.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from testbed.workload.schedules.action_times import successor, time_orders
from testbed.workload.schedules.actions import FORWARD, FULL, INPUT, WEIGHT, Action, Order
from testbed.workload.schedules.base import Costs

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar

UNITS = 2000  # units of time per forward pass of a stage; times are rounded down
WORKERS = 4  # interleaved searches, so that the result depends neither on the machine nor on its load
INTERLEAVE_BATCH = 40  # number of their turns between exchanges of what they have learned


@dataclass(frozen=True)
class JobShop:
    """The scheduling problem.

    Attributes:
        owners: Rank of each stage.
        microbatches: Number of microbatches.
        costs: Times of stages and links.
        room: Activations that a rank may keep.
    """

    owners: tuple[int, ...]
    microbatches: int
    costs: Costs
    room: int

    @property
    def ranks(self) -> int:
        """The number of ranks of the pipeline."""
        return max(self.owners) + 1

    def step_s(self, orders: Sequence[Order]) -> float:
        """Return the time that orders take; infinite if they deadlock."""
        timed = time_orders(self.owners, orders, self.costs)
        return math.inf if timed is None else timed.step_s


@dataclass(frozen=True)
class Improvement:
    """The result of a search: orders, and a proven lower bound on the step time."""

    orders: tuple[Order, ...]
    bound_s: float


def canonical_orders(orders: Sequence[Order]) -> tuple[Order, ...]:
    """Return orders with microbatches numbered as each stage runs them, B split into I and W, and parts merged."""
    found = []
    for order in orders:
        seen: dict[tuple[int, object], int] = {}
        actions: list[Action] = []
        for action in order:
            if action.part < action.parts - 1:
                continue
            for kind in (INPUT, WEIGHT) if action.kind is FULL else (action.kind,):
                number = seen.get((action.stage, kind), 0)
                seen[action.stage, kind] = number + 1
                actions.append(Action(action.stage, kind, number))
        found.append(tuple(actions))
    return tuple(found)


def improve(
    shop: JobShop,
    orders: Sequence[Order],
    effort: float,
    free: Collection[Action] = (),
    beat_s: float = math.inf,
) -> Improvement:
    """Return a better order, or the given one.

    Args:
        shop: The problem.
        orders: Orders to start from.
        effort: CP-SAT's deterministic time, roughly in core seconds.
        free: Actions whose position in their rank's order may change; empty for all. The bound is valid only if it is
            empty.
        beat_s: The search stops once the bound reaches this time.
    """
    return _Model(shop, canonical_orders(orders), free).solve(effort, beat_s)


class _Model:
    def __init__(self, shop: JobShop, orders: tuple[Order, ...], free: Collection[Action]) -> None:
        from ortools.sat.python import cp_model  # noqa: PLC0415 (takes half a second, and no other schedule needs it)

        self.cp = cp_model
        self.model: CpModel = cp_model.CpModel()
        self.shop, self.orders, self.free = shop, orders, frozenset(free)
        self.unit_s = max(shop.costs.forward_s, shop.costs.input_s, 1e-9) / UNITS
        costs = shop.costs
        down = self._down
        self.units = Costs(
            down(costs.forward_s),
            down(costs.input_s),
            down(costs.weight_s),
            tuple(map(down, costs.latency_s)),
            tuple(map(down, costs.busy_s)),
            tuple((down(f), down(i), down(w)) for f, i, w in costs.stages),
        )
        timed = time_orders(shop.owners, orders, self.units)
        assert timed is not None
        self.hint, self.most = timed.starts_s, int(timed.step_s)
        self.starts: dict[Action, IntVar] = {}
        self.sent: dict[tuple[int, int], list[tuple[Action, Any, int]]] = {}
        self.end = self.model.new_int_var(0, self.most, "end")
        self._actions()
        self._messages()
        for rank in range(shop.ranks):
            self._one_at_a_time(rank)
            self._memory(rank)
        for messages in self.sent.values():
            self._link(messages)
        self.model.minimize(self.end)

    def _down(self, seconds: float) -> int:
        """Round down to units, so that proofs of impossibility remain valid."""
        return int(seconds / self.unit_s + 1e-6)

    def solve(self, effort: float, beat_s: float) -> Improvement:
        solver = self.cp.CpSolver()
        if math.isfinite(beat_s):
            beat = beat_s / self.unit_s
            solver.best_bound_callback = lambda bound: solver.stop_search() if bound >= beat else None
        parameters = solver.parameters
        parameters.max_deterministic_time = effort
        parameters.num_workers = WORKERS
        parameters.interleave_batch_size = INTERLEAVE_BATCH
        parameters.interleave_search = True
        parameters.linearization_level = 0
        parameters.random_seed = 1
        parameters.catch_sigint_signal = False  # it would return an unfinished search as the result
        with ThreadPoolExecutor(1) as executor:  # so that Ctrl-C interrupts at once
            try:
                status = executor.submit(solver.solve, self.model).result()
            except BaseException:
                solver.stop_search()
                raise
        if status not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            return Improvement(self.orders, 0.0)
        orders: list[list[Action]] = [[] for _ in range(self.shop.ranks)]
        # at equal start times, gradients of zero duration come after the actions on which they depend
        for action in sorted(self.starts, key=lambda a: (solver.value(self.starts[a]), _sort_key(a))):
            orders[self.shop.owners[action.stage]].append(action)
        bound_s = solver.best_objective_bound * self.unit_s
        return Improvement(tuple(map(tuple, orders)), bound_s)

    def _actions(self) -> None:
        model, shop = self.model, self.shop
        for stage in range(len(shop.owners)):
            for kind in (FORWARD, INPUT, WEIGHT):
                for number in range(shop.microbatches):
                    action = Action(stage, kind, number)
                    start = model.new_int_var(0, self.most, str(action))
                    model.add_hint(start, int(self.hint[action]))
                    self.starts[action] = start
                    if number:
                        before = Action(stage, kind, number - 1)
                        model.add(start >= self._ended(before))
                    if kind is WEIGHT:
                        model.add(start >= self._ended(Action(stage, INPUT, number)))
                    model.add(self.end >= self._ended(action))

    def _ended(self, action: Action) -> Any:
        return self.starts[action] + int(self.units.of(action))

    def _messages(self) -> None:
        owners = self.shop.owners
        for action in self.starts:
            after = successor(action, len(owners))
            if after is None:
                continue
            stage, kind = after
            target = self.starts[Action(stage, kind, action.microbatch)]
            pair = owners[action.stage], owners[stage]
            if pair[0] == pair[1]:
                self.model.add(target >= self._ended(action))
                continue
            latency, busy = map(int, self.units.hop(*pair))
            if not busy:
                self.model.add(target >= self._ended(action) + latency)
                continue
            sent = self.model.new_int_var(0, self.most, f"{action} sent")
            self.model.add(sent >= self._ended(action))
            self.model.add(target >= sent + busy + latency)
            self.sent.setdefault(pair, []).append((action, sent, busy))

    def _link(self, messages: Sequence[tuple[Action, Any, int]]) -> None:
        """Allow one message at a time; messages of fixed actions keep their order."""
        intervals = [self.model.new_fixed_size_interval_var(sent, busy, "") for _, sent, busy in messages]
        self.model.add_no_overlap(intervals)
        if self.free:
            in_order = sorted(messages, key=lambda message: self.hint[message[0]] + self.units.of(message[0]))
            for (one, sent, busy), (other, later, _) in pairwise(in_order):
                if not {one, other} <= self.free:
                    self.model.add(later >= sent + busy)

    def _one_at_a_time(self, rank: int) -> None:
        order = self.orders[rank]
        moving = [action for action in order if not self.free or action in self.free]
        self.model.add_no_overlap(
            [
                self.model.new_fixed_size_interval_var(self.starts[action], int(self.units.of(action)), "")
                for action in moving
            ]
        )
        if not self.free:
            return
        fixed: Action | None = None
        since: list[Action] = []  # free actions after the last fixed one
        for action in order:
            if fixed is not None:
                self.model.add(self.starts[action] >= self._ended(fixed))
            if action in self.free:
                since.append(action)
                continue
            for before in since:
                self.model.add(self.starts[action] >= self._ended(before))
            fixed, since = action, []

    def _memory(self, rank: int) -> None:
        shop = self.shop
        own = [stage for stage, owner in enumerate(shop.owners) if owner == rank]
        if len(own) == 1:
            for number in range(shop.microbatches - shop.room):
                freed = self._ended(Action(own[0], WEIGHT, number))
                self.model.add(self.starts[Action(own[0], FORWARD, number + shop.room)] >= freed)
            return
        alive = []
        for stage in own:
            for number in range(shop.microbatches):
                start = self.starts[Action(stage, FORWARD, number)]
                last = Action(stage, WEIGHT, number)
                lasts = self.model.new_int_var(0, self.most, "")
                alive.append(self.model.new_interval_var(start, lasts, self._ended(last), ""))
        self.model.add_cumulative(alive, [1] * len(alive), shop.room)


def _sort_key(action: Action) -> tuple[int, int]:
    return (FORWARD, INPUT, WEIGHT).index(action.kind), action.microbatch

"""Dispatch of inference requests to servers during a simulation, as the requests arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from testbed.workload.dependency_tracker import DependencyTracker
from testbed.workload.dispatch import Dispatching, ExecutedPlan, GrowingPlan, Sending
from testbed.workload.plan import JobPlan, Operation


class Simulates(Protocol):
    """A simulation that can extend the plans of its ranks."""

    plan: JobPlan
    now_s: float
    trackers: list[DependencyTracker]

    def extend(self, rank: int, operations: Sequence[Operation]) -> None:
        """Append operations to a rank's plan."""

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Run the action after a delay."""


class RequestDispatcher:
    """Assigns requests to servers as they arrive and extends the ranks' plans; control messages take no time."""

    def __init__(self, simulation: Simulates, dispatching: Dispatching) -> None:
        self.simulation, self.dispatching = simulation, dispatching
        self.dispatcher, self.growing = dispatching.dispatcher(), GrowingPlan(dispatching)

    def ended(self, rank: int, index: int) -> None:
        """Handle the end of an operation: a closed batch or an answer."""
        if rank != self.dispatching.entry:
            return
        now_s = self.simulation.now_s
        if index < len(self.dispatching.sizes):  # a batch is closed
            self._dispatch(self.dispatcher.send(index, now_s))
        elif index in self.growing.answered:
            self.dispatcher.answered(self.growing.answered[index], now_s)

    def _dispatch(self, sending: Sending) -> None:
        key, now_s = self.dispatching.key(sending), self.simulation.now_s
        for rank in self.dispatching.ranks(key):
            plan = self.simulation.trackers[rank].plan
            part = self.growing.part(key, sending.number, rank, plan)
            self.simulation.extend(rank, part)
        if (due_s := self.dispatcher.rules.retry_s) is not None:
            self.simulation.call_later(due_s, lambda: self._retry(now_s + due_s))

    def _retry(self, due_s: float) -> None:
        for sending in self.dispatcher.due(max(due_s, self.simulation.now_s)):
            self._dispatch(sending)

    def carried(self) -> ExecutedPlan:
        """Return the plan and decisions of the finished step."""
        simulation = self.simulation
        plan = replace(simulation.plan, ranks=tuple(tuple(own.plan) for own in simulation.trackers))
        return ExecutedPlan(plan, self.dispatcher.found, self.growing.answers)

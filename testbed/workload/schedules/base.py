"""The registry of pipeline schedules: functions that map a request to every rank's order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from testbed.plugins import PluginError, Registry, attribute_errors
from testbed.workload.schedules.actions import (
    Action,
    Kind,
    Order,
    ScheduleError,
    check_orders,
    next_stage,
    seconds_of,
)


@dataclass(frozen=True)
class Costs:
    """Seconds of a stage for one microbatch, and of a message between ranks r and r + 1 of the pipeline.

    Attributes:
        forward_s: Time of the forward action.
        input_s: Time of the gradients of the input.
        weight_s: Time of the gradients of the weights.
        latency_s: Latency of each hop.
        busy_s: Time on each hop's link, during which nothing else is sent in that direction.
        stages: Forward, input and weight seconds of each stage if they differ; the figures above are then those of a
            middle stage.
    """

    forward_s: float
    input_s: float
    weight_s: float
    latency_s: tuple[float, ...] = ()
    busy_s: tuple[float, ...] = ()
    stages: tuple[tuple[float, float, float], ...] = ()

    def seconds(self, kind: Kind) -> float:
        """Return the seconds of a kind, on one stage for one microbatch."""
        return seconds_of(kind, (self.forward_s, self.input_s, self.weight_s))

    def of(self, action: Action) -> float:
        """Return the seconds of an action on its own stage."""
        if not self.stages:
            return self.seconds(action.kind) / action.parts
        return seconds_of(action.kind, self.stages[action.stage]) / action.parts

    def hop(self, here: int, there: int) -> tuple[float, float]:
        """Return latency and time on the link between two neighbours in the pipeline."""
        number = min(here, there)
        return (
            self.latency_s[number] if self.latency_s else 0.0,
            self.busy_s[number] if self.busy_s else 0.0,
        )


@dataclass(frozen=True)
class ScheduleRequest:
    """A request for a schedule.

    Attributes:
        ranks: Ranks of the pipeline, numbered from 0 at the model's first layers.
        microbatches: Microbatches of a step, numbered from 0.
        chunks: Stages per rank.
        memory: Activations that a rank may keep, in multiples of the maximum that a rank keeps under 1F1B.
        costs: Emulated seconds of a stage, and of messages between ranks.
        effort: Budget of a search, roughly in core seconds; it is counted, not timed, so that every machine finds the
            same order.
        beat_s: Step time already found with another number of stages; a search that cannot beat it may stop.
        named: Costs that named schedules would use, for a search that starts from them.
    """

    ranks: int
    microbatches: int
    chunks: int
    memory: float
    costs: Costs
    effort: float = 1.0
    beat_s: float = math.inf
    named: Costs | None = None

    @property
    def loop(self) -> list[int]:
        """The rank of every stage if stages are assigned round-robin."""
        return list(range(self.ranks)) * self.chunks

    @property
    def there_and_back(self) -> list[int]:
        """The rank of every stage for two stages per rank in a V: the last rank has two adjacent stages."""
        return [*range(self.ranks), *reversed(range(self.ranks))]

    @property
    def in_flight_1f1b(self) -> tuple[int, ...]:
        """The number of microbatches in flight on each rank in 1F1B."""
        return tuple(range(self.ranks, 0, -1))


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        orders: Every rank's order.
        step_s: Time from the start of the first action to the end of the last.
        bounds_s: By stages per rank, a lower bound on the step time if weight gradients are not divided.
        known: Name and step time of each named schedule that fits, fastest first.
    """

    orders: tuple[Order, ...]
    step_s: float
    bounds_s: Mapping[int, float]
    known: tuple[tuple[str, float], ...] = ()

    @property
    def bound_s(self) -> float:
        """The lower bound over all numbers of stages per rank."""
        return min(self.bounds_s.values())


MakeOrders = Callable[[ScheduleRequest], Sequence[Order] | SearchResult]


@dataclass(frozen=True)
class ScheduleEntry:
    """A schedule in the registry: the function that makes its orders, and its properties known before the call.

    Attributes:
        make: Function that maps a request to every rank's order.
        chunks: Stages per rank; None if the scenario decides.
        split: Whether backward is two actions, gradients of inputs (I) and of weights (W).
        by_costs: Whether the order depends on `request.costs`.
        searched: Whether a search over the times of all stages and hops finds the order.
    """

    make: MakeOrders
    chunks: int | None = 1
    split: bool = False
    by_costs: bool = False
    searched: bool = False

    def takes(self, chunks: int) -> bool:
        """Return whether the schedule supports this number of stages per rank; 1 is the default and always fits."""
        return self.chunks is None or chunks in (1, self.chunks)

    @property
    def source(self) -> tuple[str, int]:
        """The file and line of the function."""
        code = getattr(self.make, "__code__", None)
        return (code.co_filename, code.co_firstlineno) if code else (self.make.__module__, 1)


def schedule(
    *, chunks: int | None = 1, split: bool = False, by_costs: bool = False, searched: bool = False
) -> Callable[[MakeOrders], ScheduleEntry]:
    """Register a function that makes a schedule's orders; the arguments are those of `ScheduleEntry`."""
    return partial(ScheduleEntry, chunks=chunks, split=split, by_costs=by_costs, searched=searched)


def _check(thing: object) -> str | None:
    if isinstance(thing, ScheduleEntry) or (callable(thing) and not isinstance(thing, type)):
        return None
    return "a function from a ScheduleRequest to the order of every rank"


SCHEDULES: Registry[ScheduleEntry | MakeOrders] = Registry(
    "schedule", "testbed.workload.schedules", "testbed.schedules", _check
)
"""All named schedules. Each registers where it is defined: `@SCHEDULES.register("1F1B")` above `@schedule()`."""


def find_schedule(name: str) -> ScheduleEntry:
    """Return a schedule by name or FILE.py:NAME; a plain function has one stage per rank; may raise PluginError."""
    found = SCHEDULES.find(name)
    return found if isinstance(found, ScheduleEntry) else ScheduleEntry(found)


@dataclass(frozen=True)
class Schedule:
    """Every rank's order.

    Attributes:
        name: Name of the schedule.
        orders: Every rank's order.
        owners: Rank of every stage.
        microbatches: Number of microbatches.
        source: File and line of the plug-in that made it.
        searched: Result of the search that found it, if any.
    """

    name: str
    orders: tuple[Order, ...]
    owners: tuple[int, ...]
    microbatches: int
    source: tuple[str, int] | None = None
    searched: SearchResult | None = field(default=None, compare=False)

    @cached_property
    def passed_on(self) -> tuple[Mapping[Action, int], ...]:
        """For each rank, its actions whose result another rank's stage needs, mapped to that stage."""
        found: list[dict[Action, int]] = []
        for rank, order in enumerate(self.orders):
            targets = [(action, next_stage(action, len(self.owners))) for action in order]
            found.append({action: to for action, to in targets if to is not None and self.owners[to] != rank})
        return tuple(found)

    @cached_property
    def arrivals(self) -> tuple[Sequence[tuple[Action, int]], ...]:
        """For each rank, (action, stage) in order: another rank's action, and the local stage that needs its result."""
        found: tuple[list[tuple[Action, int]], ...] = tuple([] for _ in self.orders)
        for passed_on in self.passed_on:
            for action, target in passed_on.items():
                found[self.owners[target]].append((action, target))
        return found

    @cached_property
    def content_hash(self) -> int:
        """A hash of the orders, which have thousands of actions."""
        return hash((self.orders, self.owners, self.microbatches))


def make_schedule(name: str, request: ScheduleRequest) -> Schedule:
    """Return a schedule by name, or from a file.

    Args:
        name: A schedule of SCHEDULES, or FILE.py:NAME.
        request: The request; a schedule may have its own number of stages per rank.

    Raises:
        ScheduleError: If the result does not fit the request, or is not a schedule.
        PluginError: If the function raises an exception; the error names the line.
    """
    entry = find_schedule(name)
    if not entry.takes(request.chunks):
        raise ScheduleError(where=name, got=f"{request.chunks} chunks", expected=str(entry.chunks))
    request = replace(request, chunks=entry.chunks or request.chunks)
    with attribute_errors(f"schedule {name}", Path(entry.source[0])):
        made: Any = entry.make(request)
    searched = made if isinstance(made, SearchResult) else None
    if searched is not None:
        made = searched.orders
    own = None if entry.make.__module__.startswith(f"{__package__}.") else entry.source
    try:
        return replace(
            schedule_of(name, _orders(made, request.ranks), request.microbatches),
            source=own,
            searched=searched,
        )
    except ScheduleError as error:
        if own is None:
            raise
        where = f"{own[0]}:{own[1]}: schedule {name.rpartition(':')[2]}"
        raise PluginError(where=where, got=error.found, expected=error.expected) from None


def _orders(made: Any, ranks: int) -> list[Order]:
    """Check that a function returned orders; raise ScheduleError if it did not."""
    expected = f"{ranks} sequences of Actions, one per rank of the pipeline"
    if not isinstance(made, Sequence) or isinstance(made, str):
        raise ScheduleError(got=f"a {type(made).__name__}", expected=expected)
    if len(made) != ranks:
        raise ScheduleError(got=f"orders of {len(made)} ranks", expected=expected)
    for rank, order in enumerate(made):
        if not isinstance(order, Sequence) or isinstance(order, str | Action):
            raise ScheduleError(
                where=f"rank {rank}", got=f"a {type(order).__name__}", expected="a sequence of Actions"
            )
        for action in order:
            if not isinstance(action, Action):
                raise ScheduleError(where=f"rank {rank}", got=repr(action), expected="an Action")
    return [tuple(order) for order in made]


def schedule_of(name: str, orders: Sequence[Order], microbatches: int) -> Schedule:
    """Return given orders as a schedule; raise ScheduleError if they are not valid."""
    return Schedule(name, tuple(orders), check_orders(orders, microbatches), microbatches)

"""What a schedule is: a function from a request to every rank's order, registered where it stands."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from testbed.plugins import PluginError, Registry, attribute_errors
from testbed.workload.schedules.actions import (
    FORWARD,
    INPUT,
    WEIGHT,
    Action,
    Kind,
    Order,
    ScheduleError,
    check_orders,
    next_stage,
)


@dataclass(frozen=True)
class Costs:
    """Seconds of one stage for one microbatch, and of a message between ranks r and r + 1 of the pipeline.

    latency_s, busy_s: of each of those hops; while `busy_s` lasts, nothing else goes in that direction. stages:
    forward, input and weight of each stage, where they differ; the others are then those of one in the middle.
    """

    forward_s: float
    input_s: float
    weight_s: float
    latency_s: tuple[float, ...] = ()
    busy_s: tuple[float, ...] = ()
    stages: tuple[tuple[float, float, float], ...] = ()

    def seconds(self, kind: Kind) -> float:
        """Of one stage for one microbatch."""
        return _of(kind, (self.forward_s, self.input_s, self.weight_s))

    def of(self, action: Action) -> float:
        """Of an action, on its own stage."""
        if not self.stages:
            return self.seconds(action.kind) / action.parts
        return _of(action.kind, self.stages[action.stage]) / action.parts

    def hop(self, here: int, there: int) -> tuple[float, float]:
        """(latency, time on the link) between two neighbours in the pipeline."""
        number = min(here, there)
        return (
            self.latency_s[number] if self.latency_s else 0.0,
            self.busy_s[number] if self.busy_s else 0.0,
        )


def _of(kind: Kind, seconds: tuple[float, float, float]) -> float:
    forward_s, input_s, weight_s = seconds
    if kind is FORWARD:
        return forward_s
    if kind is INPUT:
        return input_s
    return weight_s if kind is WEIGHT else input_s + weight_s


@dataclass(frozen=True)
class ScheduleRequest:
    """What a schedule is for.

    Attributes:
        ranks: Of the pipeline, numbered from 0 at the model's first layers.
        microbatches: Of a step, numbered from 0.
        chunks: Stages per rank.
        memory: What a rank may keep alive of activations, in multiples of the most that one keeps under 1F1B.
        costs: Emulated seconds of a stage and of the messages between ranks.
        effort: How long a search may take, about seconds of a core; counted, so that no machine finds another order.
        beat_s: What has been found with another number of stages: a search that cannot be quicker may end.
        named: Costs that schedules with a name would go by here, for a search that begins with theirs.
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
        """The rank of every stage where stages go round: stage s is rank s mod ranks'."""
        return list(range(self.ranks)) * self.chunks

    @property
    def there_and_back(self) -> list[int]:
        """The rank of every stage where there are two per rank and the last rank's follow each other (a V)."""
        return [*range(self.ranks), *reversed(range(self.ranks))]

    @property
    def nearer(self) -> tuple[int, ...]:
        """How many microbatches rank after rank has under way in 1F1B."""
        return tuple(range(self.ranks, 0, -1))


@dataclass(frozen=True)
class SearchResult:
    """Orders that were searched for.

    Attributes:
        orders: Of every rank.
        step_s: How long they take, from the first action to the end of the last.
        bounds_s: By stages per rank: before when none can end that does not cut weight gradients in parts.
        known: What each schedule with a name that fits takes, the quickest first.
    """

    orders: tuple[Order, ...]
    step_s: float
    bounds_s: Mapping[int, float]
    known: tuple[tuple[str, float], ...] = ()

    @property
    def bound_s(self) -> float:
        """Of all."""
        return min(self.bounds_s.values())


MakeOrders = Callable[[ScheduleRequest], Sequence[Order] | SearchResult]


@dataclass(frozen=True)
class ScheduleEntry:
    """A schedule as the registry has it: what makes its orders, and what must be known before they are made.

    Attributes:
        make: From a request to the order of every rank.
        chunks: Stages per rank; None where the scenario says.
        split: Whether backward comes in two actions, gradients of inputs (I) and of weights (W).
        by_costs: Whether the order depends on `request.costs`.
        searched: Whether the order is searched for, of the times of all stages and hops.
    """

    make: MakeOrders
    chunks: int | None = 1
    split: bool = False
    by_costs: bool = False
    searched: bool = False

    def takes(self, chunks: int) -> bool:
        """Whether it can have so many stages per rank; one says nothing."""
        return self.chunks is None or chunks in (1, self.chunks)

    @property
    def source(self) -> tuple[str, int]:
        """File and line of the function."""
        code = getattr(self.make, "__code__", None)
        return (code.co_filename, code.co_firstlineno) if code else (self.make.__module__, 1)


def schedule(
    *, chunks: int | None = 1, split: bool = False, by_costs: bool = False, searched: bool = False
) -> Callable[[MakeOrders], ScheduleEntry]:
    """Decorate a function that makes a schedule's orders; arguments as ScheduleEntry has them."""

    def made(make: MakeOrders) -> ScheduleEntry:
        return ScheduleEntry(make, chunks, split, by_costs, searched)

    return made


def _check(thing: object) -> str | None:
    if isinstance(thing, ScheduleEntry) or (callable(thing) and not isinstance(thing, type)):
        return None
    return "a function from a ScheduleRequest to the order of every rank"


SCHEDULES: Registry[ScheduleEntry | MakeOrders] = Registry(
    "schedule", "testbed.workload.schedules", "testbed.schedules", _check
)
"""All that have a name. Each registers where it stands: `@SCHEDULES.register("1F1B")` above `@schedule()`."""


def find_schedule(name: str) -> ScheduleEntry:
    """By name, or of a file as FILE.py:NAME; a plain function has one stage per rank. PluginError."""
    found = SCHEDULES.find(name)
    return found if isinstance(found, ScheduleEntry) else ScheduleEntry(found)


@dataclass(frozen=True)
class Schedule:
    """Every rank's order, and the rank of every stage.

    source: file and line of the plug-in that made it. searched: how good it is, where that was searched for.
    """

    name: str
    orders: tuple[Order, ...]
    owners: tuple[int, ...]
    microbatches: int
    source: tuple[str, int] | None = None
    searched: SearchResult | None = field(default=None, compare=False)

    @cached_property
    def passed_on(self) -> tuple[Mapping[Action, int], ...]:
        """By rank, its actions whose result a stage of another rank goes on with, and which one."""
        found: list[dict[Action, int]] = []
        for rank, order in enumerate(self.orders):
            targets = [(action, next_stage(action, len(self.owners))) for action in order]
            found.append({action: to for action, to in targets if to is not None and self.owners[to] != rank})
        return tuple(found)

    @cached_property
    def arrivals(self) -> tuple[Sequence[tuple[Action, int]], ...]:
        """By rank, other ranks' actions whose result one of its stages goes on with, in their order, and which one."""
        found: tuple[list[tuple[Action, int]], ...] = tuple([] for _ in self.orders)
        for passed_on in self.passed_on:
            for action, target in passed_on.items():
                found[self.owners[target]].append((action, target))
        return found

    @cached_property
    def hashed(self) -> int:
        """Of what ranks do, in whose place it can be told apart by: there are thousands of actions."""
        return hash((self.orders, self.owners, self.microbatches))


def make_schedule(
    name: str,
    ranks: int,
    microbatches: int,
    costs: Costs,
    chunks: int = 1,
    memory: float = 1.0,
    effort: float = 0.3,
    beat_s: float = math.inf,
    named: Costs | None = None,
) -> Schedule:
    """One of SCHEDULES, or of a file. costs: of a stage; chunks: stages per rank where the schedule leaves it open.

    effort, beat_s, named: of one that is searched for, as ScheduleRequest has them.

    ScheduleError where it does not fit the request, or is none; PluginError where its function raises, with the line.
    """
    entry = find_schedule(name)
    if not entry.takes(chunks):
        raise ScheduleError(where=name, got=f"{chunks} chunks", expected=str(entry.chunks))
    request = ScheduleRequest(
        ranks, microbatches, entry.chunks or chunks, memory, costs, effort, beat_s, named
    )
    with attribute_errors(f"schedule {name}", Path(entry.source[0])):
        made: Any = entry.make(request)
    searched = made if isinstance(made, SearchResult) else None
    if searched is not None:
        made = searched.orders
    own = None if entry.make.__module__.startswith(f"{__package__}.") else entry.source
    try:
        return replace(schedule_of(name, _orders(made, ranks), microbatches), source=own, searched=searched)
    except ScheduleError as error:
        if own is None:
            raise
        where = f"{own[0]}:{own[1]}: schedule {name.rpartition(':')[2]}"
        raise PluginError(where=where, got=error.found, expected=error.expected) from None


def _orders(made: Any, ranks: int) -> list[Order]:
    """What a function returned, as orders. ScheduleError."""
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
    """Orders from anywhere, as a schedule. ScheduleError where they are none."""
    return Schedule(name, tuple(orders), check_orders(orders, microbatches), microbatches)

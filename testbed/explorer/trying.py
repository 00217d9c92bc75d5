"""Configurations tried on the model, each once, by this process or by several; what is known is not tried again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from testbed.config import Scenario
from testbed.engines import Engine, Processes, Workers
from testbed.explorer.evaluation import Configuration, Evaluation, Infeasible, evaluate
from testbed.garbage import seldom_collected

Tried = Evaluation | Infeasible


@dataclass(frozen=True)
class Standing:
    """How far a search is. planned: how many it means to try, about; best: the quickest so far that fits."""

    done: int
    planned: int
    best: tuple[Configuration, Evaluation] | None


@dataclass
class Tries:
    """Tries configurations of a scenario. known: what they came to, by key; found: told of each that is new.

    engine: by which they are tried.
    """

    scenario: Scenario
    known: dict[str, Tried]
    found: Callable[[Configuration, Tried], None]
    progress: Callable[[Standing], None]
    planned: int
    engine: Engine = field(default_factory=Processes)
    _seen: set[str] = field(default_factory=set)
    _best: tuple[Configuration, Evaluation] | None = None
    _workers: Workers = field(init=False)
    _entered: ExitStack = field(init=False)

    def __enter__(self) -> Tries:
        with ExitStack() as stack:
            stack.enter_context(seldom_collected())
            self._workers = stack.enter_context(self.engine.workers(evaluate, self.scenario))
            self._entered = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        self._entered.__exit__(kind, *rest)

    def all(self, configurations: Sequence[Configuration], *, among: bool = True) -> list[Tried]:
        """What each comes to, in their order. among: whether one of them may be the best so far."""
        fresh = list({one.key: one for one in configurations if one.key not in self.known}.values())
        results: Iterator[Tried] = self._workers.map(fresh)
        found = []
        for one in configurations:
            key = one.key
            if key not in self.known:  # these come in the order of `fresh`
                self.known[key] = next(results)
                self.found(one, self.known[key])
            found.append(self.known[key])
            self._tell(one, self.known[key], among=among)
        return found

    def _tell(self, one: Configuration, tried: Tried, *, among: bool) -> None:
        self._seen.add(one.key)
        quickest_s = self._best[1].step_time_s if self._best else math.inf
        if among and isinstance(tried, Evaluation) and tried.step_time_s < quickest_s:
            self._best = one, tried
        self.progress(Standing(len(self._seen), max(self.planned, len(self._seen)), self._best))

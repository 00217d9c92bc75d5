"""Configurations tried on the model, each once, by this process or by several; what is known is not tried again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from testbed.errors import BadInput
from testbed.gc_control import infrequent_gc
from testbed.prediction.executors import Executor, Processes, Workers
from testbed.prediction.search.evaluation import Configuration, Evaluation, Infeasible, evaluate
from testbed.spec.scenario import Scenario
from testbed.spec.units import time_text

Tried = Evaluation | Infeasible
SELDOM_S = 0.2  # between two words of how many were screened


@dataclass(frozen=True)
class SearchProgress:
    """How far a search is. planned: how many it means to try, about; best: the quickest so far that fits.

    first: the first that fits, of what it is held against, too; least_s: what no step takes less than, by computing
    alone, where that is known; screened: how many the closed form has looked at, while it does.
    """

    done: int
    planned: int
    best: tuple[Configuration, Evaluation] | None
    first: tuple[Configuration, Evaluation] | None = None
    least_s: float | None = None
    screened: int | None = None

    @property
    def doing(self) -> str:
        """What is being done."""
        if self.screened is None:
            return "trying configurations"
        return f"screening by the closed form, {self.screened:,} so far"

    @property
    def least_words(self) -> str:
        """Of the bound; nothing where there is none."""
        return "" if self.least_s is None else f"no less than {time_text(self.least_s)} by computing alone"

    @property
    def best_words(self) -> str:
        """Of the best so far, beside what none gets below."""
        if self.best is None:
            return self.least_words
        least = f" ({self.least_words})" if self.least_words else ""
        return f"best so far {time_text(self.best[1].step_time_s)}{least}"

    @property
    def first_words(self) -> str:
        """Of the first that fits, if one does."""
        if self.first is None:
            return ""
        configuration, tried = self.first
        least = f" ({self.least_words})" if self.least_words else ""
        return (
            f"{str(configuration) or 'the scenario as it is'}, {time_text(tried.step_time_s)} a step{least}"
        )


@dataclass
class Evaluator:
    """Tries configurations of a scenario. known: what they came to, by key; found: told of each that is new.

    engine: by which they are tried; least_s: what no step takes less than, where that is known.
    """

    scenario: Scenario
    known: dict[str, Tried]
    found: Callable[[Configuration, Tried], None]
    progress: Callable[[SearchProgress], None]
    planned: int
    engine: Executor = field(default_factory=Processes)
    least_s: float | None = None
    _seen: set[str] = field(default_factory=set)
    _best: tuple[Configuration, Evaluation] | None = None
    _first: tuple[Configuration, Evaluation] | None = None
    _told_s: float = -math.inf
    _workers: Workers = field(init=False)
    _entered: ExitStack = field(init=False)

    def __enter__(self) -> Evaluator:
        with ExitStack() as stack:
            stack.enter_context(infrequent_gc())
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

    def screened(self, number: int) -> None:
        """So many have been looked at by the closed form, which is told now and then."""
        now_s = time.monotonic()
        if now_s - self._told_s >= SELDOM_S:
            self._told_s = now_s
            self.progress(self._standing(number))

    def _tell(self, one: Configuration, tried: Tried, *, among: bool) -> None:
        self._seen.add(one.key)
        quickest_s = self._best[1].step_time_s if self._best else math.inf
        if isinstance(tried, Evaluation):
            self._first = self._first or (one, tried)
            if among and tried.step_time_s < quickest_s:
                self._best = one, tried
        self.progress(self._standing())

    def _standing(self, screened: int | None = None) -> SearchProgress:
        done = len(self._seen)
        return SearchProgress(done, max(self.planned, done), self._best, self._first, self.least_s, screened)


class NothingFits(BadInput):
    """No configuration of a search fits; the message says which constraint keeps most of them out."""

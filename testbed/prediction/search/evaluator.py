"""Cached evaluation of configurations, in this process or in parallel, with progress reports."""

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
SELDOM_S = 0.2  # interval between progress reports of screening


@dataclass(frozen=True)
class SearchProgress:
    """The progress of a search.

    Attributes:
        done: Number of configurations tried.
        planned: Estimated total number of configurations.
        best: The fastest feasible configuration so far.
        first: The first feasible configuration, including baselines.
        least_s: Lower bound on any step time, from compute alone, if known.
        screened: Number of configurations screened by the closed form so far, during screening.
    """

    done: int
    planned: int
    best: tuple[Configuration, Evaluation] | None
    first: tuple[Configuration, Evaluation] | None = None
    least_s: float | None = None
    screened: int | None = None

    @property
    def doing(self) -> str:
        """The current activity of the search."""
        if self.screened is None:
            return "trying configurations"
        return f"screening by the closed form, {self.screened:,} so far"

    @property
    def least_words(self) -> str:
        """The lower bound as text; empty if unknown."""
        return "" if self.least_s is None else f"at least {time_text(self.least_s)} for compute alone"

    @property
    def best_words(self) -> str:
        """The best configuration so far as text, with the lower bound."""
        if self.best is None:
            return self.least_words
        least = f" ({self.least_words})" if self.least_words else ""
        return f"best so far {time_text(self.best[1].step_time_s)}{least}"

    @property
    def first_words(self) -> str:
        """The first configuration that fits, as text; empty if none does yet."""
        if self.first is None:
            return ""
        configuration, tried = self.first
        least = f" ({self.least_words})" if self.least_words else ""
        return (
            f"{str(configuration) or 'the scenario unchanged'}, {time_text(tried.step_time_s)} a step{least}"
        )


@dataclass
class Evaluator:
    """An evaluator that evaluates each configuration of a scenario once.

    Attributes:
        scenario: Scenario of the search.
        known: Results by configuration key.
        found: Called with each new result.
        progress: Called with the progress.
        planned: Estimated number of evaluations.
        engine: The executor that runs them.
        least_s: Lower bound on any step time, if known.
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
    _reported_s: float = -math.inf
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
        """Evaluate configurations and return results in order; `among`: whether they compete for the best so far."""
        new = list({one.key: one for one in configurations if one.key not in self.known}.values())
        results: Iterator[Tried] = self._workers.map(new)
        found = []
        for one in configurations:
            key = one.key
            if key not in self.known:  # new ones are in the order of `new`
                self.known[key] = next(results)
                self.found(one, self.known[key])
            found.append(self.known[key])
            self._update(one, self.known[key], among=among)
        return found

    def screened(self, number: int) -> None:
        """Report periodically how many configurations the closed form has screened."""
        now_s = time.monotonic()
        if now_s - self._reported_s >= SELDOM_S:
            self._reported_s = now_s
            self.progress(self._progress(number))

    def _update(self, one: Configuration, tried: Tried, *, among: bool) -> None:
        self._seen.add(one.key)
        quickest_s = self._best[1].step_time_s if self._best else math.inf
        if isinstance(tried, Evaluation):
            self._first = self._first or (one, tried)
            if among and tried.step_time_s < quickest_s:
                self._best = one, tried
        self.progress(self._progress())

    def _progress(self, screened: int | None = None) -> SearchProgress:
        done = len(self._seen)
        return SearchProgress(done, max(self.planned, done), self._best, self._first, self.least_s, screened)


class NothingFits(BadInput):
    """The error for a search without feasible configurations; it names the constraints that reject most of them."""

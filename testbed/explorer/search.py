"""The search: all configurations of a space, or the best by the closed form, tried; and what they are held against."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from testbed.catalogue import baselines
from testbed.config import Scenario
from testbed.explorer.errors import NothingFits
from testbed.explorer.evaluation import (
    Configuration,
    Evaluation,
    Infeasible,
    check_modelled,
    evaluate,
    searched,
)
from testbed.model.closed_form import Screener

MOST_SCREENED = 2_000_000  # by the closed form: half a minute
# What paths belong to; searches of one dimension alone take the others from the first baseline.
DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "placement": ("workload.parallelism",),
    "schedule": ("workload.schedule", "workload.bucket_cap", "algorithms"),
    "network": ("policy", "transport", "topology"),
}


Kind = Literal["baseline", "single", "random", "best"]
"""What is compared: a baseline, the best of one dimension alone, of as many at random, of all."""


@dataclass(frozen=True)
class Result:
    """A configuration that fits; under a name, and of a kind, where it is compared."""

    configuration: Configuration
    tried: Evaluation
    name: str = ""
    kind: Kind | None = None


@dataclass(frozen=True)
class Exploration:
    """What a search found. fitting: all that were chosen to be tried and fit, the quickest first.

    combinations: of the whole space; tried: how many of them the model tried; random: the best of as many drawn at
    random, where not all were tried; infeasible: how many each constraint kept out, one example each.
    """

    combinations: int
    tried: int
    fitting: Sequence[Result]
    baselines: Sequence[Result]
    single: Sequence[Result]
    random: Result | None
    infeasible: Mapping[str, int]
    examples: Mapping[str, Infeasible]

    @property
    def best(self) -> Result:
        """The quickest."""
        return self.fitting[0]

    @property
    def distinct(self) -> list[Result]:
        """Where a value makes no difference to the model, one for all, the quickest first."""
        found: dict[Evaluation, Result] = {}
        for result in self.fitting:
            found.setdefault(result.tried, result)
        return list(found.values())

    def compared(self, most: int) -> list[Result]:
        """The baselines, the best of each dimension alone and at random, so many of the best that are none of these.

        The very best is among them whatever it is.
        """
        named = [*self.baselines, *self.single, *([self.random] if self.random else [])]
        told = {result.tried for result in named}
        best = [result for result in self.distinct if result == self.best or result.tried not in told][:most]
        return [
            *named,
            *(replace(result, name=f"best {n}", kind="best") for n, result in enumerate(best, 1)),
        ]

    @property
    def pareto(self) -> list[Result]:
        """Those than which no other is quicker, sends less between buildings and has a shorter tail, by step time."""
        found: list[Result] = []
        for result in self.fitting:
            if not any(_no_worse(earlier.tried, result.tried) for earlier in found):
                found.append(result)
        return found


@dataclass
class Search:
    """One search of a scenario's `explore`. progress: told how many of how many are tried; known: results so far."""

    scenario: Scenario
    progress: Callable[[int, int], None] = lambda done, total: None
    known: dict[str, Evaluation | Infeasible] = field(default_factory=dict)
    found: Callable[[Configuration, Evaluation | Infeasible], None] = lambda configuration, tried: None

    def run(self) -> Exploration:
        """NothingFits; ConfigError without `explore`, or where the model leaves out what the scenario asks for."""
        explore = searched(self.scenario, self.scenario.name)
        check_modelled(self.scenario)
        chosen = self._chosen()
        fitting: list[Result] = []
        infeasible: Counter[str] = Counter()
        examples: dict[str, Infeasible] = {}
        for number, configuration in enumerate(chosen):
            self.progress(number, len(chosen))
            tried = self._try(configuration)
            if isinstance(tried, Evaluation):
                fitting.append(Result(configuration, tried))
            else:
                infeasible[tried.constraint] += 1
                examples.setdefault(tried.constraint, tried)
        if not fitting:
            raise NothingFits(_why(infeasible, examples, len(chosen) or explore.size))
        fitting.sort(key=lambda result: (result.tried.step_time_s, result.configuration.key))
        compared = [self._named(name, baselines()[name]["changes"]) for name in explore.baselines]
        return Exploration(
            explore.size,
            len(chosen),
            fitting,
            [result for result in compared if result is not None],
            [result for name in DIMENSIONS if (result := self._single(name)) is not None],
            self._random(),
            infeasible,
            examples,
        )

    def _random(self) -> Result | None:
        """The best of as many tries at random; None where all are tried, or none of these fits."""
        explore = self.scenario.explore
        assert explore is not None
        if explore.size <= explore.tries:
            return None
        numbers = random.Random(f"{self.scenario.seed}/random").sample(range(explore.size), explore.tries)
        results = [
            Result(one, tried, "random search", "random")
            for number in numbers
            if isinstance(tried := self._try(one := _numbered(explore.space, number)), Evaluation)
        ]
        return min(results, key=lambda result: result.tried.step_time_s, default=None)

    def _chosen(self) -> list[Configuration]:
        explore = self.scenario.explore
        assert explore is not None
        if explore.size <= explore.tries:
            return list(self._configurations(explore.space))
        some = self._configurations(explore.space)
        if explore.size > MOST_SCREENED:
            draw = random.Random(self.scenario.seed)
            numbers = sorted(draw.sample(range(explore.size), MOST_SCREENED))
            some = (_numbered(explore.space, number) for number in numbers)
        screener = Screener(self.scenario)
        timed = ((screener.step_s(one.changes), number, one) for number, one in enumerate(some))
        best = heapq.nsmallest(
            explore.tries, ((seconds, number, one) for seconds, number, one in timed if seconds is not None)
        )
        return [one for _, _, one in best]

    @staticmethod
    def _configurations(space: Mapping[str, Sequence[Any]]) -> Iterator[Configuration]:
        for values in itertools.product(*space.values()):
            yield Configuration(dict(zip(space, values, strict=True)))

    def _try(self, configuration: Configuration) -> Evaluation | Infeasible:
        key = configuration.key
        if key not in self.known:
            self.known[key] = evaluate(self.scenario, configuration)
            self.found(configuration, self.known[key])
        return self.known[key]

    def _named(self, name: str, changes: Mapping[str, Any]) -> Result | None:
        """None where it does not fit."""
        configuration = Configuration(changes)
        tried = self._try(configuration)
        return Result(configuration, tried, name, "baseline") if isinstance(tried, Evaluation) else None

    def _single(self, dimension: str) -> Result | None:
        """The best of what differs in one dimension alone from the first baseline; None where nothing does."""
        explore = self.scenario.explore
        assert explore is not None
        own = {
            path: values
            for path, values in explore.space.items()
            if any(path == prefix or path.startswith(f"{prefix}.") for prefix in DIMENSIONS[dimension])
        }
        if not own or not explore.baselines:
            return None
        base = baselines()[explore.baselines[0]]["changes"]
        results = [
            Result(one, tried, f"only {dimension}", "single")
            for changes in self._configurations(own)
            if isinstance(tried := self._try(one := Configuration({**base, **changes.changes})), Evaluation)
        ]
        return min(results, key=lambda result: result.tried.step_time_s, default=None)


def _no_worse(one: Evaluation, other: Evaluation) -> bool:
    """In anything but step time."""
    return one.wan_bytes <= other.wan_bytes and one.tail_s <= other.tail_s


def _numbered(space: Mapping[str, Sequence[Any]], number: int) -> Configuration:
    """The combination of that number."""
    changes = {}
    for path, values in reversed(tuple(space.items())):
        number, index = divmod(number, len(values))
        changes[path] = values[index]
    return Configuration(dict(reversed(tuple(changes.items()))))


def _why(infeasible: Counter[str], examples: Mapping[str, Infeasible], total: int) -> str:
    if not infeasible:
        return f"of {total} configurations none has degrees that go with the ranks, layers and sequences"
    reasons = []
    for constraint, count in infeasible.most_common():
        one = examples[constraint]
        reasons.append(f"{count} because of {constraint} (one has {one.found}, expected {one.expected})")
    return f"none of {total} configurations fits: {'; '.join(reasons)}"

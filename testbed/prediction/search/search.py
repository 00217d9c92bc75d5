"""The search: evaluate a whole space, or its best part according to the closed form, and compare with baselines."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from testbed.prediction.closed_form import Changes, Screener
from testbed.prediction.closed_form_recorded import RecordedScreener
from testbed.prediction.executors import Executor, Processes
from testbed.prediction.search.baselines import Sensitivity, first_of, list_baselines, sensitivity
from testbed.prediction.search.evaluation import (
    DEGREES,
    Configuration,
    Evaluation,
    Infeasible,
    check_degrees,
    check_modelled,
    search_space_of,
)
from testbed.prediction.search.evaluator import Evaluator, NothingFits, SearchProgress, Tried
from testbed.prediction.search.exploration import Exploration, RankedConfiguration
from testbed.prediction.search.space import Space, own_values
from testbed.prediction.step_flops import least_step_s
from testbed.spec.scenario import Scenario
from testbed.spec.search_space import ExploreSpec

ROUNDS = 3  # rounds of local search around the best, one path at a time
STARTS = 3  # starts of local search, if too many values are ignored by the closed form to try all
TOLD = ".6g"  # format precision at which closed-form times count as equal


@dataclass
class Search:
    """A search over a scenario's `explore`.

    Attributes:
        scenario: Scenario to search.
        progress: Called with the progress.
        known: Results so far, by configuration key.
        found: Called with each new result.
        engine: The executor that evaluates configurations.
        at_random: Whether to also try the same number of random configurations, unless the whole space is evaluated.
    """

    scenario: Scenario
    progress: Callable[[SearchProgress], None] = lambda standing: None
    known: dict[str, Tried] = field(default_factory=dict)
    found: Callable[[Configuration, Tried], None] = lambda configuration, tried: None
    engine: Executor = field(default_factory=Processes)
    at_random: bool = True

    def run(self) -> Exploration:
        """Run the search.

        Raises:
            NothingFits: If no configuration fits.
            WorkStopped: If a worker process is killed.
            ConfigError: If the scenario has no `explore`, or uses a feature that the model does not cover.
        """
        explore = self._explore
        check_modelled(self.scenario)
        space = Space(explore.space, {})
        first = first_of(self.scenario, explore)
        baselines = list_baselines(self.scenario, explore)
        budget = sum(
            min(own.size, explore.tries) for own in (space, *(baseline.space for baseline in baselines))
        )
        least_s = least_step_s(self.scenario)
        with Evaluator(
            self.scenario, self.known, self.found, self.progress, budget, self.engine, least_s
        ) as evaluator:
            # baselines as given come first for an early result, since the closed form may have millions of
            # configurations to screen
            evaluator.all(
                [one for baseline in baselines if baseline.space.size == 1 for one in baseline.space],
                among=False,
            )
            joint = self._search(evaluator, space, among=True)
            if not any(isinstance(tried, Evaluation) for tried in joint.values()):
                raise NothingFits(_explain_infeasible(*_count_infeasible(joint), len(joint) or explore.size))
            compared = [
                replace(best, name=baseline.name, kind=baseline.kind, tuned=baseline.tuned)
                for baseline in baselines
                for best in self._sorted(self._search(evaluator, baseline.space, among=False))[:1]
            ]
            self._merge_results(evaluator, space, joint, self._baselines_in_space(space, compared))
            random_results = self._random(evaluator, space)
            self._merge_results(evaluator, space, joint, [one.configuration for one in random_results])
            fitting = self._sorted(joint)
            infeasible, examples = _count_infeasible(joint)
            indifferent = self._indifferent(evaluator, space, fitting[0])
            return Exploration(
                explore.size,
                len(joint),
                fitting,
                [result for result in compared if result.kind == "baseline"],
                [result for result in compared if result.kind == "single"],
                next((replace(one, name="random search", kind="random") for one in random_results), None),
                infeasible,
                examples,
                indifferent,
                self._sensitivity(evaluator, fitting[0], first),
                kept=[path for path in indifferent if self._own.get(path) == indifferent[path]],
            )

    @cached_property
    def _explore(self) -> ExploreSpec:
        return search_space_of(self.scenario, self.scenario.name)

    @cached_property
    def _screener(self) -> Screener | RecordedScreener:
        return (
            RecordedScreener(self.scenario) if self.scenario.workload.is_recorded else Screener(self.scenario)
        )

    @cached_property
    def _own(self) -> Mapping[str, Any]:
        return own_values(self.scenario, self._explore.space)

    def _sorted(self, configurations: Mapping[Configuration, Tried]) -> list[RankedConfiguration]:
        """Sort feasible configurations, fastest first; break ties by the number of the scenario's own values."""

        def order(result: RankedConfiguration) -> tuple[float, int, str]:
            changes = result.configuration.changes
            changed = sum(path not in self._own or self._own[path] != changes[path] for path in changes)
            return result.tried.step_time_s, changed, result.configuration.key

        places = {path: place for place, path in enumerate(self._explore.space)}

        def in_space_order(one: Configuration) -> Configuration:
            """Return a sort key in the order of the scenario's space."""
            return Configuration(dict(sorted(one.changes.items(), key=lambda item: places.get(item[0], -1))))

        fits = [
            RankedConfiguration(in_space_order(one), tried)
            for one, tried in configurations.items()
            if isinstance(tried, Evaluation)
        ]
        return sorted(fits, key=order)

    def _search(self, evaluator: Evaluator, space: Space, *, among: bool) -> dict[Configuration, Tried]:
        """Evaluate a space and return the configurations tried.

        A small space is evaluated completely. Otherwise the closed form selects the best configurations. The model then
        selects the best of those that the closed form cannot distinguish, and a local search tries its neighbours.
        """
        explore = self._explore

        found: dict[Configuration, Tried] = {}
        evaluate = partial(_evaluate_into, evaluator, found, among=among)
        if space.size <= explore.tries:
            evaluate(list(space))
            return found
        seen = {path: values for path, values in space.values.items() if self._screener.looks_at(path)}
        if math.prod(map(len, seen.values())) > self._screener.most:
            seen = {path: values for path, values in seen.items() if path.startswith(self._screener.coarse)}
        unseen = {path: values for path, values in space.values.items() if path not in seen}
        usual = {path: self._own.get(path, values[0]) for path, values in unseen.items()}
        unseen_size = Space(unseen, {}).size
        groups = explore.tries if unseen_size == 1 else max(1, explore.tries // 2)
        evaluate(self._screened(evaluator, Space(seen, {**usual, **space.base}), groups))
        if unseen_size <= explore.tries:
            for group in self._sorted(found):
                if unseen_size == 1 or len(found) >= explore.tries:
                    break
                evaluate(list(Space(unseen, group.configuration.changes))[: explore.tries - len(found)])
            starts = 1
        else:
            starts = STARTS
        for start in self._sorted(found)[:starts]:
            self._descend(space, start, found, evaluate)
            if len(found) >= explore.tries:
                break
        return found

    def _baselines_in_space(
        self, space: Space, baselines: Sequence[RankedConfiguration]
    ) -> list[Configuration]:
        """Complete the baselines with the scenario's own values, and return those that are in the space."""
        first = {path: values[0] for path, values in space.values.items()}  # default
        within = []
        for baseline in baselines:
            changes = {**first, **self._own, **baseline.configuration.changes}
            if changes.keys() == first.keys() and all(
                changes[path] in values for path, values in space.values.items()
            ):
                within.append(Configuration({path: changes[path] for path in space.values}))
        return within

    def _merge_results(
        self,
        evaluator: Evaluator,
        space: Space,
        joint: dict[Configuration, Tried],
        others: Sequence[Configuration],
    ) -> None:
        """Add other configurations of the space to the results; continue the local search if one is faster."""
        evaluate = partial(_evaluate_into, evaluator, joint, among=True)
        before_s = self._sorted(joint)[0].tried.step_time_s
        evaluate([one for one in dict.fromkeys(others) if one not in joint])
        best = self._sorted(joint)[0]
        if best.tried.step_time_s < before_s:
            self._descend(space, best, joint, evaluate)

    def _descend(
        self,
        space: Space,
        start: RankedConfiguration,
        found: Mapping[Configuration, Tried],
        evaluate: Callable[[Sequence[Configuration]], None],
    ) -> None:
        """Move to the fastest neighbour as long as there is a faster one."""
        best: RankedConfiguration | None = None
        here: RankedConfiguration | None = start
        for _ in range(ROUNDS):
            if here is None or here == best:
                break
            best = here
            near = [one for values in space.neighbours(best.configuration).values() for one in values]
            evaluate(
                [one for one in near if one not in found and self._screener.step_s(one.changes) is not None]
            )
            around = {one: found[one] for one in (best.configuration, *near) if one in found}
            here = next(iter(self._sorted(around)), None)

    def _screened(self, evaluator: Evaluator, space: Space, most: int) -> list[Configuration]:
        """Return the best configurations by closed form, taking one of each distinct time in turn."""
        degrees = [path for path in space.values if path.startswith(DEGREES) and path.endswith("_degree")]
        configurations: Iterable[Configuration] = space.where(
            degrees, lambda changes: check_degrees(self.scenario, changes) is None
        )
        if space.size > self._screener.most:
            numbers = sorted(random.Random(self.scenario.seed).sample(range(space.size), self._screener.most))
            configurations = map(space.numbered, numbers)
        levels: dict[float, list[Configuration]] = {}
        for number, one in enumerate(configurations):
            evaluator.screened(number)
            seconds = self._screener.step_s(one.changes)
            if seconds is None:
                continue
            equal = levels.setdefault(float(f"{seconds:{TOLD}}"), [])
            if len(equal) < most:
                equal.append(one)
            if len(levels) > 2 * most:  # there may be millions of configurations
                levels = {level: levels[level] for level in heapq.nsmallest(most, levels)}
        quickest = [levels[seconds] for seconds in sorted(levels)]
        # take one of each time first: many equal ones would use up the budget without adding information
        turns = (one for turn in itertools.zip_longest(*quickest) for one in turn if one is not None)
        return list(itertools.islice(turns, most))

    def _random(self, evaluator: Evaluator, space: Space) -> list[RankedConfiguration]:
        """Return the feasible ones of the same number of random tries, fastest first; empty for a full evaluation."""
        explore = self._explore
        if space.size <= explore.tries or not self.at_random:
            return []
        draw = random.Random(f"{self.scenario.seed}/random")
        configurations = [space.numbered(number) for number in draw.sample(range(space.size), explore.tries)]
        return self._sorted(dict(zip(configurations, evaluator.all(configurations, among=True), strict=True)))

    def _indifferent(self, evaluator: Evaluator, space: Space, best: RankedConfiguration) -> dict[str, Any]:
        """Return the paths whose other feasible values do not change the result, with the best's value."""
        found = {}
        for path, others in space.neighbours(best.configuration).items():
            fits = [tried for tried in evaluator.all(others, among=False) if isinstance(tried, Evaluation)]
            if fits and all(tried == best.tried for tried in fits):
                found[path] = best.configuration.changes[path]
        return found

    def _sensitivity(
        self, evaluator: Evaluator, best: RankedConfiguration, baseline: Changes | None
    ) -> Sensitivity | None:
        """Compare the best with the first baseline, completed with the scenario's own values."""
        if baseline is None:
            return None
        first = {**self._own, **baseline}
        changes = best.configuration.changes
        return sensitivity(first, changes, lambda configurations: evaluator.all(configurations, among=False))


def _evaluate_into(
    evaluator: Evaluator,
    found: dict[Configuration, Tried],
    configurations: Sequence[Configuration],
    *,
    among: bool,
) -> None:
    found.update(zip(configurations, evaluator.all(configurations, among=among), strict=True))


def _count_infeasible(tried: Mapping[Configuration, Tried]) -> tuple[Counter[str], dict[str, Infeasible]]:
    """Return the number of configurations that each constraint rejects, and one example of each."""
    found = [one for one in tried.values() if isinstance(one, Infeasible)]
    return Counter(one.constraint for one in found), {one.constraint: one for one in reversed(found)}


def _explain_infeasible(infeasible: Counter[str], examples: Mapping[str, Infeasible], total: int) -> str:
    if not infeasible:
        return f"of {total} configurations none has degrees that go with the ranks, layers and sequences"
    reasons = []
    for constraint, count in infeasible.most_common():
        one = examples[constraint]
        reasons.append(f"{count} because of {constraint} (one has {one.found}, expected {one.expected})")
    return f"none of {total} configurations fits: {'; '.join(reasons)}"

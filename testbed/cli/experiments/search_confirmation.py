"""From a search to a scenario that runs its best and what they are held against; how right the model was."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from testbed.measure.results.result import Variant
from testbed.prediction.search.evaluation import MICROBATCHES, configured
from testbed.prediction.search.search import Exploration
from testbed.prediction.search.search import Result as Found
from testbed.spec.parallelism import ScheduleSpec
from testbed.spec.scenario import Scenario

WITHIN = 1.2  # of the best by the model: what it has slower than that is not the quickest on packets


@dataclass(frozen=True)
class Confirmation:
    """scenario: its variants are what was compared, each configuration once. variants: which, by name."""

    scenario: Scenario
    variants: Mapping[str, str]


def confirmation(scenario: Scenario, found: Exploration) -> Confirmation:
    """The baselines, the best of each dimension alone and of as many at random, and the best of all. ConfigError."""
    explore = scenario.explore
    assert explore is not None
    variants: dict[str, dict[str, Any]] = {}
    names: dict[str, str] = {}
    known: dict[str, str] = {}
    # what the search found is called so, even if as many tries at random find it, too
    for result in sorted(found.compared(explore.confirm), key=lambda one: one.kind == "random"):
        changed = configured(scenario, result.configuration.changes)
        name = known.setdefault(changed.to_yaml(), result.label.replace(" ", "-"))
        names[result.label] = name
        variants.setdefault(name, _changes(scenario, result))
    return Confirmation(_with_variants(scenario, variants), names)


def candidates(scenario: Scenario, found: Exploration) -> list[Found]:
    """Of which packets choose: the best by the model, that it can tell apart, and none that it has too far behind."""
    explore = scenario.explore
    assert explore is not None
    most_s = WITHIN * found.best.tried.step_time_s
    return [one for one in found.distinct if one.tried.step_time_s <= most_s][: explore.candidates]


def short_run(scenario: Scenario, some: Mapping[str, Found], trials: int) -> Scenario:
    """The scenario whose variants these are, with so many trials. ConfigError."""
    variants = {name: _changes(scenario, one) for name, one in some.items()}
    return _with_variants(scenario.model_copy(update={"trials": trials}), variants)


def survivors(ranked: Sequence[Found], least: int) -> Sequence[Found]:
    """The first half of them (successive halving: Jamieson and Talwalkar 2016), no less than so many."""
    return ranked[: max(least, math.ceil(len(ranked) / 2))]


def _changes(scenario: Scenario, one: Found) -> dict[str, Any]:
    """A configuration's, with the microbatches that follow from them."""
    if scenario.workload.recorded:
        return dict(one.configuration.changes)
    schedule = configured(scenario, one.configuration.changes).workload.schedule or ScheduleSpec()
    return {**one.configuration.changes, MICROBATCHES: schedule.microbatches}


def _with_variants(scenario: Scenario, variants: Mapping[str, Mapping[str, Any]]) -> Scenario:
    document = scenario.model_copy(update={"explore": None, "variants": variants})
    return Scenario.model_validate(document.to_data())


@dataclass(frozen=True)
class Agreement:
    """Of predicted and measured step times: errors as parts of what was measured, rank correlation (1: same order)."""

    median_error: float
    worst_error: float
    kendall_tau: float


def agreement(variants: Sequence[Variant]) -> Agreement | None:
    """Over a run's variants whose figures are to be trusted; None of fewer than two."""
    pairs = [
        (entry.predicted.step_time_s, entry.step_time_s.median)
        for entry in variants
        if entry.predicted is not None and entry.verdict.status != "untrusted"
    ]
    if len(pairs) < 2:
        return None
    errors = [abs(predicted / measured - 1) for predicted, measured in pairs]
    return Agreement(statistics.median(errors), max(errors), kendall_tau(pairs))


def kendall_tau(pairs: Sequence[tuple[float, float]]) -> float:
    """Part of all pairs that are in the same order in both, less those that are not (Kendall 1938, tau-a)."""
    # not by SciPy, 143 MB for everybody to install: it has tau-b and tau-c alone, which differ where there are ties
    orders = [(one[0] - other[0]) * (one[1] - other[1]) for one, other in combinations(pairs, 2)]
    return sum((order > 0) - (order < 0) for order in orders) / len(orders)

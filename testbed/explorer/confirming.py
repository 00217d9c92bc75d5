"""From a search to a scenario that runs its best and what they are held against; how right the model was."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from testbed.config import Scenario
from testbed.config.parallelism import ScheduleSpec
from testbed.explorer.evaluation import MICROBATCHES, configured
from testbed.explorer.search import Exploration
from testbed.results.result import Variant


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
        # with the microbatches that follow from the changes
        schedule = changed.workload.schedule or ScheduleSpec()
        variants.setdefault(name, {**result.configuration.changes, MICROBATCHES: schedule.microbatches})
    document = scenario.model_copy(update={"explore": None, "variants": variants})
    return Confirmation(Scenario.model_validate(document.to_data()), names)


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

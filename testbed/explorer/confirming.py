"""From a search to a scenario that runs its best and what they are held against; how right the model was."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from testbed.config import Scenario
from testbed.config.parallelism import ScheduleSpec
from testbed.explorer.search import Exploration, Result
from testbed.explorer.trying import MICROBATCHES, configured


def confirmation(scenario: Scenario, found: Exploration) -> Scenario:
    """The same with variants: the baselines, the best of each dimension alone, and the best of all. ConfigError.

    Of those that the model takes for the same step one is run, under its first name.
    """
    explore = scenario.explore
    assert explore is not None
    compared = found.compared(explore.confirm)
    variants = {result.name.replace(" ", "-"): _complete(scenario, result) for result in compared}
    document = scenario.model_copy(update={"explore": None, "variants": variants})
    return Scenario.model_validate(document.to_data())


def _complete(scenario: Scenario, result: Result) -> dict[str, Any]:
    """A configuration's changes, with the microbatches that follow from them."""
    schedule = configured(scenario, result.configuration.changes).workload.schedule or ScheduleSpec()
    return {**result.configuration.changes, MICROBATCHES: schedule.microbatches}


@dataclass(frozen=True)
class Agreement:
    """Of predicted and measured step times: errors as parts of what was measured, rank correlation (1: same order)."""

    median_error: float
    worst_error: float
    kendall_tau: float


def agreement(variants: Sequence[Mapping[str, Any]]) -> Agreement | None:
    """Over a summary's variants whose figures are to be trusted; None of fewer than two."""
    pairs = [
        (entry["predicted"]["step_time_s"], entry["step_time_s"]["median"])
        for entry in variants
        if entry["predicted"] and entry["verdict"]["status"] != "untrusted"
    ]
    if len(pairs) < 2:
        return None
    errors = [abs(predicted / measured - 1) for predicted, measured in pairs]
    return Agreement(statistics.median(errors), max(errors), kendall_tau(pairs))


def kendall_tau(pairs: Sequence[tuple[float, float]]) -> float:
    """Part of all pairs that are in the same order in both, less those that are not (Kendall 1938, tau-a)."""
    orders = [(one[0] - other[0]) * (one[1] - other[1]) for one, other in combinations(pairs, 2)]
    return sum((order > 0) - (order < 0) for order in orders) / len(orders)

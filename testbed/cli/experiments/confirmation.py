"""The scenario that runs a search's best configurations and baselines, and the accuracy of the model."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from testbed.measure.results.result import Result, Variant
from testbed.measure.results.sweep_result import SweepAxis, SweepPoint
from testbed.prediction.model_accuracy import ModelErrors, kind_of, parse_errors
from testbed.prediction.search.evaluation import MICROBATCHES, apply_changes
from testbed.prediction.search.exploration import Exploration, RankedConfiguration
from testbed.spec.catalogue import model_errors
from testbed.spec.parallelism import ScheduleSpec
from testbed.spec.scenario import Scenario
from testbed.spec.sweep_axes import GridPoint

WITHIN = 1.2  # multiple of the best prediction; slower ones are never the fastest on the network


@dataclass(frozen=True)
class Confirmation:
    """A scenario with each compared configuration as a variant; `variants` has variant names by label."""

    scenario: Scenario
    variants: Mapping[str, str]


def confirmation(scenario: Scenario, found: Exploration) -> Confirmation:
    """Return the scenario that compares baselines, ablations, random search and the best; may raise ConfigError."""
    explore = scenario.explore
    assert explore is not None
    variants: dict[str, dict[str, Any]] = {}
    names: dict[str, str] = {}
    known: dict[str, str] = {}
    # a configuration found by both searches gets the search's name, not that of random search
    for result in sorted(found.compared(explore.confirm), key=lambda one: one.kind == "random"):
        changed = apply_changes(scenario, result.configuration.changes)
        name = known.setdefault(changed.to_yaml(), result.label.replace(" ", "-"))
        names[result.label] = name
        variants.setdefault(name, _changes(scenario, result))
    return Confirmation(_with_variants(scenario, variants), names)


def candidates(scenario: Scenario, found: Exploration) -> list[RankedConfiguration]:
    """Return the best distinct predictions, none much slower than the best, from which runs on the network choose."""
    explore = scenario.explore
    assert explore is not None
    most_s = WITHIN * found.best.tried.step_time_s
    return [one for one in found.distinct if one.tried.step_time_s <= most_s][: explore.candidates]


def short_run(scenario: Scenario, some: Mapping[str, RankedConfiguration], trials: int) -> Scenario:
    """Return a scenario with these configurations as variants; may raise ConfigError."""
    variants = {name: _changes(scenario, one) for name, one in some.items()}
    return _with_variants(scenario.model_copy(update={"trials": trials}), variants)


def survivors(ranked: Sequence[RankedConfiguration], least: int) -> Sequence[RankedConfiguration]:
    """Return the better half, but at least `least` (successive halving: Jamieson and Talwalkar 2016)."""
    return ranked[: max(least, math.ceil(len(ranked) / 2))]


def _changes(scenario: Scenario, one: RankedConfiguration) -> dict[str, Any]:
    """Return a configuration's changes, with the resulting number of microbatches."""
    if scenario.workload.is_recorded:
        return dict(one.configuration.changes)
    schedule = apply_changes(scenario, one.configuration.changes).workload.schedule or ScheduleSpec()
    return {**one.configuration.changes, MICROBATCHES: schedule.microbatches}


def _with_variants(scenario: Scenario, variants: Mapping[str, Mapping[str, Any]]) -> Scenario:
    document = scenario.model_copy(update={"explore": None, "variants": variants})
    return Scenario.model_validate(document.to_data())


@dataclass(frozen=True)
class Agreement:
    """Agreement of predicted and measured step times: relative errors, and rank correlation (1: same order)."""

    median_error: float
    worst_error: float
    kendall_tau: float


def agreement(variants: Sequence[Variant]) -> Agreement | None:
    """Return the agreement over a run's trusted variants; None if there are fewer than two."""
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
    """Return the share of concordant pairs minus that of discordant ones (Kendall 1938, tau-a)."""
    # SciPy (143 MB to install) only has tau-b and tau-c, which differ if there are ties
    orders = [(one[0] - other[0]) * (one[1] - other[1]) for one, other in combinations(pairs, 2)]
    return sum((order > 0) - (order < 0) for order in orders) / len(orders)


RUNGS = "rungs"
LONGER = 3  # factor by which trials increase from one rung to the next

Measure = Callable[[Scenario, Path, Path], Result]
"""Writes a scenario into a file and runs it into a folder, or opens the run that is there."""


def halve_candidates(
    scenario: Scenario, found: Exploration, folder: Path, measure: Measure
) -> tuple[Sequence[RankedConfiguration], list[dict[str, Any]]]:
    """Choose the fastest candidates by successive halving on the network.

    Untrusted results rank last. There are no rungs unless there are more candidates than `confirm`.

    Returns:
        The chosen configurations, fastest first, and the measurements of each rung, which is a run in `folder`.
    """
    assert scenario.explore is not None
    least, trials = scenario.explore.confirm, 1
    standing: Sequence[RankedConfiguration] = candidates(scenario, found)
    names = {one.configuration: f"candidate-{number}" for number, one in enumerate(standing, start=1)}
    rungs: list[dict[str, Any]] = []
    while len(standing) > least:
        asked = short_run(scenario, {names[one.configuration]: one for one in standing}, trials)
        rung = folder / RUNGS / str(len(rungs) + 1)
        variants = {
            variant.name: variant for variant in measure(asked, rung.with_suffix(".yaml"), rung).variants
        }
        ranked = [(one, variants[names[one.configuration]]) for one in standing]
        ranked.sort(key=lambda pair: (pair[1].verdict.status == "untrusted", pair[1].done.step_s))
        standing = survivors([one for one, _ in ranked], least)
        tried = [_entry(one, variant, one in standing) for one, variant in ranked]
        rungs.append({"trials": trials, "candidates": tried})
        trials = min(trials * LONGER, scenario.trials)
    return standing, rungs


def _entry(one: RankedConfiguration, variant: Variant, goes_on: bool) -> dict[str, Any]:
    return {
        "name": variant.name,
        "configuration": str(one.configuration),
        "changes": dict(one.configuration.changes),
        "predicted_s": one.tried.step_time_s,
        "step_time_s": variant.done.step_s,
        "status": variant.verdict.status,
        "goes_on": goes_on,
    }


def points_to_confirm(axes: Sequence[SweepAxis], points: Sequence[SweepPoint], count: int) -> list[GridPoint]:
    """Choose sweep points to measure: corners, both sides of changes of the fastest variant, then the widest gaps.

    A gap is filled with the point farthest from all chosen ones, in positions along the axes.
    """
    valid = {point.at: point for point in points if point.misfit is None and point.figures}
    taken: dict[GridPoint, None] = {}
    for place in (*_corners(valid), *_crossings(axes, valid)):
        if len(taken) < count:
            taken.setdefault(place)
    distance = _distance(axes)
    while len(taken) < min(count, len(valid)):
        left = [place for place in valid if place not in taken]
        taken.setdefault(
            max(left, key=lambda place: min((distance(place, one) for one in taken), default=0.0))
        )
    return sorted(taken)


def fastest_variant(point: SweepPoint) -> str:
    """Return the variant with the shortest step."""
    return min(point.figures, key=lambda figure: figure.step_time_s).variant


def _corners(valid: dict[GridPoint, SweepPoint]) -> Iterator[GridPoint]:
    """Yield the smallest and the largest corner, then the other two."""
    if not valid:
        return
    lines = list(zip(*valid, strict=True))
    ends = [(min(line), max(line)) for line in lines]
    first, last = tuple(low for low, _ in ends), tuple(high for _, high in ends)
    corners = [first, last]
    if len(ends) == 2:
        corners += [(first[0], last[1]), (last[0], first[1])]
    yield from (corner for corner in corners if corner in valid)


def _crossings(axes: Sequence[SweepAxis], valid: dict[GridPoint, SweepPoint]) -> Iterator[GridPoint]:
    """Yield neighbours along a numeric axis whose fastest variants differ."""
    for number, axis in enumerate(axes):
        if axis.numbers is None:
            continue
        for place, point in valid.items():
            after = (*place[:number], place[number] + 1, *place[number + 1 :])
            if after in valid and fastest_variant(point) != fastest_variant(valid[after]):
                yield from (place, after)


def _distance(axes: Sequence[SweepAxis]) -> Callable[[GridPoint, GridPoint], float]:
    spans = [max(len(axis.texts) - 1, 1) for axis in axes]

    def distance(one: GridPoint, other: GridPoint) -> float:
        return math.hypot(*((a - b) / span for a, b, span in zip(one, other, spans, strict=True)))

    return distance


def model_errors_of(scenario: Scenario) -> ModelErrors | None:
    """Return the model's errors for scenarios of this kind; None if none were measured; may raise ConfigError."""
    kind = kind_of(scenario)
    return None if kind is None else parse_errors(model_errors()[kind])


def indistinguishable_from_best(found: Exploration, errors: ModelErrors) -> Sequence[RankedConfiguration]:
    """Return the best configuration and those within the model's error of it, fastest first."""
    most_s = found.best.tried.step_time_s * (1 + errors.median)
    return [one for one in found.distinct if one.tried.step_time_s <= most_s]

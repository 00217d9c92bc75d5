"""From a search to a scenario that runs its best and what they are held against; how right the model was."""

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
from testbed.prediction.search.search import Exploration, RankedConfiguration
from testbed.spec.catalogue import model_errors
from testbed.spec.parallelism import ScheduleSpec
from testbed.spec.scenario import Scenario
from testbed.spec.sweep_axes import Place

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
        changed = apply_changes(scenario, result.configuration.changes)
        name = known.setdefault(changed.to_yaml(), result.label.replace(" ", "-"))
        names[result.label] = name
        variants.setdefault(name, _changes(scenario, result))
    return Confirmation(_with_variants(scenario, variants), names)


def candidates(scenario: Scenario, found: Exploration) -> list[RankedConfiguration]:
    """Of which packets choose: the best by the model, that it can tell apart, and none that it has too far behind."""
    explore = scenario.explore
    assert explore is not None
    most_s = WITHIN * found.best.tried.step_time_s
    return [one for one in found.distinct if one.tried.step_time_s <= most_s][: explore.candidates]


def short_run(scenario: Scenario, some: Mapping[str, RankedConfiguration], trials: int) -> Scenario:
    """The scenario whose variants these are, with so many trials. ConfigError."""
    variants = {name: _changes(scenario, one) for name, one in some.items()}
    return _with_variants(scenario.model_copy(update={"trials": trials}), variants)


def survivors(ranked: Sequence[RankedConfiguration], least: int) -> Sequence[RankedConfiguration]:
    """The first half of them (successive halving: Jamieson and Talwalkar 2016), no less than so many."""
    return ranked[: max(least, math.ceil(len(ranked) / 2))]


def _changes(scenario: Scenario, one: RankedConfiguration) -> dict[str, Any]:
    """A configuration's, with the microbatches that follow from them."""
    if scenario.workload.recorded:
        return dict(one.configuration.changes)
    schedule = apply_changes(scenario, one.configuration.changes).workload.schedule or ScheduleSpec()
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


RUNGS = "rungs"
LONGER = 3  # times the trials for each half

Measure = Callable[[Scenario, Path, Path], Result]
"""Writes a scenario into a file and runs it into a folder, or opens what it came to there."""


def halve_candidates(
    scenario: Scenario, found: Exploration, folder: Path, measure: Measure
) -> tuple[Sequence[RankedConfiguration], list[dict[str, Any]]]:
    """As many as the search confirms, the quickest first; and what each rung, a run in `folder`, has measured.

    What is untrusted comes behind all that is not. No rungs where no more are candidates than are confirmed.
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


def points_to_confirm(axes: Sequence[SweepAxis], points: Sequence[SweepPoint], count: int) -> list[Place]:
    """So many of those that there are: the corners, both sides of where another variant is the quickest, the gaps.

    A gap's point is the one that lies farthest from all that are chosen, by positions along the axes.
    """
    there = {point.at: point for point in points if point.misfit is None and point.figures}
    taken: dict[Place, None] = {}
    for place in (*_corners(there), *_crossings(axes, there)):
        if len(taken) < count:
            taken.setdefault(place)
    far = _distance(axes)
    while len(taken) < min(count, len(there)):
        left = [place for place in there if place not in taken]
        taken.setdefault(max(left, key=lambda place: min((far(place, one) for one in taken), default=0.0)))
    return sorted(taken)


def quickest(point: SweepPoint) -> str:
    """The variant with the shortest step."""
    return min(point.figures, key=lambda figure: figure.step_time_s).variant


def _corners(there: dict[Place, SweepPoint]) -> Iterator[Place]:
    """The least, the largest, then what lies across."""
    if not there:
        return
    lines = list(zip(*there, strict=True))
    ends = [(min(line), max(line)) for line in lines]
    first, last = tuple(low for low, _ in ends), tuple(high for _, high in ends)
    corners = [first, last]
    if len(ends) == 2:
        corners += [(first[0], last[1]), (last[0], first[1])]
    yield from (corner for corner in corners if corner in there)


def _crossings(axes: Sequence[SweepAxis], there: dict[Place, SweepPoint]) -> Iterator[Place]:
    """Neighbours along an axis of figures of which one has another variant as its quickest than the other has."""
    for number, axis in enumerate(axes):
        if axis.numbers is None:
            continue
        for place, point in there.items():
            after = (*place[:number], place[number] + 1, *place[number + 1 :])
            if after in there and quickest(point) != quickest(there[after]):
                yield from (place, after)


def _distance(axes: Sequence[SweepAxis]) -> Callable[[Place, Place], float]:
    spans = [max(len(axis.texts) - 1, 1) for axis in axes]

    def distance(one: Place, other: Place) -> float:
        return math.hypot(*((a - b) / span for a, b, span in zip(one, other, spans, strict=True)))

    return distance


def model_errors_of(scenario: Scenario) -> ModelErrors | None:
    """At points of the scenario's kind; None where none was measured. ConfigError."""
    kind = kind_of(scenario)
    return None if kind is None else parse_errors(model_errors()[kind])


def indistinguishable_from_best(found: Exploration, errors: ModelErrors) -> Sequence[RankedConfiguration]:
    """The best, and what the model does not tell from it, the quickest first."""
    most_s = found.best.tried.step_time_s * (1 + errors.median)
    return [one for one in found.distinct if one.tried.step_time_s <= most_s]

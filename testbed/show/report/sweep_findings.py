"""The findings of a sweep in sentences, and the series that sentences and charts use."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from testbed.measure.results.committed_work import Work, have_same_steps, have_same_workload
from testbed.measure.results.sweep_result import Measured, Sweep, SweepAxis, SweepFigure
from testbed.spec.sweep_axes import GridPoint
from testbed.spec.units import per_second_text, percent_text, time_text

Key = TypeVar("Key", bound=Hashable)
SAME_WITHIN = 0.005  # relative difference below which steps are equally fast
FEW = 4  # number of lines up to which a sentence has a figure for each
CLOCKS = {"virtual": "under the virtual clock", "real": "by the machine's own clock"}


def describe_sweep(sweep: Sweep) -> list[str]:
    """Return the findings as sentences; the first is the headline."""
    shown, error = arrange_series(sweep), max(_errors(sweep), default=0.0)
    words = _describe_curves(shown, error) if isinstance(shown, Curves) else _describe_maps(shown)
    found = list(filter(None, words)) or ["No step time of this sweep can be used."]
    return [*found, *_misfits(sweep), _describe_accuracy(sweep)]


def _describe_curves(curves: Curves, error: float) -> Iterator[str]:
    """Describe curves; `error` is the model's worst relative error here, which limits distinctions."""
    axis = curves.axis
    if axis.numbers is None:
        yield from _describe_points(axis, curves.series)
        return
    if len(curves.series) > 1:
        yield _sentence("; ".join(_regions(axis, curves.series, error)))
        if text := _describe_widest_gap(axis, curves.series):
            yield text
    if 0 < len(curves.series) <= FEW:
        each = [
            words
            for one in curves.series
            if (words := _describe_change(axis, one, alone=len(curves.series) == 1))
        ]
        yield _sentence("; ".join(each))


def _regions(axis: SweepAxis, series: Sequence[Series], error: float) -> list[str]:
    """Describe which line is fastest over which range, or does the most work per time if steps are unequal work."""
    equal = all(have_same_steps(_at(series, index).values()) for index in range(len(axis.texts)))
    fastest = [(_fastest(series, index, error), text) for index, text in enumerate(axis.texts)]
    known = [(name, text) for name, text in fastest if name is not None]
    found = [(name, [text for _, text in own]) for name, own in groupby(known, key=itemgetter(0))]
    words = []
    for number, (name, texts) in enumerate(found):
        first, last = texts[0], texts[-1]
        if len(texts) == 1:
            where = f"at {first}"
        elif len(found) == 1:
            where = f"at every {axis_text(axis)} from {first} to {last}"
        elif number == 0:
            where = f"up to {last}"
        elif number == len(found) - 1:
            where = f"from {first} on"
        else:
            where = f"from {first} to {last}"
        several = " and " in name
        does = (
            f"{'are' if several else 'is'} the quickest"
            if equal
            else f"{'get' if several else 'gets'} most done"
        )
        words.append(f"{name} {does} {where}")
    return words


def _at(series: Sequence[Series], index: int) -> dict[str, Work]:
    """Return the comparable work at one value by line; empty if the lines do different work."""
    found = _comparable({one.name: one.by_index[index] for one in series if index in one.by_index})
    return found if have_same_workload(found.values()) else {}


def _fastest(series: Sequence[Series], index: int, error: float) -> str | None:
    """Return the name of the fastest line, or several if equally fast; only usable figures count."""
    there = _at(series, index)
    if not there:
        return None
    measured = all(one.by_index[index].measured for one in series if index in one.by_index)
    within = SAME_WITHIN if measured else max(SAME_WITHIN, error)
    most = max(one.per_second for one in there.values())
    return " and ".join(name for name, one in there.items() if most <= one.per_second * (1 + within))


def _describe_widest_gap(axis: SweepAxis, series: Sequence[Series]) -> str | None:
    """Describe the value where the fastest and the slowest line are farthest apart."""
    gaps = []
    for index, text in enumerate(axis.texts):
        works = _at(series, index)
        if len(works) > 1:
            best, least = (pick(works, key=lambda name: works[name].per_second) for pick in (max, min))
            ratio = works[best].per_second / works[least].per_second
            gaps.append((ratio, best, least, have_same_steps(works.values()), text))
    if not gaps:
        return None
    ratio, best, least, equal, text = max(gaps, key=itemgetter(0))
    if ratio <= 1 + SAME_WITHIN:
        return f"They {'take the same time' if equal else 'do as much in the same time'} at every value."
    how = (
        f"is {ratio:.2f}x as fast as {least}"
        if equal
        else f"does {ratio:.2f}x the work of {least} in the same time"
    )
    return f"They are farthest apart at {text}: {best} {how}."


def _describe_change(axis: SweepAxis, one: Series, *, alone: bool) -> str:
    """Describe the change from the first to the last value."""
    first, last = min(one.by_index, default=0), max(one.by_index, default=0)
    if first == last or any(one.by_index[end].untrusted for end in (first, last)):
        return ""
    begin, end = _comparable({end: one.by_index[end] for end in (first, last)}).values()
    steps = f"{time_text(begin.step_s)} at {axis.texts[first]}, {time_text(end.step_s)} at {axis.texts[last]}"
    words = f"{'a step takes' if alone else f'{one.name} takes'} {steps} ({end.step_s / begin.step_s:.2f}x)"
    if have_same_steps((begin, end)):
        return words
    if not have_same_workload((begin, end)):
        return f"{words}, for different work"
    rates = f"{per_second_text(begin.per_second)} and {per_second_text(end.per_second)} {begin.unit}/s"
    return f"{words}, for {rates} ({end.per_second / begin.per_second:.2f}x)"


def _describe_points(axis: SweepAxis, series: Sequence[Series]) -> Iterator[str]:
    works = _comparable(
        {
            f"{one.name}, {axis.texts[index]}" if len(series) > 1 else axis.texts[index]: figure
            for one in series
            for index, figure in one.by_index.items()
        }
    )
    if not works:
        return
    ordered = sorted(works.items(), key=lambda entry: -entry[1].per_second)
    if not have_same_workload(works.values()):
        each = ", ".join(f"{time_text(work.step_s)} with {name}" for name, work in ordered[: FEW + 1])
        yield f"A step takes {each}; they are different work, so not compared."
        return
    (name, best), *others_sorted = ordered
    if have_same_steps(works.values()):
        yield f"{name} is the quickest: {time_text(best.step_s)} a step."
        others = [f"{other} {time_text(work.step_s)}" for other, work in others_sorted[:FEW]]
    else:
        yield f"{name} gets most done in the same time: {_rate(best)}."
        others = [f"{other} {_rate(work)}" for other, work in others_sorted[:FEW]]
    ratios = [f"({best.per_second / work.per_second:.2f}x)" for _, work in others_sorted[:FEW]]
    if others:
        yield f"Behind it {', '.join(map(' '.join, zip(others, ratios, strict=True)))}."


def _rate(work: Work) -> str:
    return f"{per_second_text(work.per_second)} {work.unit}/s"


def _describe_maps(maps: Maps) -> Iterator[str]:
    places = sorted({place for panel in maps.panels for place in panel.figures})
    every = _comparable(
        {(panel.name, at): figure for panel in maps.panels for at, figure in panel.figures.items()}
    )
    if not every:
        return
    if len(maps.panels) > 1:
        wins: Counter[str] = Counter()
        equal = True
        for place in places:
            works = _comparable({one.name: one.figures[place] for one in maps.panels if place in one.figures})
            if works and have_same_workload(works.values()):
                wins.update([max(works, key=lambda name: works[name].per_second)])
                equal = equal and have_same_steps(works.values())
        text = ", ".join(f"{name} at {count}" for name, count in wins.most_common())
        if text:
            most = "The quickest" if equal else "Most work in the same time,"
            yield f"{most} of {len(places)} points: {text}."
    ends = [pick(every, key=lambda key: every[key].step_s) for pick in (min, max)]
    words = [
        f"{time_text(every[name, place].step_s)}{f' with {name}' if len(maps.panels) > 1 else ''} at "
        f"{maps.across.texts[place[0]]}, {maps.upwards.texts[place[1]]}"
        for name, place in ends
    ]
    unlike = "" if have_same_steps(every.values()) else "; steps are different work at some points"
    yield f"The quickest step: {words[0]}; the slowest: {words[1]}{unlike}."


def _comparable(figures: Mapping[Key, SweepFigure]) -> dict[Key, Work]:
    """Return comparable figures: measured ones if all are measured, without untrusted ones; else predictions."""
    if all(figure.measured for figure in figures.values()):
        return {key: figure.done for key, figure in figures.items() if not figure.untrusted}
    return {key: figure.predicted_work for key, figure in figures.items()}


def _misfits(sweep: Sweep) -> Iterator[str]:
    missing = [point for point in sweep.points if point.misfit is not None]
    if missing:
        one = str(missing[0].misfit).splitlines()[0]
        points = "point does" if len(missing) == 1 else "points do"
        yield f"{len(missing)} {points} not fit: {one}."


def _describe_accuracy(sweep: Sweep) -> str:
    """Describe the measurements, their verdict, and the model's error."""
    pairs = _measured(sweep)
    if not pairs:
        return "By the model alone; --confirm N measures N of the points on the emulated network."
    runs = sum(point.run is not None for point in sweep.points)
    there = sum(point.misfit is None for point in sweep.points)
    some = f"all {there}" if runs == there else f"{runs} of {there}"
    text = f"Measured {CLOCKS[sweep.clock]} at {some} points: {sweep.status}"
    errors = _errors(sweep)
    if not errors:
        return f"{text}."
    error = f"{percent_text(statistics.median(errors))} off in the median, {percent_text(max(errors))} at the worst"
    return f"{text}; the model was {error}."


def _errors(sweep: Sweep) -> list[float]:
    """Return the model's relative errors on measurements that are not untrusted."""
    return [
        abs(figure.predicted_s / measured.median_s - 1)
        for figure, measured in _measured(sweep)
        if measured.status != "untrusted"
    ]


def _measured(sweep: Sweep) -> list[tuple[SweepFigure, Measured]]:
    return [
        (figure, figure.measured) for point in sweep.points for figure in point.figures if figure.measured
    ]


def caption(sweep: Sweep) -> str:
    """Return a caption for a paper: the content, how it was obtained, versions, and the verdict."""
    shown = arrange_series(sweep)
    if isinstance(shown, Curves):
        parts = [f"Step time of {sweep.scenario} against {axis_text(shown.axis)}."]
    else:
        axes = f"{axis_text(shown.across)} and {axis_text(shown.upwards)}"
        parts = [f"Step time of {sweep.scenario} over {axes}."]
    pairs = _measured(sweep)
    by_model = f"by the testbed's model ({sweep.made['calibration']})"
    if not pairs:
        parts.append(f"All figures {by_model}; none was measured.")
    else:
        where = (
            "Lines" if isinstance(shown, Curves) and shown.axis.numbers is not None else "Unmarked figures"
        )
        least, most = (end(measured.trials for _, measured in pairs) for end in (min, max))
        trials = f"{least}" if least == most else f"{least} to {most}"
        sure = min(measured.confidence for _, measured in pairs)
        parts.append(
            f"{where}: {by_model}. Marked: the median of {trials} trials, measured {CLOCKS[sweep.clock]}"
        )
        parts[-1] += (
            f", with its {100 * sure:.0f} % interval by order statistics; verdict: {sweep.status}."
            if least > 1
            else f"; verdict: {sweep.status}."
        )
    parts.append(f"testbed {sweep.made['testbed']}, {sweep.made['created'][:10]}.")
    return " ".join(parts)


def axis_text(axis: SweepAxis) -> str:
    """Return an axis name for a sentence, without its unit."""
    return axis.label.removesuffix(f" ({axis.unit})")


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}." if words else ""


@dataclass(frozen=True)
class Series:
    """The figures of one variant, and of one value of the other axis if that axis has words.

    `by_index` has figures by index of the axis value. `colour` and `pattern` are numbers from 0; lines of one variant
    share a colour if patterns distinguish the words.
    """

    name: str
    by_index: Mapping[int, SweepFigure]
    colour: int = 0
    pattern: int = 0


@dataclass(frozen=True)
class Curves:
    """Lines along an axis, or points if the axis values are words."""

    axis: SweepAxis
    series: Sequence[Series]


@dataclass(frozen=True)
class Panel:
    """One variant at all values of two axes."""

    name: str
    figures: Mapping[GridPoint, SweepFigure]


@dataclass(frozen=True)
class Maps:
    """A panel per variant; `across` is the first axis, and `upwards` the second."""

    across: SweepAxis
    upwards: SweepAxis
    panels: Sequence[Panel]


def arrange_series(sweep: Sweep) -> Curves | Maps:
    """Arrange a sweep as curves, if it has one axis or one with numbers and one with words, else as maps."""
    axes = sweep.axes
    if len(axes) == 1:
        names = enumerate(sweep.variants)
        return Curves(
            axes[0], [Series(name, _along(sweep, name, 0, {}), index, index) for index, name in names]
        )
    worded = [number for number, axis in enumerate(axes) if axis.numbers is None]
    if len(worded) != 1:
        return Maps(axes[0], axes[1], [Panel(name, _figures(sweep, name)) for name in sweep.variants])
    words, along = worded[0], 1 - worded[0]
    series = []
    for number, name in enumerate(sweep.variants):
        for index, text in enumerate(axes[words].texts):
            alone = len(sweep.variants) == 1
            by_index = _along(sweep, name, along, {words: index})
            series.append(
                Series(text if alone else f"{name}, {text}", by_index, index if alone else number, index)
            )
    return Curves(axes[along], series)


def _figures(sweep: Sweep, variant: str) -> dict[GridPoint, SweepFigure]:
    return {
        point.at: figure for point in sweep.points for figure in point.figures if figure.variant == variant
    }


def _along(sweep: Sweep, variant: str, along: int, fixed: Mapping[int, int]) -> dict[int, SweepFigure]:
    return {
        place[along]: figure
        for place, figure in _figures(sweep, variant).items()
        if all(place[number] == index for number, index in fixed.items())
    }

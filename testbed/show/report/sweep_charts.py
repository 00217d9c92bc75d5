"""A sweep's charts on its page: lines along an axis, linear or logarithmic, and maps of two axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from markupsafe import Markup

from testbed.measure.results.sweep_result import SweepAxis, SweepFigure
from testbed.show.report.charts import series_class
from testbed.show.report.formatting import time_text
from testbed.show.report.svg import CHART_WIDTH, Axis, Drawing, padded_range, shorten
from testbed.show.report.sweep_answer import SAME_WITHIN
from testbed.show.report.sweep_series import Curves, Maps, Panel

_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 380.0, 84.0, 24.0, 14.0, 52.0
_SHADES = 6
_CELL, _LABELS = 34.0, 110.0


def curves_chart(curves: Curves) -> Markup:
    """The model as lines, what was measured as discs with the interval of the median."""
    drawing = Drawing(CHART_WIDTH, _HEIGHT, f"Step time against {curves.axis.label}")
    bottom = _HEIGHT - _BOTTOM
    places = positions(curves.axis)
    across = Axis(*padded_range(places, 0.03), start=_LEFT, end=CHART_WIDTH - _RIGHT)
    every = [value for one in curves.series for figure in one.by_index.values() for value in _values(figure)]
    low, high = padded_range([*every, 0.0] if min(every) < max(every) / 2 else every)
    upwards = Axis(max(low, 0.0), high, start=bottom, end=_TOP)
    for tick in upwards.ticks(5):
        drawing.line((_LEFT, upwards(tick)), (CHART_WIDTH - _RIGHT, upwards(tick)), "grid")
        drawing.text(_LEFT - 8, upwards(tick) + 4, time_text(tick), "tick", anchor="end")
    _draw_values(drawing, curves.axis, [across(place) for place in places], bottom)
    for number, one in enumerate(curves.series):
        css = series_class(number)
        there = sorted(one.by_index)
        ends = [(across(places[index]), upwards(one.by_index[index].predicted_s)) for index in there]
        if curves.axis.numbers is not None:
            for start, end in itertools.pairwise(ends):
                drawing.line(start, end, f"{css} whisker")
        for index in there:
            figure, x = one.by_index[index], across(places[index])
            tooltip = f"{one.name}, {curves.axis.texts[index]}: {figure_words(figure)}"
            measured = figure.measured
            if measured is None:
                drawing.circle(x, upwards(figure.predicted_s), 2.6, f"{css} point", tooltip=tooltip)
                continue
            drawing.line((x, upwards(measured.low_s)), (x, upwards(measured.high_s)), f"{css} median")
            dimmed = " unreliable" if figure.untrusted else ""
            drawing.circle(x, upwards(measured.median_s), 5, f"{css} point{dimmed}", tooltip=tooltip)
    return drawing.markup()


def positions(axis: SweepAxis) -> list[float]:
    """Where its values are, on a scale that is linear: numbers, their logarithms, or one after the other."""
    if axis.numbers is None:
        return [float(index) for index in range(len(axis.texts))]
    return [math.log10(number) if axis.log else number for number in axis.numbers]


def figure_words(figure: SweepFigure) -> str:
    """One figure, for whoever points at it."""
    told = f"{time_text(figure.predicted_s)} by the model"
    if figure.measured is None:
        return told
    return f"{time_text(figure.measured.median_s)} measured ({figure.measured.status}), {told}"


def maps_chart(maps: Maps) -> Markup:
    """A panel for each variant, one below the other, in one scale of shades; what was measured has a frame."""
    columns, rows = len(maps.across.texts), len(maps.upwards.texts)
    panel_height = 30 + rows * _CELL + _BOTTOM
    drawing = Drawing(CHART_WIDTH, panel_height * len(maps.panels), "Step time over two settings")
    every = [figure.step_time_s for panel in maps.panels for figure in panel.figures.values()]
    bounds = min(every), max(every)
    for number, panel in enumerate(maps.panels):
        top = panel_height * number
        title = f"{panel.name}: {maps.upwards.label} upwards, {maps.across.label} to the right"
        drawing.text(_LABELS, top + 18, title, "row-label")
        for row, text in enumerate(maps.upwards.texts):
            y = _y(row, rows, top)
            drawing.text(_LABELS - 8, y + _CELL / 2 + 4, shorten(text, _LABELS - 12), "tick", anchor="end")
        width = (CHART_WIDTH - _LABELS - _RIGHT) / columns
        bottom = top + 30 + rows * _CELL
        for column, text in enumerate(maps.across.texts):
            middle = _LABELS + width * (column + 0.5)
            drawing.text(middle, bottom + 16, shorten(text, width), "tick", anchor="middle", tooltip=text)
        _draw_cells(drawing, maps, panel, bounds, (top, width))
    return drawing.markup()


def _draw_cells(
    drawing: Drawing, maps: Maps, panel: Panel, bounds: tuple[float, float], where: tuple[float, float]
) -> None:
    top, width = where
    rows = len(maps.upwards.texts)
    for column, across in enumerate(maps.across.texts):
        for row, upwards in enumerate(maps.upwards.texts):
            x, y = _LABELS + width * column, _y(row, rows, top)
            figure = panel.figures.get((column, row))
            place = f"{panel.name}, {across}, {upwards}"
            if figure is None:
                drawing.rect(
                    x + 1, y + 1, width - 2, _CELL - 2, "heat-none", tooltip=f"{place}: does not fit"
                )
                continue
            tooltip = f"{place}: {figure_words(figure)}"
            css = f"heat {'worse' if figure.untrusted else 'better'} heat-{shade(figure.step_time_s, bounds)}"
            drawing.rect(x + 1, y + 1, width - 2, _CELL - 2, css, radius=2, tooltip=tooltip)
            if figure.measured:
                drawing.rect(
                    x + 2.5, y + 2.5, width - 5, _CELL - 5, "heat-measured", radius=2, tooltip=tooltip
                )
            label = shorten(time_text(figure.step_time_s), width)
            drawing.text(x + width / 2, y + _CELL / 2 + 4, label, "value", anchor="middle", tooltip=tooltip)


def shade(step_s: float, bounds: tuple[float, float]) -> int:
    """From 0, the quickest, to 6, the slowest; on a logarithmic scale. One shade where all are alike."""
    low, high = bounds
    if high <= low * (1 + SAME_WITHIN):
        return 0
    return round(_SHADES * math.log(step_s / low) / math.log(high / low))


def _y(row: int, rows: int, top: float) -> float:
    """Of a row's upper edge; the first value is at the bottom."""
    return top + 30 + (rows - 1 - row) * _CELL


def _values(figure: SweepFigure) -> Sequence[float]:
    measured = figure.measured
    return (figure.predicted_s, *((measured.low_s, measured.high_s) if measured else ()))


def _draw_values(drawing: Drawing, axis: SweepAxis, xs: Sequence[float], bottom: float) -> None:
    """Values below the axis, as many as there is room for, and its name."""
    taken = -math.inf
    for x, text in zip(xs, axis.texts, strict=True):
        drawing.line((x, _TOP), (x, bottom), "grid")
        half = len(text) * 3.6
        if x - half > taken:
            drawing.text(x, bottom + 17, text, "tick", anchor="middle")
            taken = x + half + 6
    drawing.text(CHART_WIDTH - _RIGHT, bottom + 40, axis.label, "row-label", anchor="end")

"""The page of an exploration: results, confirmation, scatter plots and sensitivity map."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from testbed.measure.results.committed_work import compute_rates
from testbed.measure.results.records import JsonObject
from testbed.measure.results.result import Result
from testbed.prediction.step_flops import StepWork
from testbed.show.report.charts import draw_time_axis, series_class
from testbed.show.report.exploration_findings import (
    BASELINE,
    BEST,
    KINDS,
    Row,
    best_of,
    describe_findings,
    pair_rows,
    whole_step_s,
)
from testbed.show.report.pages import render_page
from testbed.show.report.svg import (
    CHART_WIDTH,
    COLUMN_WIDTH,
    Axis,
    Box,
    Drawing,
    draw_responsive,
    padded_range,
    shorten,
    text_width,
)
from testbed.spec.units import size_text, time_text

PAGE = "exploration.html"


def write_exploration(folder: Path, document: JsonObject, confirmed: Result | None = None) -> Path:
    """Write the page of an `exploration.json`; `confirmed` is the run that confirms it."""
    page = folder / PAGE
    page.write_text(render_exploration(document, confirmed), encoding="utf-8")
    return page


def render_exploration(document: JsonObject, confirmed: Result | None) -> str:
    """Render the page's HTML."""
    rows = compared_rows(document, confirmed)
    shown = pair_rows(rows)
    work = StepWork(**document["work"]) if document["work"] else None
    shown = [{**row, "rates": compute_rates(work, whole_step_s(row))} for row in shown]
    content = {
        "document": document,
        "confirmed": confirmed,
        "rows": shown,
        "best": best_of(rows),
        "twice": any(row["tuned"] for row in shown),
        "rated": work is not None,
        "sized": any(row["memory_bytes"] is not None for row in shown),
        "tailed": any(row["tail_s"] not in (None, row["step_time_s"]) for row in rows),
        "sentences": describe_findings(document, rows),
        "front": front_chart(document, shown),
        "sensitivity": _sensitivity(document, rows),
        "agreement": agreement_chart(rows) if any(row["measured"] for row in rows) else None,
        "wrong": sorted(
            (row for row in rows if row["measured"]),
            key=lambda row: -abs(row["measured"].predicted.error),
        ),
    }
    return render_page("exploration.html.j2", content)


def _sensitivity(document: JsonObject, rows: Sequence[Row]) -> Markup | None:
    found = document.get("sensitivity")  # older searches have none
    baseline = next((row["of"] for row in rows if row["kind"] == BASELINE), None)
    if not found or not baseline:
        return None
    return draw_responsive(partial(sensitivity_chart, found, baseline))


def compared_rows(document: JsonObject, confirmed: Result | None = None) -> list[Row]:
    """Return the compared entries, each with its measurements by the variant's name."""
    variants = {variant.name: variant for variant in confirmed.variants} if confirmed else {}
    rows = []
    for entry in document["compared"]:
        series = series_class(KINDS.index(entry["kind"]))
        rows.append({**entry, "series": series, "measured": variants.get(entry["variant"])})
    return rows


def front_chart(document: JsonObject, rows: Sequence[Row]) -> Markup:
    """Plot predicted step time against bytes between buildings for all feasible ones; the Pareto front is filled.

    `rows` are the compared entries, whose points are named.
    """
    front = {_place(entry) for entry in document["pareto"]}
    named: dict[tuple[float, float], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["kind"] != BEST):
        named.setdefault(_place(row), []).append(row)
    points = []
    for entry in document["fitting"]:
        place = _place(entry)
        own = named.pop(place, [])
        css = f"{series_class(0)} point" if place in front else f"{series_class(5)} point faint"
        size = size_text(entry["wan_bytes"])
        tooltip = f"{entry['configuration']}: {time_text(entry['step_time_s'])}, {size}"
        name = ", ".join(row["of"] for row in own)
        css = f"{own[0]['series']} point" if own else css
        points.append(Point(entry["step_time_s"], entry["wan_bytes"], css, tooltip, name))
    points.sort(key=lambda point: point.css.endswith("faint"))
    return scatter(points, "Step time and bytes between buildings", sizes=True)


def _place(entry: JsonObject) -> tuple[float, float]:
    """Return an entry's coordinates in the chart."""
    return float(entry["step_time_s"]), float(entry["wan_bytes"])


def agreement_chart(rows: Sequence[JsonObject]) -> Markup:
    """Plot measured against predicted step times of confirmed entries, with the diagonal."""
    points = []
    for row in rows:
        if row["measured"]:
            # this is the prediction for the emulated network, which may be a scale model
            predicted_s = row["measured"].predicted.step_time_s
            median_s = row["measured"].step_time_s.median
            tooltip = f"{row['name']}: predicted {time_text(predicted_s)}, measured {time_text(median_s)}"
            points.append(Point(predicted_s, median_s, f"{row['series']} point", tooltip, row["of"]))
    return scatter(points, "Predicted and measured step time", sizes=False)


_HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 320.0, 76.0, 30.0, 12.0, 16.0
_RADIUS, _FONT, _LINE = 4.5, 12, 15.0
MAX_TOOLTIPS = 4  # points of a mark whose tooltips are shown


class Point(NamedTuple):
    """A point: `x` in seconds, CSS classes of its mark, and a name next to it (if empty, only in the tooltip)."""

    x: float
    y: float
    css: str
    tooltip: str
    name: str = ""


@dataclass
class _Mark:
    """Points drawn as one mark, at the position of the first."""

    x: float
    y: float
    points: list[Point] = field(default_factory=list)

    @property
    def name(self) -> str:
        return ", ".join(dict.fromkeys(point.name for point in self.points if point.name))

    @property
    def tooltip(self) -> str:
        more = len(self.points) - MAX_TOOLTIPS
        tooltips = [point.tooltip for point in self.points[:MAX_TOOLTIPS]]
        return "\n".join([*tooltips, *([f"and {more:,} more here"] if more > 0 else [])])


def scatter(points: Sequence[Point], label: str, *, sizes: bool) -> Markup:
    """Plot times on the x axis and sizes on the y axis, or times on both axes with the diagonal."""
    drawing = Drawing(COLUMN_WIDTH, _HEIGHT, label)
    bottom = _HEIGHT - _BOTTOM
    across, upwards = [point.x for point in points], [point.y for point in points]
    if not sizes:
        across = upwards = [*across, *upwards]
    x_axis = Axis(*padded_range(across), start=_LEFT, end=COLUMN_WIDTH - _RIGHT)
    y_axis = Axis(*padded_range(upwards), start=bottom, end=_TOP)
    draw_time_axis(drawing, x_axis, _TOP, bottom, about=4)
    for tick in y_axis.ticks(5):
        if tick >= 0:
            y = y_axis(tick)
            drawing.line((_LEFT, y), (COLUMN_WIDTH - _RIGHT, y), "grid")
            text = size_text(tick) if sizes else time_text(tick)
            drawing.text(_LEFT - 8, y + 4, text, "tick", anchor="end")
    if not sizes:
        low, high = x_axis.low, x_axis.high
        drawing.line((x_axis(low), y_axis(low)), (x_axis(high), y_axis(high)), "base")
    marks = _marks(points, x_axis, y_axis)
    for mark in reversed(marks):
        css, count = mark.points[0].css, len(mark.points)
        drawing.circle(mark.x, mark.y, _RADIUS, css, tooltip=mark.tooltip, points=count)
    _draw_names(drawing, marks)
    return drawing.markup()


def _marks(points: Sequence[Point], x_axis: Axis, y_axis: Axis) -> list[_Mark]:
    """Merge overlapping points into marks; named points come first and set the colour."""
    marks: list[_Mark] = []
    cells: dict[tuple[int, int], list[_Mark]] = {}
    for point in sorted(points, key=lambda point: not point.name):
        x, y = x_axis(point.x), y_axis(point.y)
        column, row = math.floor(x / (2 * _RADIUS)), math.floor(y / (2 * _RADIUS))
        near = itertools.product((column - 1, column, column + 1), (row - 1, row, row + 1))
        there = [mark for cell in near for mark in cells.get(cell, ())]
        mark = next((own for own in there if math.hypot(own.x - x, own.y - y) < 2 * _RADIUS), None)
        if mark is None:
            mark = _Mark(x, y)
            marks.append(mark)
            cells.setdefault((column, row), []).append(mark)
        mark.points.append(point)
    return marks


def _draw_names(drawing: Drawing, marks: Sequence[_Mark]) -> None:
    taken = [Box(mark.x, mark.y, 2 * _RADIUS, 2 * _RADIUS) for mark in marks]
    for mark in marks:
        if not mark.name:
            continue
        width = text_width(mark.name, _FONT) + 4
        place = next((box for box in _places(mark, width) if not any(map(box.overlap, taken))), None)
        if place is None:
            continue  # the tooltip and the table have the name
        taken.append(place)
        away = math.hypot(place.x - mark.x, place.y - mark.y) > width / 2 + 3 * _RADIUS
        if away:
            toward = place.y + (_LINE / 2 if place.y < mark.y else -_LINE / 2)
            drawing.line((mark.x, mark.y), (place.x, toward), "base")
        drawing.text(place.x, place.y + 4, mark.name, "value", anchor="middle")


def _places(mark: _Mark, width: float) -> Iterator[Box]:
    """Yield positions for a name next to, above and below its mark, increasingly far away but within the drawing."""
    left, right = _LEFT + width / 2, COLUMN_WIDTH - 4 - width / 2
    for ring in range(1, 9):
        high = ring * (_LINE + 1)
        side = width / 2 + _RADIUS + 3
        for dx, dy in (
            (side, high - _LINE),
            (-side, high - _LINE),
            (0.0, -high),
            (0.0, high),
            (side, -high),
            (-side, -high),
        ):
            x, y = min(max(mark.x + dx, left), right), mark.y + dy
            if _TOP + _LINE / 2 <= y <= _HEIGHT - _BOTTOM - _LINE / 2:
                yield Box(x, y, width, _LINE)


_LABELS, _LABELS_ON_PHONES, _TOP, _ROW, _GAP = 150.0, 96.0, 54.0, 34.0, 40.0
_SHADES, _FULL = 6, 0.5  # number of shades; share of time from which the darkest is used


def sensitivity_chart(found: JsonObject, baseline: str, width: float = CHART_WIDTH) -> Markup:
    """Draw two triangles: the baseline with the best's choices, and the best with the baseline's choices.

    The diagonals have single choices. In a narrow drawing one triangle is above the other.
    """
    choices = list(found["choices"])
    narrow = width < CHART_WIDTH
    panel = width if narrow else (width - _GAP) / 2
    labels = _LABELS_ON_PHONES if narrow else _LABELS
    high = _TOP + _ROW * len(choices) + 8
    drawing = Drawing(width, high * (2 if narrow else 1), "What each choice is worth, alone and in pairs")
    sides = (
        ("taken", f"{baseline} takes over from the best: time saved", found["first_s"], 1.0),
        ("given_back", f"the best gives back to {baseline}: time lost", found["best_s"], -1.0),
    )
    for number, (name, title, base_s, sign) in enumerate(sides):
        left, top = (0.0, number * high) if narrow else (number * (panel + _GAP), 0.0)
        each = (panel - labels) / len(choices)
        drawing.text(left, top + 16, title, "row-label", room=panel)
        for column, choice in enumerate(choices):
            middle = left + labels + each * (column + 0.5)
            heading = shorten(choice, each - 4)
            drawing.text(middle, top + _TOP - 10, heading, "tick", anchor="middle", tooltip=choice)
            y = top + _TOP + _ROW * column + _ROW / 2 + 4
            drawing.text(left + labels - 8, y, shorten(choice, labels - 12), "tick", anchor="end")
        for entry in found[name]:
            places = [choices.index(choice) for choice in entry["choices"]]
            x, y = left + labels + each * places[-1], top + _TOP + _ROW * places[0]
            _cell(drawing, (x, y), each, entry, (base_s, sign))
    return drawing.markup()


def _cell(
    drawing: Drawing, corner: tuple[float, float], width: float, entry: JsonObject, base: tuple[float, float]
) -> None:
    x, y = corner
    base_s, sign = base
    together, step_s = " and ".join(entry["choices"]), entry["step_time_s"]
    if step_s is None:
        tooltip, text, css = f"{together}: does not fit", "", "heat-none"
    else:
        won = sign * (1 - step_s / base_s)
        tooltip, text = (
            f"{together}: {time_text(step_s)} in place of {time_text(base_s)}",
            f"{100 * won:+.0f} %",
        )
        shade = min(_SHADES, round(abs(won) / _FULL * _SHADES))
        css = f"heat {'better' if won >= 0 else 'worse'} heat-{shade}"
        text = "0 %" if text in ("+0 %", "-0 %") else text
    drawing.rect(x + 1, y + 1, width - 2, _ROW - 2, css, radius=2, tooltip=tooltip)
    drawing.text(x + width / 2, y + _ROW / 2 + 4, text, "value", anchor="middle", tooltip=tooltip)

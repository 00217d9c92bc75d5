"""The page of an exploration: what was found, what confirmed it, where the model was wrong. One HTML file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from testbed.report.answer import BASELINE, KINDS, Row, answer, best_of, paired
from testbed.report.charts import draw_time_axis, series_class
from testbed.report.figures import size_text, time_text
from testbed.report.pages import render_page
from testbed.report.sensitivity import sensitivity_chart
from testbed.report.svg import COLUMN_WIDTH, Axis, Drawing, padded_range
from testbed.results.records import JsonObject
from testbed.results.result import Result

PAGE = "exploration.html"
_HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 320.0, 76.0, 30.0, 12.0, 16.0


class Point(NamedTuple):
    """x in seconds; css: classes of the mark."""

    x: float
    y: float
    css: str
    tooltip: str


def write_exploration(folder: Path, document: JsonObject, confirmed: Result | None = None) -> Path:
    """Write the page of an exploration's `exploration.json`; confirmed: the run that confirms it."""
    page = folder / PAGE
    page.write_text(render_exploration(document, confirmed), encoding="utf-8")
    return page


def render_exploration(document: JsonObject, confirmed: Result | None) -> str:
    """The page's HTML."""
    rows = compared_rows(document, confirmed)
    shown = paired(rows)
    content = {
        "document": document,
        "confirmed": confirmed,
        "rows": shown,
        "best": best_of(rows),
        "twice": any(row["tuned"] for row in shown),
        "sized": any(row["memory_bytes"] is not None for row in shown),
        "tailed": any(row["tail_s"] != row["step_time_s"] for row in rows),
        "sentences": answer(document, rows),
        "front": front_chart(document),
        "sensitivity": _sensitivity(document, rows),
        "agreement": agreement_chart(rows) if any(row["measured"] for row in rows) else None,
        "wrong": sorted(
            (row for row in rows if row["measured"]),
            key=lambda row: -abs(row["measured"].predicted.error),
        ),
    }
    return render_page("exploration.html.j2", content)


def _sensitivity(document: JsonObject, rows: Sequence[Row]) -> Markup | None:
    found = document.get("sensitivity")  # searches of before have none
    baseline = next((row["of"] for row in rows if row["kind"] == BASELINE), None)
    return sensitivity_chart(found, baseline) if found and baseline else None


def compared_rows(document: JsonObject, confirmed: Result | None = None) -> list[Row]:
    """What is compared, with what was measured of it, by the name of its variant."""
    variants = {variant.name: variant for variant in confirmed.variants} if confirmed else {}
    rows = []
    for entry in document["compared"]:
        series = series_class(KINDS.index(entry["kind"]))
        rows.append({**entry, "series": series, "measured": variants.get(entry["variant"])})
    return rows


def front_chart(document: JsonObject) -> Markup:
    """Every configuration that fits: predicted step time against bytes between buildings; those on the front filled."""
    front = {json.dumps(entry["changes"], sort_keys=True) for entry in document["pareto"]}
    points = []
    for entry in document["fitting"]:
        chosen = json.dumps(entry["changes"], sort_keys=True) in front
        css = f"{series_class(0)} point" if chosen else f"{series_class(5)} point faint"
        size = size_text(entry["wan_bytes"])
        tooltip = f"{entry['configuration']}: {time_text(entry['step_time_s'])}, {size}"
        points.append(Point(entry["step_time_s"], entry["wan_bytes"], css, tooltip))
    points.sort(key=lambda point: point.css.endswith("point"))
    return _scatter(points, "Step time and bytes between buildings", sizes=True)


def agreement_chart(rows: Sequence[JsonObject]) -> Markup:
    """Predicted step time (to the right) against measured (upwards) of what was confirmed; a line where both agree."""
    points = []
    for row in rows:
        if row["measured"]:
            # of the same network: the one that was emulated may be a scale model
            predicted_s = row["measured"].predicted.step_time_s
            median_s = row["measured"].step_time_s.median
            tooltip = f"{row['name']}: predicted {time_text(predicted_s)}, measured {time_text(median_s)}"
            points.append(Point(predicted_s, median_s, f"{row['series']} point", tooltip))
    return _scatter(points, "Predicted and measured step time", sizes=False)


def _scatter(points: Sequence[Point], label: str, *, sizes: bool) -> Markup:
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
    for point in points:
        drawing.circle(x_axis(point.x), y_axis(point.y), 4.5, point.css, tooltip=point.tooltip)
    return drawing.markup()

"""The page of an exploration: what was found, what confirmed it, where the model was wrong. One HTML file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from testbed.report.charts import draw_time_axis, series_class
from testbed.report.compare import speedup_interval
from testbed.report.figures import percent_text, size_text, time_text
from testbed.report.pages import render_page
from testbed.report.svg import COLUMN_WIDTH, Axis, Drawing, padded_range
from testbed.results.records import JsonObject
from testbed.results.result import Result, Variant

PAGE = "exploration.html"
# of what is compared, in the order of their colours
KINDS = BASELINE, SINGLE, BEST, RANDOM = "baseline", "single", "best", "random"
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
    rows = _rows(document, confirmed)
    content = {
        "document": document,
        "confirmed": confirmed,
        "rows": rows,
        "first": rows[0],
        "tailed": any(row["tail_s"] != row["step_time_s"] for row in rows),
        "sentences": _sentences(rows),
        "front": front_chart(document),
        "agreement": agreement_chart(rows) if any(row["measured"] for row in rows) else None,
        "wrong": sorted(
            (row for row in rows if row["measured"]),
            key=lambda row: -abs(row["measured"].predicted.error),
        ),
    }
    return render_page("exploration.html.j2", content)


def _rows(document: JsonObject, confirmed: Result | None) -> list[dict[str, Any]]:
    """What is compared, as in the terminal; with what was measured of it, by the name of its variant."""
    variants = {variant.name: variant for variant in confirmed.variants} if confirmed else {}
    rows = []
    for entry in document["compared"]:
        series = series_class(KINDS.index(entry["kind"]))
        rows.append({**entry, "series": series, "measured": variants.get(entry["variant"])})
    return rows


def _sentences(rows: Sequence[JsonObject]) -> list[str]:
    """The best against the first baseline, the quickest, and the quickest of one dimension; measured where it was."""
    best = next(row for row in rows if row["kind"] == BEST)
    base, alone = ([row for row in rows if row["kind"] == kind] for kind in (BASELINE, SINGLE))
    others = [*base[:1], *(min(some, key=_step_s) for some in (base, alone) if some)]
    return [_faster(best, row) for number, row in enumerate(others) if row not in others[:number]]


def _step_s(row: JsonObject) -> float:
    measured: Variant | None = row["measured"]
    return float(measured.step_time_s.median if measured else row["step_time_s"])


def _faster(best: JsonObject, other: JsonObject) -> str:
    quick, slow = best["measured"], other["measured"]
    if quick and slow:
        here, there = quick.step_time_s, slow.step_time_s
        ratio = there.median / here.median
        interval = speedup_interval(here.samples, there.samples)
        sure = f"; {interval[0]:.2f}x to {interval[1]:.2f}x at 95 % confidence" if interval else ""
        how = f"measured{sure}"
    else:
        ratio, how = other["step_time_s"] / best["step_time_s"], "by the model"
    less = f", {percent_text(1 - 1 / ratio)} less time" if ratio > 1 else ""
    return f"The best is {ratio:.2f}x as fast as {other['name']}{less} ({how})."


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

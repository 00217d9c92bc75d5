"""The page of an exploration: what was found, what confirmed it, where the model was wrong. One HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from markupsafe import Markup

from testbed.measure.results.rates import rates_of
from testbed.measure.results.records import JsonObject
from testbed.measure.results.result import Result
from testbed.prediction.step_flops import StepWork
from testbed.show.report.answer import BASELINE, BEST, KINDS, Row, answer, best_of, paired, whole_step_s
from testbed.show.report.charts import series_class
from testbed.show.report.formatting import size_text, time_text
from testbed.show.report.pages import render_page
from testbed.show.report.scatter import Point, scatter
from testbed.show.report.sensitivity import sensitivity_chart
from testbed.show.report.svg import for_any_width

PAGE = "exploration.html"


def write_exploration(folder: Path, document: JsonObject, confirmed: Result | None = None) -> Path:
    """Write the page of an exploration's `exploration.json`; confirmed: the run that confirms it."""
    page = folder / PAGE
    page.write_text(render_exploration(document, confirmed), encoding="utf-8")
    return page


def render_exploration(document: JsonObject, confirmed: Result | None) -> str:
    """The page's HTML."""
    rows = compared_rows(document, confirmed)
    shown = paired(rows)
    work = StepWork(**document["work"]) if document["work"] else None
    shown = [{**row, "rates": rates_of(work, whole_step_s(row))} for row in shown]
    content = {
        "document": document,
        "confirmed": confirmed,
        "rows": shown,
        "best": best_of(rows),
        "twice": any(row["tuned"] for row in shown),
        "rated": work is not None,
        "sized": any(row["memory_bytes"] is not None for row in shown),
        "tailed": any(row["tail_s"] not in (None, row["step_time_s"]) for row in rows),
        "sentences": answer(document, rows),
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
    found = document.get("sensitivity")  # searches of before have none
    baseline = next((row["of"] for row in rows if row["kind"] == BASELINE), None)
    if not found or not baseline:
        return None
    return for_any_width(partial(sensitivity_chart, found, baseline))


def compared_rows(document: JsonObject, confirmed: Result | None = None) -> list[Row]:
    """What is compared, with what was measured of it, by the name of its variant."""
    variants = {variant.name: variant for variant in confirmed.variants} if confirmed else {}
    rows = []
    for entry in document["compared"]:
        series = series_class(KINDS.index(entry["kind"]))
        rows.append({**entry, "series": series, "measured": variants.get(entry["variant"])})
    return rows


def front_chart(document: JsonObject, rows: Sequence[Row]) -> Markup:
    """Every configuration that fits: predicted step time against bytes between buildings; those on the front filled.

    rows: what is compared, whose points have their names.
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
    """Where it is in the chart."""
    return float(entry["step_time_s"]), float(entry["wan_bytes"])


def agreement_chart(rows: Sequence[JsonObject]) -> Markup:
    """Predicted step time (to the right) against measured (upwards) of what was confirmed; a line where both agree."""
    points = []
    for row in rows:
        if row["measured"]:
            # of the same network: the one that was emulated may be a scale model
            predicted_s = row["measured"].predicted.step_time_s
            median_s = row["measured"].step_time_s.median
            tooltip = f"{row['name']}: predicted {time_text(predicted_s)}, measured {time_text(median_s)}"
            points.append(Point(predicted_s, median_s, f"{row['series']} point", tooltip, row["of"]))
    return scatter(points, "Predicted and measured step time", sizes=False)

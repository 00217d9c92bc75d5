"""Draw the picture of an experiment for docs/evidence/controller-experiments.md, from the run directories that it left.

    .venv/bin/python benchmarks/experiment_picture.py RUN_DIRECTORY... docs/evidence/experiments/NAME.svg

One bar per variant: the median of its step times, with the range. With `--queues` beside each the longest queue that a
reading found on any WAN link during its steps.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from testbed.show.report.svg import Axis, Drawing, svg_document
from testbed.spec.units import size_text, time_text

ROW, TOP, LABELS, WIDTH, VALUES = 30, 34, 190, 520, 120
STYLE = """
text { font: 13px system-ui, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; fill: #1b1f24; }
.title { font-weight: 600; } .value { fill: #5a6572; font-size: 12px; }
.bar { fill: #0072b2; } .queue { fill: #e69f00; } .whisker { stroke: #1b1f24; stroke-width: 1.5; }
.page { fill: #ffffff; }
"""


def main() -> None:
    """Draw it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--queues", action="store_true")
    options = parser.parse_args()
    summaries = [json.loads((run / "summary.json").read_text()) for run in options.runs]
    variants = [variant for summary in summaries for variant in summary["variants"]]
    panels = 2 if options.queues else 1
    height = TOP + ROW * len(variants) + 12
    drawing = Drawing(LABELS + panels * WIDTH, height, f"Experiment {summaries[0]['scenario']}, by variant")
    drawing.rect(0, 0, LABELS + panels * WIDTH, height, "page")
    for number, variant in enumerate(variants):
        drawing.text(10, TOP + ROW * number + 19, variant["name"])
    _panel(drawing, 0, "Step time, median and range", [_times(variant) for variant in variants], "bar")
    if options.queues:
        _panel(drawing, 1, "Longest queue in front of a WAN link", [_queue(v) for v in variants], "queue")
    drawing.root.set("width", str(LABELS + panels * WIDTH))
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    options.picture.write_text(svg_document(drawing.root, STYLE))


Bar = tuple[float, float, float, str]
"""Value, least, largest, and how it is said."""


def _times(variant: dict[str, Any]) -> Bar:
    times = variant["step_time_s"]
    return times["median"], times["min"], times["max"], time_text(times["median"])


def _queue(variant: dict[str, Any]) -> Bar:
    most = max(row["queue_peak_bytes"] for row in variant["wan_links"])
    return most, most, most, size_text(most)


def _panel(drawing: Drawing, panel: int, title: str, bars: list[Bar], css: str) -> None:
    left = LABELS + panel * WIDTH
    axis = Axis(0.0, max(bar[2] for bar in bars), start=left, end=left + WIDTH - VALUES)
    drawing.text(left, 20, title, "title")
    for number, (value, least, largest, said) in enumerate(bars):
        middle = TOP + ROW * number + 14
        drawing.rect(left, middle - 9, axis(value) - left, 18, css, radius=2)
        if largest > least:
            drawing.line((axis(least), middle), (axis(largest), middle), "whisker")
        drawing.text(axis(largest) + 8, middle + 4, said, "value")


if __name__ == "__main__":
    main()

"""One training step with each transport: the model's, and what runs measured, as a picture and a table.

    python benchmarks/step_transports.py FOLDER [RUN_DIRECTORY...]     # step-transports.svg; the table is printed

Of scenarios/transports/step-lossy.yaml and step-70b.yaml. Runs are told apart by their scenario's name. Times are on a
logarithmic axis.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import testbed
from testbed.show.report.svg import Axis, Drawing, svg_document
from testbed.spec.units import time_text

SCENARIOS = Path(__file__).parents[1] / "scenarios/transports"
NAMES = ("step-lossy", "step-70b")
ROW, TOP, LABELS, WIDTH = 24, 40, 130, 430
STYLE = """
text { font: 13px system-ui, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; fill: #1b1f24; }
.title { font-weight: 600; } .value { fill: #5a6572; font-size: 12px; } .page { fill: #ffffff; }
.bar { fill: #0072b2; } .measured { fill: #d55e00; }
"""


def measured(runs: list[Path]) -> dict[tuple[str, str], tuple[float, str]]:
    """By scenario and variant: seconds, and the verdict."""
    found = {}
    for run in runs:
        summary = json.loads((run / "summary.json").read_text())
        for variant in summary["variants"]:
            key = summary["scenario"], variant["name"]
            found[key] = variant["step_time_s"]["median"], variant["verdict"]["status"]
    return found


def main() -> None:
    """Both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("runs", type=Path, nargs="*")
    options = parser.parse_args()
    found = measured(options.runs)
    steps = {
        name: {
            variant: one.step_time_s
            for variant, one in testbed.predict(testbed.load(SCENARIOS / f"{name}.yaml")).items()
        }
        for name in NAMES
    }
    rows = max(map(len, steps.values()))
    drawing = Drawing(2 * (LABELS + WIDTH), TOP + rows * ROW + 10, "A training step with each transport")
    drawing.rect(0, 0, drawing.width, drawing.height, "page")
    for number, (name, own) in enumerate(steps.items()):
        left = number * (LABELS + WIDTH) + LABELS
        times_s = [*own.values(), *(took_s for key, (took_s, _) in found.items() if key[0] == name)]
        axis = Axis(math.log10(min(times_s)) - 0.3, math.log10(max(times_s)), left, left + WIDTH - 110)
        drawing.text(left, 22, f"{name}: by the model, and measured", "title")
        print(f"\n| {name} | the model | measured | error | verdict |\n|---|--:|--:|--:|---|")
        for row, (variant, step_s) in enumerate(own.items()):
            y = TOP + row * ROW
            drawing.text(left - 8, y + 13, variant, anchor="end")
            drawing.rect(left, y, axis(math.log10(step_s)) - left, 9, "bar")
            told = time_text(step_s)
            took_s, verdict = found.get((name, variant), (None, ""))
            if took_s is not None:
                drawing.rect(left, y + 9, axis(math.log10(took_s)) - left, 9, "measured")
                told += f", {time_text(took_s)}"
            drawing.text(axis(math.log10(max(step_s, took_s or 0.0))) + 6, y + 13, told, "value")
            off = "" if took_s is None else f"{(step_s / took_s - 1) * 100:+.1f} %"
            took = "" if took_s is None else time_text(took_s)
            print(f"| {variant} | {time_text(step_s)} | {took} | {off} | {verdict} |")
    (options.folder / "step-transports.svg").write_text(svg_document(drawing.root, STYLE))


if __name__ == "__main__":
    main()

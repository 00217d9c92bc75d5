"""Draw one step of some variants, rank by rank, for docs/evidence/training.md.

.venv/bin/python benchmarks/timeline_picture.py RUN_DIRECTORY docs/evidence/training/NAME.svg VARIANT...
"""

from __future__ import annotations

import argparse
import xml.etree.ElementTree as ET
from pathlib import Path

from testbed.show.report.charts import median_step, step_spans, timeline_chart
from testbed.show.report.run_data import load_run
from testbed.spec.units import time_text

TITLE, WIDTH = 26, 1160
STYLE = """
text { font: 12px system-ui, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; fill: #1b1f24; }
.title { font-weight: 600; font-size: 14px; } .tick { fill: #5a6572; } .page { fill: #ffffff; }
line { stroke: #d5dae0; stroke-width: 1; }
.op-forward { fill: #56b4e9; } .op-backward_input, .op-full_backward { fill: #0072b2; }
.op-backward_weight { fill: #009e73; } .op-communication { fill: #e69f00; }
.op-communication.odd { fill: #d55e00; }
"""
NAMESPACE = "{http://www.w3.org/2000/svg}"


def main() -> None:
    """Draw it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("variants", nargs="+")
    options = parser.parse_args()
    data = load_run(options.run)
    durations = {}
    for name in options.variants:
        own = [sample for sample in data.samples if sample.variant == name]
        step = median_step(own)
        if step is None:
            parser.error(f"no samples of {name}")
        begin, end = step_spans(own)[step]
        durations[name] = end - begin
    root = ET.Element("svg", {"xmlns": NAMESPACE.strip("{}")})
    ET.SubElement(root, "style").text = STYLE
    page = ET.SubElement(root, "rect", {"class": "page", "width": str(WIDTH)})
    top = 0.0
    for name, duration in durations.items():
        title = ET.SubElement(root, "text", {"class": "title", "x": "8", "y": str(top + 18)})
        title.text = f"{name}: {time_text(duration)}"
        chart = ET.fromstring(str(timeline_chart(data, name, max(durations.values()))))
        *_, width, height = map(float, chart.attrib["viewBox"].split())
        group = ET.SubElement(
            root, "g", {"transform": f"translate(8 {top + TITLE}) scale({(WIDTH - 16) / width})"}
        )
        for child in chart:
            for tooltip in [inner for inner in child if inner.tag.removeprefix(NAMESPACE) == "title"]:
                child.remove(tooltip)  # a picture has none
            if child.tag.removeprefix(NAMESPACE) != "title":
                group.append(child)
        top += TITLE + height * (WIDTH - 16) / width + 12
    page.set("height", str(top))
    root.attrib |= {"viewBox": f"0 0 {WIDTH} {top:g}", "width": str(WIDTH)}
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    options.picture.write_text(ET.tostring(root, encoding="unicode") + "\n")


if __name__ == "__main__":
    main()

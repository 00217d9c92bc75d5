"""Draw steps through the loss of a replica, by variant, for docs/evidence/fault-tolerance.md.

.venv/bin/testbed run scenarios/faults/replica-loss.yaml --clock virtual -o /tmp/loss
.venv/bin/python benchmarks/replicas_picture.py /tmp/loss docs/evidence/faults/step-times.svg
"""

from __future__ import annotations

import argparse
import json
import xml.etree.ElementTree as ET
from pathlib import Path

from testbed.show.report.shared_sections import replicas_chart
from testbed.show.report.svg import svg_document

MARGIN = 8
STYLE = """
text { font: 13px system-ui, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; fill: #1b1f24; }
.tick { fill: #5a6572; font-size: 12px; } line { stroke: #d5dae0; stroke-width: 1; }
.bar { fill: #0072b2; } .event-line { stroke: #d55e00; stroke-width: 2; stroke-dasharray: 4 3; }
"""


def main() -> None:
    """Draw it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    chart = replicas_chart(json.loads((options.run / "summary.json").read_text())["variants"])
    if chart is None:
        parser.error(f"{options.run}: no replicas come and go in it")
    root = ET.fromstring(str(chart))
    *_, width, height = root.attrib["viewBox"].split()
    size = {"width": str(float(width) + MARGIN), "height": height}
    root.attrib |= {"viewBox": f"{-MARGIN} 0 {size['width']} {height}", **size}
    page = ET.Element("rect", {"fill": "#ffffff", "x": str(-MARGIN), **size})
    root.insert(0, page)
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    options.picture.write_text(svg_document(root, STYLE))


if __name__ == "__main__":
    main()

"""Draw what each choice is worth at each design point, alone and in pairs, from the searches that were made.

    .venv/bin/python benchmarks/design_points_sensitivity.py FOLDER

FOLDER holds a search for each point, as `benchmarks/design_points.py FOLDER --model` leaves it. One picture each goes
to docs/evidence/design-points/.
"""

from __future__ import annotations

import argparse
import json
import xml.etree.ElementTree as ET
from pathlib import Path

from testbed.cli.experiments.explore import RESULT
from testbed.show.report.exploration import sensitivity_chart
from testbed.show.report.svg import CHART_WIDTH, svg_document

PICTURES = Path(__file__).parents[1] / "docs/evidence/design-points"
STYLE = """
text { font: 12px system-ui, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; fill: #1b1f24; }
.row-label { font-size: 13px; font-weight: 600; } .tick { fill: #5a6572; } .page { fill: #ffffff; }
.better { fill: #0072b2; } .worse { fill: #d55e00; } .heat-none { fill: #f5f6f8; }
.heat-0 { fill-opacity: .06; } .heat-1 { fill-opacity: .18; } .heat-2 { fill-opacity: .3; }
.heat-3 { fill-opacity: .42; } .heat-4 { fill-opacity: .54; } .heat-5 { fill-opacity: .66; }
.heat-6 { fill-opacity: .78; }
"""


def main() -> None:
    """Draw all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    for file in sorted(options.folder.glob(f"*/{RESULT}")):
        document = json.loads(file.read_text())
        baseline = next((one["of"] for one in document["compared"] if one["kind"] == "baseline"), None)
        if document["sensitivity"] is None or baseline is None:
            continue
        root = ET.fromstring(str(sensitivity_chart(document["sensitivity"], baseline)))
        root.insert(0, ET.Element("rect", {"class": "page", "width": "100%", "height": "100%"}))
        root.set("width", str(CHART_WIDTH))
        picture = PICTURES / f"{file.parent.name}.svg"
        picture.write_text(svg_document(root, STYLE))
        print(picture)


if __name__ == "__main__":
    main()

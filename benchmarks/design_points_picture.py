"""Draw the picture over all design points from the measured tables of docs/evidence/design-points.md.

    .venv/bin/python benchmarks/design_points_picture.py

One row per point: how many times as quick the best is as `production` as given, as `production` tuned, as `crosspipe`
tuned; the interval where there is one. The dashed line is the most that ScaleAcross Explorer reports over its own
baselines, 37.59 % less time.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from testbed.show.report.svg import Drawing, svg_document

PAGE = Path(__file__).parents[1] / "docs/evidence/design-points.md"
PICTURE = PAGE.parent / "design-points" / "measured.svg"
HEAD = "| design point | production | tuned | `crosspipe` tuned | best |"
RATIO = re.compile(r"([\d.]+)x(?: \(([\d.]+) to ([\d.]+)\))?")
SERIES = (
    ("given", "production as given"),
    ("tuned", "production tuned"),
    ("cross", "crosspipe tuned"),
)
PUBLISHED = 1 / (1 - 0.3759)
ROW, TOP, LEFT, WIDTH, RIGHT, FOOT = 46, 62, 210, 560, 60, 34
MOST, TICKS = 40.0, (1, 1.5, 2, 3, 5, 10, 20, 40)
STYLE = """
text { font: 13px system-ui, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; fill: #1b1f24; }
.title { font-weight: 600; } .value, .tick { fill: #5a6572; font-size: 11px; }
.given { fill: #e69f00; } .tuned { fill: #0072b2; } .cross { fill: #009e73; }
.whisker { stroke: #1b1f24; stroke-width: 1.2; } .grid { stroke: #e2e5e9; }
.published { stroke: #d55e00; stroke-width: 1.5; stroke-dasharray: 5 4; } .page { fill: #ffffff; }
"""

Ratio = tuple[float, float, float]
"""Median, and the ends of its interval, or itself."""


def rows(text: str) -> dict[str, list[Ratio]]:
    """Of each point that is measured, the three ratios, in the order of the last one."""
    found = {}
    for table in text.split(HEAD)[1:]:
        for line in table.splitlines()[2:]:
            if not line.startswith("|"):
                break
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            found[cells[0].strip("`")] = [_ratio(cell) for cell in cells[5:8]]
    return dict(sorted(found.items(), key=lambda item: item[1][2][0]))


def _ratio(cell: str) -> Ratio:
    match = RATIO.search(cell)
    if match is None:
        raise SystemExit(f"{PAGE}: got {cell!r}, expected a ratio such as 1.05x (1.04 to 1.06)")
    value, least, most = match.groups()
    return float(value), float(least or value), float(most or value)


def _at(ratio: float) -> float:
    return LEFT + WIDTH * math.log(max(ratio, 1.0)) / math.log(MOST)


def main() -> None:
    """Draw it."""
    points = rows(PAGE.read_text())
    height = TOP + ROW * len(points) + FOOT
    total = LEFT + WIDTH + RIGHT
    drawing = Drawing(total, height, "How many times as quick as baselines the best of each design point is")
    drawing.rect(0, 0, total, height, "page")
    drawing.text(10, 22, "The best of each design point, on packets: times as quick as", "title")
    for number, (css, label) in enumerate(SERIES):
        drawing.rect(LEFT + 190 * number, 36, 12, 12, css, radius=2)
        drawing.text(LEFT + 190 * number + 18, 47, label)
    bottom = TOP + ROW * len(points)
    for tick in TICKS:
        drawing.line((_at(tick), TOP), (_at(tick), bottom), "grid")
        drawing.text(_at(tick) - 8, bottom + 16, f"{tick:g}x", "tick")
    for place, (name, ratios) in enumerate(points.items()):
        top = TOP + ROW * place
        drawing.text(10, top + 27, name)
        for number, ((css, _), (value, least, most)) in enumerate(zip(SERIES, ratios, strict=True)):
            upper = top + 4 + 13 * number
            drawing.rect(LEFT, upper, max(1.0, _at(value) - LEFT), 11, css, radius=2)
            if most > least:
                drawing.line((_at(least), upper + 5.5), (_at(most), upper + 5.5), "whisker")
            drawing.text(_at(most) + 6, upper + 9.5, f"{value:.2f}x", "value")
    drawing.line((_at(PUBLISHED), TOP), (_at(PUBLISHED), bottom), "published")
    drawing.text(_at(PUBLISHED) + 4, bottom + 30, "37.59 % less time", "tick")
    drawing.root.set("width", str(total))
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(svg_document(drawing.root, STYLE))


if __name__ == "__main__":
    main()

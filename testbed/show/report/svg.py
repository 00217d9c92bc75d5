"""SVG drawing kit of the charts: document, axes, ticks, boxes, rows of intervals.

Charts are plain inline SVG styled by the page's style sheet. They need no script, support light and dark schemes and
printing, and keep reports small. Elements are built as a tree, so text is always escaped. Plotting libraries hard-code
colours and fonts, or add megabytes of script to each page.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

CHART_WIDTH = 1000
COLUMN_WIDTH = 490
PHONE_WIDTH = 400
"""Chart widths in user units (about a pixel): full page width, half of it, and on a phone."""

# Average character width relative to the font size, in the sans-serif fonts that reports use.
_CHARACTER_WIDTH = 0.6


class Drawing:
    """An SVG image of `width` x `height` user units; `label` describes it to screen readers."""

    def __init__(self, width: float, height: float, label: str) -> None:
        """Start an empty image."""
        self.width = width
        self.height = height
        self.root = ET.Element(
            "svg", {"viewBox": f"0 0 {_number(width)} {_number(height)}", "role": "img", "aria-label": label}
        )

    def group(self, css: str, tooltip: str | None = None, parent: ET.Element | None = None) -> ET.Element:
        """Add a group with a common class and tooltip; pass it to other methods as `parent`."""
        return self._add("g", css, {}, tooltip, parent)

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        css: str,
        *,
        radius: float = 0,
        tooltip: str | None = None,
        parent: ET.Element | None = None,
    ) -> None:
        """Add a rectangle by its upper left corner."""
        attributes = {"x": x, "y": y, "width": max(width, 0.0), "height": max(height, 0.0)}
        if radius:
            attributes["rx"] = radius
        self._add("rect", css, attributes, tooltip, parent)

    def line(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        css: str,
        *,
        width: float | None = None,
        parent: ET.Element | None = None,
    ) -> None:
        """Add a straight line; `width` overrides the style sheet."""
        attributes = {"x1": start[0], "y1": start[1], "x2": end[0], "y2": end[1]}
        if width is not None:
            attributes["stroke-width"] = width
        self._add("line", css, attributes, None, parent)

    def circle(
        self,
        x: float,
        y: float,
        radius: float,
        css: str,
        *,
        tooltip: str | None = None,
        points: int | None = None,
    ) -> None:
        """Add a disc; `points` is the number of data points it represents, for programs that read the page."""
        counted = {} if points is None else {"data-points": float(points)}
        self._add("circle", css, {"cx": x, "cy": y, "r": radius, **counted}, tooltip, None)

    def polygon(
        self, points: list[tuple[float, float]], css: str, *, parent: ET.Element | None = None
    ) -> None:
        """Add a closed shape through `points`."""
        element = self._add("polygon", css, {}, None, parent)
        element.set("points", " ".join(f"{_number(x)},{_number(y)}" for x, y in points))

    def text(
        self,
        x: float,
        y: float,
        content: str,
        css: str = "",
        *,
        anchor: str = "start",
        room: float | None = None,
        tooltip: str | None = None,
        parent: ET.Element | None = None,
    ) -> None:
        """Add one line of text on base line `y`.

        With `room` (in user units), longer text is cut, and its tooltip has the full text.
        """
        shown = content if room is None else shorten(content, room)
        if shown != content and tooltip is None:
            tooltip = content
        element = self._add("text", css, {"x": x, "y": y}, tooltip, parent)
        if anchor != "start":
            element.set("text-anchor", anchor)
        # A tooltip is a child element; the text itself must come before it.
        element.text = shown

    def markup(self) -> Markup:
        """Return the finished image, safe for a page."""
        return Markup(ET.tostring(self.root, encoding="unicode"))

    def _add(
        self,
        tag: str,
        css: str,
        attributes: dict[str, float],
        tooltip: str | None,
        parent: ET.Element | None,
    ) -> ET.Element:
        element = ET.SubElement(self.root if parent is None else parent, tag)
        if css:
            element.set("class", css)
        for name, value in attributes.items():
            element.set(name, _number(value))
        if tooltip:
            ET.SubElement(element, "title").text = tooltip
        return element


@dataclass(frozen=True)
class Axis:
    """A linear map from values `low..high` to positions `start..end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the position of `value`; values outside the range are clamped."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, about: int = 6) -> list[float]:
        """Return round values (1, 2 or 5 times a power of ten apart) in the range, roughly `about` of them."""
        raw = (self.high - self.low) / max(about, 1)
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]


def draw_responsive(draw: Callable[[float], Markup | None]) -> Markup | None:
    """Draw for wide pages and for phones (the style sheet shows one of them); None if there is nothing to draw."""
    if (wide := draw(CHART_WIDTH)) is None:
        return None
    narrow = draw(PHONE_WIDTH)
    return Markup('<div class="wide">{}</div><div class="narrow">{}</div>').format(wide, narrow)


def svg_document(root: ET.Element, style: str) -> str:
    """Return a page's image as an SVG document with its own style."""
    root.set("xmlns", "http://www.w3.org/2000/svg")
    sheet = ET.Element("style")
    sheet.text = style
    root.insert(0, sheet)
    return f"{ET.tostring(root, encoding='unicode')}\n"


def padded_range(values: list[float], pad: float = 0.08) -> tuple[float, float]:
    """Return an axis range for `values` with padding on both sides, even if they are all equal."""
    low, high = min(values), max(values)
    spread = (high - low) or abs(high) * 0.02 or 1.0
    return low - pad * spread, high + pad * spread


def text_width(content: str, font_size: float) -> float:
    """Estimate the width of `content` in user units."""
    return len(content) * font_size * _CHARACTER_WIDTH


def shorten(content: str, room: float, font_size: float = 13) -> str:
    """Cut `content` with an ellipsis if it does not fit into `room` user units."""
    fits = max(int(room / (font_size * _CHARACTER_WIDTH)), 2)
    return content if len(content) <= fits else content[: fits - 1].rstrip() + "…"


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


@dataclass(frozen=True)
class Box:
    """A rectangle, given by its centre."""

    x: float
    y: float
    width: float
    height: float

    def overlap(self, other: Box) -> float:
        """Return the area shared with `other`, in square units."""
        across = (self.width + other.width) / 2 - abs(self.x - other.x)
        down = (self.height + other.height) / 2 - abs(self.y - other.y)
        return max(across, 0.0) * max(down, 0.0)


@dataclass(frozen=True)
class Line:
    """A straight line between two points as complex numbers; y grows downwards, as on the page."""

    start: complex
    end: complex

    @property
    def direction(self) -> complex:
        """Unit vector from start to end."""
        return (self.end - self.start) / (abs(self.end - self.start) or 1.0)

    def at(self, share: float) -> complex:
        """Return the point at a fraction of the line."""
        return self.start + share * (self.end - self.start)

    def shifted(self, distance: float) -> Line:
        """Return the parallel line `distance` to the right of the direction of travel."""
        across = self.direction * 1j * distance
        return Line(self.start + across, self.end + across)

    def reversed(self) -> Line:
        """Return the same line in the opposite direction."""
        return Line(self.end, self.start)


def between_walls(line: Line, a: Box, b: Box) -> Line:
    """Return the part of a line between two boxes' centres (or parallel to it) that lies outside both."""
    leaves, arrives = 1.0, 0.0
    start, travels = line.start, line.end - line.start
    for origin, travel, (a_middle, a_size), (b_middle, b_size) in (
        (start.real, travels.real, (a.x, a.width), (b.x, b.width)),
        (start.imag, travels.imag, (a.y, a.height), (b.y, b.height)),
    ):
        if abs(travel) >= 1e-9:
            a_walls = [(a_middle + side * a_size / 2 - origin) / travel for side in (-1, 1)]
            b_walls = [(b_middle + side * b_size / 2 - origin) / travel for side in (-1, 1)]
            leaves, arrives = min(leaves, max(a_walls)), max(arrives, min(b_walls))
    return Line(line.at(max(leaves, 0.0)), line.at(min(arrives, 1.0)))


def pack_rows(intervals: Sequence[tuple[float, float]]) -> list[int]:
    """Assign each `(start, end)` to a row so that intervals of a row do not overlap, with as few rows as possible.

    Rows count from 0; the result has the order of `intervals`.
    """
    rows = [0] * len(intervals)
    row_ends: list[float] = []
    for index in sorted(range(len(intervals)), key=lambda i: intervals[i]):
        start, end = intervals[index]
        row = next((i for i, busy_until in enumerate(row_ends) if busy_until <= start), len(row_ends))
        if row == len(row_ends):
            row_ends.append(end)
        row_ends[row] = end
        rows[index] = row
    return rows

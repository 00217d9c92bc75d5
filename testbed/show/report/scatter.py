"""Points by two figures: near ones are drawn as one, and names stand where they cover nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from markupsafe import Markup

from testbed.show.report.charts import draw_time_axis
from testbed.show.report.formatting import size_text, time_text
from testbed.show.report.geometry import Box
from testbed.show.report.svg import COLUMN_WIDTH, Axis, Drawing, padded_range, text_width

_HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 320.0, 76.0, 30.0, 12.0, 16.0
_RADIUS, _FONT, _LINE = 4.5, 12, 15.0
_TOLD = 4  # of points that are drawn as one, so many say what they are


class Point(NamedTuple):
    """x in seconds; css: classes of the mark; name: stands beside it; empty: only the tooltip says what it is."""

    x: float
    y: float
    css: str
    tooltip: str
    name: str = ""


@dataclass
class _Mark:
    """Points that are drawn as one, where the first of them is."""

    x: float
    y: float
    points: list[Point] = field(default_factory=list)

    @property
    def name(self) -> str:
        return ", ".join(dict.fromkeys(point.name for point in self.points if point.name))

    @property
    def tooltip(self) -> str:
        more = len(self.points) - _TOLD
        told = [point.tooltip for point in self.points[:_TOLD]]
        return "\n".join([*told, *([f"and {more:,} more here"] if more > 0 else [])])


def scatter(points: Sequence[Point], label: str, *, sizes: bool) -> Markup:
    """Times to the right; upwards sizes, or times on the same axis, with a line where both are the same."""
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
    marks = _marks(points, x_axis, y_axis)
    for mark in reversed(marks):
        css, count = mark.points[0].css, len(mark.points)
        drawing.circle(mark.x, mark.y, _RADIUS, css, tooltip=mark.tooltip, points=count)
    _draw_names(drawing, marks)
    return drawing.markup()


def _marks(points: Sequence[Point], x_axis: Axis, y_axis: Axis) -> list[_Mark]:
    """None overlaps another; those with names come first and give their colour."""
    marks: list[_Mark] = []
    cells: dict[tuple[int, int], list[_Mark]] = {}
    for point in sorted(points, key=lambda point: not point.name):
        x, y = x_axis(point.x), y_axis(point.y)
        column, row = math.floor(x / (2 * _RADIUS)), math.floor(y / (2 * _RADIUS))
        near = itertools.product((column - 1, column, column + 1), (row - 1, row, row + 1))
        there = [mark for cell in near for mark in cells.get(cell, ())]
        mark = next((own for own in there if math.hypot(own.x - x, own.y - y) < 2 * _RADIUS), None)
        if mark is None:
            mark = _Mark(x, y)
            marks.append(mark)
            cells.setdefault((column, row), []).append(mark)
        mark.points.append(point)
    return marks


def _draw_names(drawing: Drawing, marks: Sequence[_Mark]) -> None:
    taken = [Box(mark.x, mark.y, 2 * _RADIUS, 2 * _RADIUS) for mark in marks]
    for mark in marks:
        if not mark.name:
            continue
        width = text_width(mark.name, _FONT) + 4
        place = next((box for box in _places(mark, width) if not any(map(box.overlap, taken))), None)
        if place is None:
            continue  # the tooltip and the table have it
        taken.append(place)
        away = math.hypot(place.x - mark.x, place.y - mark.y) > width / 2 + 3 * _RADIUS
        if away:
            toward = place.y + (_LINE / 2 if place.y < mark.y else -_LINE / 2)
            drawing.line((mark.x, mark.y), (place.x, toward), "base")
        drawing.text(place.x, place.y + 4, mark.name, "value", anchor="middle")


def _places(mark: _Mark, width: float) -> Iterator[Box]:
    """Beside, above and below it, ever further away; within the drawing."""
    left, right = _LEFT + width / 2, COLUMN_WIDTH - 4 - width / 2
    for ring in range(1, 9):
        high = ring * (_LINE + 1)
        side = width / 2 + _RADIUS + 3
        for dx, dy in (
            (side, high - _LINE),
            (-side, high - _LINE),
            (0.0, -high),
            (0.0, high),
            (side, -high),
            (-side, -high),
        ):
            x, y = min(max(mark.x + dx, left), right), mark.y + dy
            if _TOP + _LINE / 2 <= y <= _HEIGHT - _BOTTOM - _LINE / 2:
                yield Box(x, y, width, _LINE)

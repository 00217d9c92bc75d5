"""Rectangles and lines on a page, whose y grows downwards."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Box:
    """A rectangle by its centre."""

    x: float
    y: float
    width: float
    height: float

    def overlap(self, other: Box) -> float:
        """Common area with `other`, in square units."""
        across = (self.width + other.width) / 2 - abs(self.x - other.x)
        down = (self.height + other.height) / 2 - abs(self.y - other.y)
        return max(across, 0.0) * max(down, 0.0)


@dataclass(frozen=True)
class Line:
    """A straight line; y grows downwards, as on the page."""

    start: tuple[float, float]
    end: tuple[float, float]

    @property
    def direction(self) -> tuple[float, float]:
        """Unit vector from start to end."""
        dx, dy = self.end[0] - self.start[0], self.end[1] - self.start[1]
        length = math.hypot(dx, dy) or 1.0
        return dx / length, dy / length

    def at(self, share: float) -> tuple[float, float]:
        """The point `share` of the way along."""
        return (
            self.start[0] + share * (self.end[0] - self.start[0]),
            self.start[1] + share * (self.end[1] - self.start[1]),
        )

    def shifted(self, distance: float) -> Line:
        """The parallel line `distance` to the right of the direction of travel."""
        dx, dy = self.direction
        across = (-dy * distance, dx * distance)
        return Line(
            (self.start[0] + across[0], self.start[1] + across[1]),
            (self.end[0] + across[0], self.end[1] + across[1]),
        )

    def reversed(self) -> Line:
        """The same line travelled the other way."""
        return Line(self.end, self.start)


def between_walls(line: Line, a: Box, b: Box) -> Line:
    """The part of a line between two boxes' centres (or beside them) that lies outside both."""
    leaves, arrives = 1.0, 0.0
    for axis in (0, 1):
        origin, travel = line.start[axis], line.end[axis] - line.start[axis]
        if abs(travel) < 1e-9:
            continue
        for box, is_start in ((a, True), (b, False)):
            middle = (box.x, box.y)[axis]
            half = (box.width, box.height)[axis] / 2
            shares = sorted(((middle - half - origin) / travel, (middle + half - origin) / travel))
            if is_start:
                leaves = min(leaves, shares[1])
            else:
                arrives = max(arrives, shares[0])
    return Line(line.at(max(leaves, 0.0)), line.at(min(arrives, 1.0)))

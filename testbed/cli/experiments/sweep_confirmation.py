"""Which points of a sweep to confirm on the emulated network, where not all are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from testbed.measure.results.sweep_result import SweepAxis, SweepPoint
from testbed.spec.sweep_axes import Place


def chosen(axes: Sequence[SweepAxis], points: Sequence[SweepPoint], count: int) -> list[Place]:
    """So many of those that there are: the corners, both sides of where another variant is the quickest, the gaps.

    A gap's point is the one that lies farthest from all that are chosen, by positions along the axes.
    """
    there = {point.at: point for point in points if point.misfit is None and point.figures}
    taken: dict[Place, None] = {}
    for place in (*_corners(there), *_crossings(axes, there)):
        if len(taken) < count:
            taken.setdefault(place)
    far = _distance(axes)
    while len(taken) < min(count, len(there)):
        left = [place for place in there if place not in taken]
        taken.setdefault(max(left, key=lambda place: min((far(place, one) for one in taken), default=0.0)))
    return sorted(taken)


def quickest(point: SweepPoint) -> str:
    """The variant with the shortest step."""
    return min(point.figures, key=lambda figure: figure.step_time_s).variant


def _corners(there: dict[Place, SweepPoint]) -> Iterator[Place]:
    """The least, the largest, then what lies across."""
    if not there:
        return
    lines = list(zip(*there, strict=True))
    ends = [(min(line), max(line)) for line in lines]
    first, last = tuple(low for low, _ in ends), tuple(high for _, high in ends)
    corners = [first, last]
    if len(ends) == 2:
        corners += [(first[0], last[1]), (last[0], first[1])]
    yield from (corner for corner in corners if corner in there)


def _crossings(axes: Sequence[SweepAxis], there: dict[Place, SweepPoint]) -> Iterator[Place]:
    """Neighbours along an axis of figures of which one has another variant as its quickest than the other has."""
    for number, axis in enumerate(axes):
        if axis.numbers is None:
            continue
        for place, point in there.items():
            after = (*place[:number], place[number] + 1, *place[number + 1 :])
            if after in there and quickest(point) != quickest(there[after]):
                yield from (place, after)


def _distance(axes: Sequence[SweepAxis]) -> Callable[[Place, Place], float]:
    spans = [max(len(axis.texts) - 1, 1) for axis in axes]

    def distance(one: Place, other: Place) -> float:
        return math.hypot(*((a - b) / span for a, b, span in zip(one, other, spans, strict=True)))

    return distance

"""Intervals side by side, so that none of a lane overlap."""

from __future__ import annotations

from collections.abc import Sequence


def pack_lanes(intervals: Sequence[tuple[float, float]]) -> list[int]:
    """The lane of each `(start, end)` so that no two intervals of a lane overlap; as few lanes as possible.

    Intervals are taken by their start; lanes count from 0 and the result has the order of `intervals`.
    """
    lanes = [0] * len(intervals)
    lane_ends: list[float] = []
    for index in sorted(range(len(intervals)), key=lambda i: intervals[i]):
        start, end = intervals[index]
        lane = next((i for i, busy_until in enumerate(lane_ends) if busy_until <= start), len(lane_ends))
        if lane == len(lane_ends):
            lane_ends.append(end)
        lane_ends[lane] = end
        lanes[index] = lane
    return lanes

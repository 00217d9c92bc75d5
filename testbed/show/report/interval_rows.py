"""Intervals side by side, so that none of a row overlap."""

from __future__ import annotations

from collections.abc import Sequence


def pack_rows(intervals: Sequence[tuple[float, float]]) -> list[int]:
    """The row of each `(start, end)` so that no two intervals of a row overlap; as few rows as possible.

    Intervals are taken by their start; rows count from 0 and the result has the order of `intervals`.
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

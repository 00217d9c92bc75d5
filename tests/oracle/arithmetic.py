"""Statistics by their textbook definitions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def median(values: Sequence[float] | np.ndarray[Any, Any]) -> float:
    return float(np.median(np.asarray(values, dtype=float)))


def nearest_rank(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all values does not exceed."""
    ordered = sorted(values)
    for position, value in enumerate(ordered, start=1):
        # 1e-9: 0.99 * 100 is not to be more than 99
        if position >= share * len(ordered) - 1e-9:
            return value
    return ordered[-1]


def jain(values: Sequence[float]) -> float:
    """Jain's index of fairness: the square of the mean over the mean of squares; 1 where nothing is shared."""
    own = np.asarray(values, dtype=float)
    squares = float(np.mean(own**2))
    return float(np.mean(own)) ** 2 / squares if squares else 1.0


def student_quantile(freedom: int, share: float = 0.975) -> float:
    """Student's t for a cumulative share, by bisection of its distribution, which is integrated by Simpson's rule."""
    low, high = 0.0, 2000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 0.5 + _student_area(middle, freedom) < share else (low, middle)
    return (low + high) / 2


def _student_area(limit: float, freedom: int) -> float:
    """Of the density from 0 to a limit; by t = sqrt(f) tan(a), which makes it that of a power of the cosine."""
    angles = np.linspace(0.0, math.atan(limit / math.sqrt(freedom)), 2001)
    heights = np.cos(angles) ** (freedom - 1)
    weights = np.ones(2001)
    weights[1:-1:2], weights[2:-1:2] = 4.0, 2.0
    area = float(np.sum(weights * heights)) * (angles[1] - angles[0]) / 3
    logs = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    return float(area * math.exp(logs) / math.sqrt(math.pi))


def ratio_interval(slow: Sequence[float], quick: Sequence[float]) -> tuple[float, float]:
    """95 % confidence interval for the geometric mean of ratios, pair by pair."""
    logs = np.log(np.asarray(slow, dtype=float) / np.asarray(quick, dtype=float))
    middle = float(np.mean(logs))
    half = student_quantile(len(logs) - 1) * float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    return math.exp(middle - half), math.exp(middle + half)

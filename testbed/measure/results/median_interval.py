"""How sure a median of a few trials is."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

CONFIDENCE = 0.95


def median_interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Lower and upper end of an interval for the median, by order statistics, and its confidence.

    The narrowest pair of samples, as many from either end, of 0.95 or more; of fewer than six the least and the
    largest, whose confidence is less. It takes the trials to be independent, and nothing of their distribution.
    """
    ordered, count = sorted(samples), len(samples)
    inside = [(rank, _confidence(count, rank)) for rank in range(1, count // 2 + 1)]
    sure = [entry for entry in inside if entry[1] >= CONFIDENCE]
    rank, confidence = sure[-1] if sure else (1, _confidence(count, 1))
    return ordered[rank - 1], ordered[count - rank], confidence


def _confidence(count: int, rank: int) -> float:
    """That a median lies between the samples of that rank from below and from above."""
    return max(0.0, 1.0 - 2.0 * sum(comb(count, below) for below in range(rank)) / float(2**count))

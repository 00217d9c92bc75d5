"""The Poisson distribution: cumulative probability, tail and quantile."""

from __future__ import annotations

import math
from itertools import count as counting
from statistics import NormalDist

_NORMAL_ABOVE = 100.0  # mean above which the normal approximation is used
_NORMAL_TAIL_ABOVE = 10_000.0  # the same for tails below one in a thousand
_NEGLIGIBLE = 1e-12  # relative size of a negligible term of a sum


def poisson_cdf(most: int, mean: float) -> float:
    """Return the probability of at most `most` events."""
    if most < 0:
        return 0.0
    if not mean:
        return 1.0
    return min(1.0, math.fsum(_pmf(count, mean) for count in range(most + 1)))


def poisson_tail(count: int, mean: float) -> float:
    """Return the one-sided tail probability of `count` or anything farther from the mean."""
    if mean > _NORMAL_TAIL_ABOVE:
        return NormalDist().cdf(-abs(count - mean) / math.sqrt(mean))
    if count <= mean:
        return poisson_cdf(count, mean)
    total = 0.0
    for number in counting(count):
        term = _pmf(number, mean) if mean else 0.0
        total += term
        if term <= _NEGLIGIBLE * total:
            break
    return total


def poisson_quantile(mean: float, share: float) -> int:
    """Return the smallest number with a cumulative probability of at least `share`."""
    if mean > _NORMAL_ABOVE:
        return math.ceil(NormalDist(mean, math.sqrt(mean)).inv_cdf(share))
    number, probability = 0, math.exp(-mean)
    cumulative = probability
    while cumulative < share:
        number += 1
        probability *= mean / number
        cumulative += probability
    return number


def _pmf(count: int, mean: float) -> float:
    # with logarithms, since single factors may underflow
    return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))

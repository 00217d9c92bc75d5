"""Poisson's distribution: of how many there are of what is rare, each independent of the others."""

from __future__ import annotations

import math
from itertools import count as counting
from statistics import NormalDist

_MANY = 100.0  # of which it is close to a normal one
_VERY_MANY = 10_000.0  # the same of the last of a thousand
_SMALL = 1e-12  # what of a sum is nothing


def poisson_within(most: int, mean: float) -> float:
    """Chance of at most so many."""
    if most < 0:
        return 0.0
    if not mean:
        return 1.0
    return min(1.0, math.fsum(_chance(count, mean) for count in range(most + 1)))


def poisson_tail(count: int, mean: float) -> float:
    """Chance of being no nearer to the mean than this, on the same side."""
    if mean > _VERY_MANY:
        return NormalDist().cdf(-abs(count - mean) / math.sqrt(mean))
    if count <= mean:
        return poisson_within(count, mean)
    found = 0.0
    for more in counting(count):
        each = _chance(more, mean) if mean else 0.0
        found += each
        if each <= _SMALL * found:
            break
    return found


def poisson_quantile(mean: float, share: float) -> int:
    """The least number that at least this share of draws do not exceed."""
    if mean > _MANY:
        return math.ceil(NormalDist(mean, math.sqrt(mean)).inv_cdf(share))
    number, chance = 0, math.exp(-mean)
    reached = chance
    while reached < share:
        number += 1
        chance *= mean / number
        reached += chance
    return number


def _chance(count: int, mean: float) -> float:
    # by logarithms: one may be too small for a number, and others not
    return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))

"""Fidelity checks on machines that have other things to do."""

from __future__ import annotations

from collections.abc import Callable

from testbed.clock import clock_here

ATTEMPTS = 6


def assert_within(measure: Callable[[], float], low: float, high: float) -> None:
    """Assert that `measure()` gives a figure in [low, high]: at once under the virtual clock, else at its best.

    By the real clock a neighbour on the machine delays packets and wake-ups as he likes, and never all of the time.
    What is wrong in a link (a delay twice as long, another rate, a lost setting) is wrong in every attempt.
    """
    seen = []
    for _ in range(1 if clock_here() else ATTEMPTS):
        seen.append(measure())
        if low <= seen[-1] <= high:
            return
    raise AssertionError(f"never within {low:g} to {high:g}: {', '.join(f'{value:g}' for value in seen)}")

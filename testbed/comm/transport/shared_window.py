"""A window that all pairs at one distance have together: segments of a rank that are not acknowledged.

A window of each pair's own is small for the last pair, which could have the links to itself, or large for all of them
at once. What is free goes to the pairs that wait for it in turn, a segment each.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol


class Waiting(Protocol):
    """A pair that has something to send."""

    def pump(self, most: int | None = None) -> None:
        """Send so many segments, or all that may go."""


class SharedWindow:
    """limit: segments under way at most."""

    def __init__(self, limit: int) -> None:
        self.free = limit
        self._waiting: deque[Waiting] = deque()

    def take(self, pair: Waiting, *, in_turn: bool) -> bool:
        """Whether the pair may send a segment now; if not it is told when. in_turn: whether this is its turn."""
        if not self.free or (self._waiting and not in_turn):
            self.wait(pair)
            return False
        self.free -= 1
        return True

    def wait(self, pair: Waiting) -> None:
        """Behind all others that wait."""
        if pair not in self._waiting:
            self._waiting.append(pair)

    def give(self, count: int) -> None:
        """So many have been acknowledged, or are lost with their pair."""
        self.free += count
        while self.free and self._waiting:
            self._waiting.popleft().pump(1)

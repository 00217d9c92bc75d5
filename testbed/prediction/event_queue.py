"""Whose turn it is at which time: of a step's play, its transport's, its connections'."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from itertools import count

Action = Callable[[], None]


class Agenda:
    """Whose time it is, in seconds, and who acts at a time of it: at the same, in the order in which they said so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.agenda: list[tuple[float, int, Action]] = []
        self.number = count()

    def at(self, moment_s: float, action: Action, turn: int | None = None) -> None:
        """Act then. turn: that was taken of `number` when this was said, if that is not now."""
        heappush(self.agenda, (moment_s, next(self.number) if turn is None else turn, action))

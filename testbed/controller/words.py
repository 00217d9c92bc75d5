"""What switches said of their ports, kept until a controller that takes its time goes by it. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class Word:
    """What switches said: which ports (datapath id, number) were down at a time."""

    time_s: float
    ports_down: frozenset[tuple[int, int]]


class Words:
    """Words in the order in which they came. Each is gone by `reaction_s` after it came, not before.

    One that comes while another is waited for is gone by in its turn; those that come of age while the controller is at
    work are taken together, the latest counts.
    """

    def __init__(self, reaction_s: float) -> None:
        self._reaction_s = reaction_s
        self._words: deque[Word] = deque()

    def add(self, word: Word) -> None:
        """It came just now."""
        self._words.append(word)

    def wait_s(self, now_s: float) -> float | None:
        """How long until one is gone by; None when there is none."""
        return max(0.0, self._words[0].time_s + self._reaction_s - now_s) if self._words else None

    def take(self, now_s: float) -> Word | None:
        """The one to go by now; those before it are forgotten."""
        found = None
        while self._words and self._words[0].time_s + self._reaction_s <= now_s:
            found = self._words.popleft()
        return found

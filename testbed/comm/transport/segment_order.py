"""Segments that are numbered through and come in any order: when all up to a message's last one have come."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

SEQUENCES = 1 << 24  # after which numbers begin again

Message = TypeVar("Message")


class Sequences(Generic[Message]):
    """Of one pair, one direction. expected: the lowest number that has not come."""

    def __init__(self) -> None:
        self.expected = 0
        self._early: set[int] = set()  # higher ones that have come
        # messages that are not whole, by their last segments
        self._notices: deque[tuple[int, Message]] = deque()

    def came(self, sequence: int) -> bool:
        """A segment has come; False for one that had."""
        if self._passed(sequence) or sequence in self._early:
            return False
        self._early.add(sequence)
        while self.expected in self._early:
            self._early.remove(self.expected)
            self.expected = (self.expected + 1) % SEQUENCES
        return True

    def ends(self, sequence: int, message: Message) -> None:
        """A message's last segment has this number."""
        self._notices.append((sequence, message))

    def whole(self) -> list[Message]:
        """Messages whose last segment, and all before, have come; each is told once."""
        found = [message for last, message in self._notices if self._passed(last)]
        if found:
            self._notices = deque(notice for notice in self._notices if not self._passed(notice[0]))
        return found

    def _passed(self, sequence: int) -> bool:
        """Whether all up to it have come."""
        return (self.expected - sequence - 1) % SEQUENCES < SEQUENCES // 2

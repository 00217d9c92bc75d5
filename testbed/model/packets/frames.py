"""Frames on their way: from line to line until they are there, or lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from testbed.model.keeping import Agenda
from testbed.model.packets.line import Line


class Frame:
    """`go` sends it off. come: called when it is there; gone: when it is lost."""

    __slots__ = ("_agenda", "_come", "_gone", "_last", "_lines", "_place", "_size_bytes")

    def __init__(
        self,
        agenda: Agenda,
        lines: Sequence[Line],
        size_bytes: int,
        come: Callable[[], None],
        gone: Callable[[], None] | None = None,
    ) -> None:
        self._agenda, self._lines, self._size_bytes = agenda, lines, size_bytes
        self._come, self._gone = come, gone
        self._place, self._last = 0, len(lines)

    def go(self) -> None:
        """On to the next line."""
        place = self._place
        if place == self._last:
            self._come()
            return
        self._place = place + 1
        agenda = self._agenda
        there_s = self._lines[place].take(agenda.now_s, self._size_bytes)
        if there_s is not None:
            agenda.at(there_s, self.go)
        elif self._gone is not None:
            self._gone()

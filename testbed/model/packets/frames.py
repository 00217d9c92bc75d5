"""Frames on their way: from line to line until they are there, or lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappush
from typing import Generic, Protocol, TypeVar

from testbed.model.agenda import Agenda
from testbed.model.packets.line import Line


class Frame(Protocol):
    """Anything that has a size on the wire."""

    frame_bytes: int


F = TypeVar("F", bound=Frame)


class Leg(Generic[F]):
    """One line of a connection's way. come: where its frames go then; gone: who hears of those that are lost."""

    __slots__ = ("_come", "_flying", "_go", "_gone", "_take", "agenda")

    def __init__(
        self, agenda: Agenda, line: Line, come: Callable[[F], None], gone: Callable[[F], None] | None
    ) -> None:
        self.agenda, self._take = agenda, line.take
        self._come, self._gone = come, gone
        # none passes another one: when each is at the far end, its turn; the agenda has the first one alone
        self._flying: deque[tuple[float, int, F]] = deque()
        self._go = self.go

    def enter(self, frame: F) -> None:
        """It comes to the line."""
        agenda = self.agenda
        there_s = self._take(agenda.now_s, frame.frame_bytes)
        if there_s is not None:
            turn = next(agenda.number)
            if not self._flying:
                heappush(agenda.agenda, (there_s, turn, self._go))
            self._flying.append((there_s, turn, frame))
        elif self._gone is not None:
            self._gone(frame)

    def go(self) -> None:
        """The next one is at the far end."""
        flying = self._flying
        _, _, frame = flying.popleft()
        if flying:
            there_s, turn, _ = flying[0]
            heappush(self.agenda.agenda, (there_s, turn, self._go))
        self._come(frame)


class Way(Generic[F]):
    """All lines that a connection's frames take, one way: `enter` takes them. come, gone: as `Leg` has them."""

    def __init__(
        self,
        agenda: Agenda,
        lines: Sequence[Line],
        come: Callable[[F], None],
        gone: Callable[[F], None] | None = None,
    ) -> None:
        self._legs: list[Leg[F]] = []
        self.enter = come
        for line in reversed(lines):
            leg = Leg(agenda, line, self.enter, gone)
            self._legs.append(leg)
            self.enter = leg.enter

    def go_on(self, agenda: Agenda) -> None:
        """By another's time; nothing is under way."""
        for leg in self._legs:
            leg.agenda = agenda

"""Frames on their way: from line to line until they are there, or lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappush
from typing import Generic, Protocol, TypeVar

from testbed.prediction.event_queue import Agenda
from testbed.prediction.packets.class_queues import Place
from testbed.prediction.packets.link_queue import Line

Entrance = Line | Place
"""What frames come to next on their way."""


class Frame(Protocol):
    """Anything that has a size on the wire."""

    frame_bytes: int


F = TypeVar("F", bound=Frame)


class Leg(Generic[F]):
    """One line of a connection's way. come: where its frames go then; gone: who hears of those that are lost."""

    __slots__ = ("_come", "_flying", "_go", "_gone", "agenda")

    def __init__(self, agenda: Agenda, come: Callable[[F], None], gone: Callable[[F], None] | None) -> None:
        self.agenda = agenda
        self._come, self._gone = come, gone
        # none passes another one: when each is at the far end, its turn; the agenda has the first one alone
        self._flying: deque[tuple[float, int, F]] = deque()
        self._go = self.go

    def leave(self, frame: F, there_s: float | None) -> None:
        """It goes onto the line. there_s: when it is at the far end; None: never."""
        agenda = self.agenda
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


class LineLeg(Leg[F]):
    """Of a line with one queue: when each is at the far end is known as soon as it comes."""

    __slots__ = ("_take",)

    def __init__(
        self, line: Line, agenda: Agenda, come: Callable[[F], None], gone: Callable[[F], None] | None
    ) -> None:
        super().__init__(agenda, come, gone)
        self._take = line.take

    def enter(self, frame: F) -> None:
        """It comes to the line."""
        self.leave(frame, self._take(self.agenda.now_s, frame.frame_bytes))


class ClassLeg(Leg[F]):
    """Of a line with a queue for each class, all in one of them."""

    __slots__ = ("_place",)

    def __init__(
        self, place: Place, agenda: Agenda, come: Callable[[F], None], gone: Callable[[F], None] | None
    ) -> None:
        super().__init__(agenda, come, gone)
        self._place = place

    def enter(self, frame: F) -> None:
        """It comes to its queue."""
        line, number = self._place
        takes = line.take(self.agenda, number, frame.frame_bytes, partial(self.leave, frame))
        if not takes and self._gone is not None:
            self._gone(frame)


class Way(Generic[F]):
    """All lines that a connection's frames take, one way: `enter` takes them. come, gone: as `Leg` has them."""

    def __init__(
        self,
        agenda: Agenda,
        hops: Sequence[Entrance],
        come: Callable[[F], None],
        gone: Callable[[F], None] | None = None,
    ) -> None:
        self._legs: list[Leg[F]] = []
        self.enter = come
        for hop in reversed(hops):
            of = agenda, self.enter, gone
            leg: LineLeg[F] | ClassLeg[F] = LineLeg(hop, *of) if isinstance(hop, Line) else ClassLeg(hop, *of)
            self._legs.append(leg)
            self.enter = leg.enter

    def go_on(self, agenda: Agenda) -> None:
        """By another's time; nothing is under way."""
        for leg in self._legs:
            leg.agenda = agenda

"""What happens once, and who waits for it; messages that have come or are to leave, and who waits for those."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappush
from itertools import count
from typing import Protocol


@dataclass(eq=False, slots=True)
class Event:
    """Something that will have happened."""

    done: bool = False
    then: list[Callable[[], None]] = field(default_factory=list)

    def happen(self) -> None:
        """Now; who waits for it goes on."""
        self.done = True
        for action in self.then:
            action()

    def and_then(self, action: Callable[[], None]) -> None:
        """Act when it has happened, at once if it has."""
        if self.done:
            action()
        else:
            self.then.append(action)


@dataclass(eq=False, slots=True)
class Mailbox:
    """Messages of one kind from one rank to another, in order: those that have come, those that are waited for.

    Messages that are held leave as they are allowed to, one each time.
    """

    come: int = 0
    waiting: list[Event] = field(default_factory=list)  # these are few
    held: list[Callable[[], None]] = field(default_factory=list)
    allowed: int = 0

    def leave(self, hand_over: Callable[[], None], *, held: bool) -> None:
        """Hand a message over; if held, once it is allowed to leave."""
        if held and not self.allowed:
            self.held.append(hand_over)
        else:
            self.allowed -= held
            hand_over()

    def arrive(self) -> None:
        """A message has come."""
        if self.waiting:
            self.waiting.pop(0).happen()
        else:
            self.come += 1

    def receive(self) -> Event:
        """Wait for the next message; the event is that it has come."""
        event = Event(self.come > 0)
        if event.done:
            self.come -= 1
        else:
            self.waiting.append(event)
        return event

    def allow(self) -> None:
        """Let one of those that are held leave, now or when it comes."""
        if self.held:
            self.held.pop(0)()
        else:
            self.allowed += 1


@dataclass(eq=False, slots=True)
class SendBuffer:
    """Of one connection: a sender goes on once all of its message is in here, which is before it has left.

    A message that is larger than the buffer, size_bytes, is in when it has left: less than a buffer too late.
    """

    size_bytes: float
    put_bytes: float = 0.0
    left_bytes: float = 0.0
    waiting: deque[tuple[float, Event]] = field(default_factory=deque)

    def put(self, message_bytes: float, taken: Event) -> None:
        """A message behind all others; `taken` happens when all of it is in."""
        self.put_bytes += message_bytes
        if not self.waiting and self.put_bytes <= self.left_bytes + self.size_bytes:
            taken.happen()
        else:
            self.waiting.append((self.put_bytes, taken))

    def leave(self, message_bytes: float) -> None:
        """The first message has left."""
        self.left_bytes += message_bytes
        while self.waiting and self.waiting[0][0] <= self.left_bytes + self.size_bytes:
            self.waiting.popleft()[1].happen()


Action = Callable[[], None]


class EventQueue:
    """Whose time it is, in seconds, and who acts at a time of it: at the same, in the order in which they said so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.agenda: list[tuple[float, int, Action]] = []
        self.number = count()

    def at(self, moment_s: float, action: Action, turn: int | None = None) -> None:
        """Act then. turn: that was taken of `number` when this was said, if that is not now."""
        heappush(self.agenda, (moment_s, next(self.number) if turn is None else turn, action))


class Clock(Protocol):
    """What has a time, and acts later."""

    now_s: float

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Act after so long."""


@dataclass(eq=False)
class _Piece:
    end_s: float
    over: Callable[[], None]


class RankCompute:
    """What the rank computes now. share: of its speed that is lost while anything else is under way."""

    def __init__(self, clock: Clock, share: float) -> None:
        self._clock, self._slower = clock, 1 / (1 - share)
        self._pieces: list[_Piece] = []
        self._others = 0

    def begin(self, duration_s: float, over: Callable[[], None]) -> None:
        """Compute for so long, at full speed; `over` is called at the end."""
        if self._others:
            duration_s *= self._slower
        if self._slower == 1:
            self._clock.later(duration_s, over)
            return
        piece = _Piece(self._clock.now_s + duration_s, over)
        self._pieces.append(piece)
        self._wait(piece)

    def beside(self) -> None:
        """Something else begins."""
        self._others += 1
        if self._others == 1:
            self._rescale(self._slower)

    def alone(self) -> None:
        """Something else has ended."""
        self._others -= 1
        if not self._others:
            self._rescale(1 / self._slower)

    def _rescale(self, factor: float) -> None:
        now_s = self._clock.now_s
        for piece in self._pieces:
            piece.end_s = now_s + (piece.end_s - now_s) * factor
            self._wait(piece)

    def _wait(self, piece: _Piece) -> None:
        until_s = piece.end_s

        def come() -> None:
            if piece.end_s == until_s and piece in self._pieces:  # else it takes longer, or no longer as long
                self._pieces.remove(piece)
                piece.over()

        self._clock.later(until_s - self._clock.now_s, come)

"""Building blocks of the discrete-event simulation: events, mailboxes, send buffers, the event queue, rank compute."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappush
from itertools import count
from typing import Protocol


@dataclass(eq=False, slots=True)
class Event:
    """A one-shot event with callbacks."""

    done: bool = False
    then: list[Callable[[], None]] = field(default_factory=list)

    def happen(self) -> None:
        """Mark the event as done and run its callbacks."""
        self.done = True
        for action in self.then:
            action()

    def and_then(self, action: Callable[[], None]) -> None:
        """Run the action when the event happens, or now if it has."""
        if self.done:
            action()
        else:
            self.then.append(action)


@dataclass(eq=False, slots=True)
class Mailbox:
    """Messages of one key from one rank to another, in order.

    come: arrived messages that nobody has received yet. waiting: receives without a message. held: messages that may
    not leave yet; each call of `allow` releases one.
    """

    come: int = 0
    waiting: list[Event] = field(default_factory=list)  # short: a list is fine
    held: list[Callable[[], None]] = field(default_factory=list)
    allowed: int = 0

    def leave(self, hand_over: Callable[[], None], *, held: bool) -> None:
        """Send a message now or, if held, once `allow` permits it."""
        if held and not self.allowed:
            self.held.append(hand_over)
        else:
            self.allowed -= held
            hand_over()

    def arrive(self) -> None:
        """Record an arrived message."""
        if self.waiting:
            self.waiting.pop(0).happen()
        else:
            self.come += 1

    def receive(self) -> Event:
        """Return the event that the next message has arrived."""
        event = Event(self.come > 0)
        if event.done:
            self.come -= 1
        else:
            self.waiting.append(event)
        return event

    def allow(self) -> None:
        """Release one held message, now or as soon as there is one."""
        if self.held:
            self.held.pop(0)()
        else:
            self.allowed += 1


@dataclass(eq=False, slots=True)
class SendBuffer:
    """The socket's send buffer of one connection: a send completes once all of its message fits, before it has left.

    A message larger than the buffer completes when it has left, which is less than one buffer's time too late.
    """

    size_bytes: float
    put_bytes: float = 0.0
    left_bytes: float = 0.0
    waiting: deque[tuple[float, Event]] = field(default_factory=deque)

    def put(self, message_bytes: float, taken: Event) -> None:
        """Append a message; `taken` happens when all of it is in the buffer."""
        self.put_bytes += message_bytes
        if not self.waiting and self.put_bytes <= self.left_bytes + self.size_bytes:
            taken.happen()
        else:
            self.waiting.append((self.put_bytes, taken))

    def leave(self, message_bytes: float) -> None:
        """Remove a message that has left the buffer."""
        self.left_bytes += message_bytes
        while self.waiting and self.waiting[0][0] <= self.left_bytes + self.size_bytes:
            self.waiting.popleft()[1].happen()


Action = Callable[[], None]


class EventQueue:
    """A clock in seconds with a heap of actions; actions at the same time run in the order they were scheduled."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.agenda: list[tuple[float, int, Action]] = []
        self.number = count()

    def at(self, moment_s: float, action: Action, turn: int | None = None) -> None:
        """Schedule an action. turn: its rank among actions at the same time, taken earlier from `number`."""
        heappush(self.agenda, (moment_s, next(self.number) if turn is None else turn, action))


class Clock(Protocol):
    """A simulated clock that can schedule actions."""

    now_s: float

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Run the action after a delay."""


@dataclass(eq=False)
class _Piece:
    end_s: float
    over: Callable[[], None]


class RankCompute:
    """Compute of one rank, which slows down while the rank communicates. share: fraction of its speed that is lost."""

    def __init__(self, clock: Clock, share: float) -> None:
        self._clock, self._slower = clock, 1 / (1 - share)
        self._pieces: list[_Piece] = []
        self._others = 0

    def begin(self, duration_s: float, over: Callable[[], None]) -> None:
        """Compute for `duration_s` at full speed; call `over` at the end."""
        if self._others:
            duration_s *= self._slower
        if self._slower == 1:
            self._clock.later(duration_s, over)
            return
        piece = _Piece(self._clock.now_s + duration_s, over)
        self._pieces.append(piece)
        self._wait(piece)

    def beside(self) -> None:
        """Note that a communication has started."""
        self._others += 1
        if self._others == 1:
            self._rescale(self._slower)

    def alone(self) -> None:
        """Note that a communication has ended."""
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
            if piece.end_s == until_s and piece in self._pieces:  # else it was rescaled or is over
                self._pieces.remove(piece)
                piece.over()

        self._clock.later(until_s - self._clock.now_s, come)

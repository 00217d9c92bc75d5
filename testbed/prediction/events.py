"""Building blocks of the discrete-event simulation: events, mailboxes, send buffers, the event queue, rank compute."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappush
from itertools import count


@dataclass(eq=False, slots=True)
class Event:
    """A one-shot event with callbacks."""

    done: bool = False
    callbacks: list[Callable[[], None]] = field(default_factory=list)

    def trigger(self) -> None:
        """Mark the event as done and run its callbacks."""
        self.done = True
        for action in self.callbacks:
            action()

    def and_then(self, action: Callable[[], None]) -> None:
        """Run the action when the event happens, or now if it has already happened."""
        if self.done:
            action()
        else:
            self.callbacks.append(action)


@dataclass(eq=False, slots=True)
class Mailbox:
    """Messages of one key from one rank to another, in order.

    `arrived` is the number of messages that have not been received yet. `waiting` has the receives without a message.
    `held` has messages that may not leave yet; each call of `allow` releases one.
    """

    arrived: int = 0
    waiting: list[Event] = field(default_factory=list)  # short, so a list is sufficient
    held: list[Callable[[], None]] = field(default_factory=list)
    allowed: int = 0

    def send(self, transmit: Callable[[], None], *, held: bool) -> None:
        """Send a message now or, if held, once `allow` permits it."""
        if held and not self.allowed:
            self.held.append(transmit)
        else:
            self.allowed -= held
            transmit()

    def arrive(self) -> None:
        """Record an arrived message."""
        if self.waiting:
            self.waiting.pop(0).trigger()
        else:
            self.arrived += 1

    def receive(self) -> Event:
        """Return the event that happens when the next message has arrived."""
        event = Event(self.arrived > 0)
        if event.done:
            self.arrived -= 1
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
    """The socket send buffer of one connection; a send completes once its whole message fits, before it has left.

    A message that is larger than the buffer completes when it has left. That is too late by less than the time of one
    buffer.
    """

    size_bytes: float
    put_bytes: float = 0.0
    sent_bytes: float = 0.0
    waiting: deque[tuple[float, Event]] = field(default_factory=deque)

    def put(self, message_bytes: float, accepted: Event) -> None:
        """Append a message; `accepted` happens when the whole message is in the buffer."""
        self.put_bytes += message_bytes
        if not self.waiting and self.put_bytes <= self.sent_bytes + self.size_bytes:
            accepted.trigger()
        else:
            self.waiting.append((self.put_bytes, accepted))

    def remove(self, message_bytes: float) -> None:
        """Remove a message that has left the buffer."""
        self.sent_bytes += message_bytes
        while self.waiting and self.waiting[0][0] <= self.sent_bytes + self.size_bytes:
            self.waiting.popleft()[1].trigger()


Action = Callable[[], None]


class EventQueue:
    """A clock in seconds with a heap of actions; actions at the same time run in the order they were scheduled.

    `soon` has actions at the current time that run after all others.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.heap: list[tuple[float, int, Action]] = []
        self.number = count()
        self.soon: deque[Action] = deque()

    def call_at(self, at_s: float, action: Action, turn: int | None = None) -> None:
        """Schedule an action; `turn` is its rank among actions at the same time, taken earlier from `number`."""
        heappush(self.heap, (at_s, next(self.number) if turn is None else turn, action))

    def call_later(self, seconds: float, action: Action) -> None:
        """Run the action after a delay."""
        if (at_s := self.now_s + seconds) > self.now_s:
            heappush(self.heap, (at_s, next(self.number), action))
        else:
            self.soon.append(action)


@dataclass(eq=False)
class _Task:
    end_s: float
    done_callback: Callable[[], None]


class RankCompute:
    """The compute of one rank, which loses the fraction `share` of its speed while the rank communicates."""

    def __init__(self, clock: EventQueue, share: float) -> None:
        self._clock, self._slowdown = clock, 1 / (1 - share)
        self._tasks: list[_Task] = []
        self._communications = 0

    def start(self, duration_s: float, done_callback: Callable[[], None]) -> None:
        """Compute for `duration_s` at full speed; call `done_callback` at the end."""
        if self._communications:
            duration_s *= self._slowdown
        if self._slowdown == 1:
            self._clock.call_later(duration_s, done_callback)
            return
        task = _Task(self._clock.now_s + duration_s, done_callback)
        self._tasks.append(task)
        self._wait(task)

    def communication_started(self) -> None:
        """Record that a communication has started."""
        self._communications += 1
        if self._communications == 1:
            self._rescale(self._slowdown)

    def communication_ended(self) -> None:
        """Record that a communication has ended."""
        self._communications -= 1
        if not self._communications:
            self._rescale(1 / self._slowdown)

    def _rescale(self, factor: float) -> None:
        now_s = self._clock.now_s
        for task in self._tasks:
            task.end_s = now_s + (task.end_s - now_s) * factor
            self._wait(task)

    def _wait(self, task: _Task) -> None:
        until_s = task.end_s

        def finish() -> None:
            if task.end_s == until_s and task in self._tasks:  # otherwise the task was rescaled or is over
                self._tasks.remove(task)
                task.done_callback()

        self._clock.call_later(until_s - self._clock.now_s, finish)

"""One direction of a link, packet by packet: a queue that drops what it has no room for, its rate, the fibre."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappush
from random import Random
from typing import Generic, NamedTuple, Protocol, TypeVar

from testbed.net.links.class_scheduler import ClassQueues, QueuedItem
from testbed.net.paths.hops import PacketHop
from testbed.prediction.events import EventQueue


class LinkQueue:
    """First come, first served. draw: says what the fibre loses; None: nothing.

    sent, dropped, lost: frames that have left it, that its queue had no room for, that the fibre lost. free_s: when
    what comes next may begin to leave.
    """

    __slots__ = (
        "_bounded",
        "_byte_s",
        "_delay_s",
        "_draw",
        "_held",
        "_loss",
        "_most_bytes",
        "_queue",
        "_queued_bytes",
        "dropped",
        "free_s",
        "lost",
        "sent",
    )

    def __init__(self, hop: PacketHop, draw: Random | None) -> None:
        self._draw, self._loss = draw if hop.loss else None, hop.loss
        self._most_bytes, self._bounded = hop.queue_bytes, hop.queue_bytes < math.inf
        self._byte_s, self._held = 8 / hop.rate_bps, hop.held
        self._delay_s = hop.delay_s + hop.early_s
        self.free_s = 0.0
        self._queue: deque[tuple[float, int]] = deque()
        self._queued_bytes = 0
        self.sent = self.dropped = self.lost = 0

    def empty_s(self, size_bytes: int) -> float:
        """What a frame takes that finds it idle."""
        return (size_bytes * self._byte_s if self._held else 0.0) + self._delay_s

    def take(self, now_s: float, size_bytes: int) -> float | None:
        """A frame comes: when it is at the far end; None where it never is."""
        free_s = self.free_s
        if free_s <= now_s:
            free_s = now_s
            if self._queued_bytes:
                self._queue.clear()
                self._queued_bytes = 0
        elif self._bounded:
            if self._queued_bytes + size_bytes > self._most_bytes and not self._makes_room(now_s, size_bytes):
                self.dropped += 1
                return None
            self._queue.append((free_s, size_bytes))
            self._queued_bytes += size_bytes
        self.sent += 1
        self.free_s = over_s = free_s + size_bytes * self._byte_s
        if self._draw is not None and self._draw.random() < self._loss:
            self.lost += 1
            return None
        return (over_s if self._held else free_s) + self._delay_s

    def _makes_room(self, now_s: float, size_bytes: int) -> bool:
        """Whether the queue has some: of what has begun to leave nobody asks until it seems full."""
        queue = self._queue
        while queue and queue[0][0] <= now_s:
            self._queued_bytes -= queue.popleft()[1]
        return self._queued_bytes + size_bytes <= self._most_bytes

    def shift(self, seconds: float) -> None:
        """Tell the time from so much later on."""
        self.free_s -= seconds
        self._queue = deque((begins_s - seconds, size) for begins_s, size in self._queue)


Leave = Callable[[float | None], None]
"""What is called when a frame's turn has come. When it is at the far end; None: never, the fibre loses it."""


class ClassfulLinkQueue:
    """`links.class_scheduler` says what goes next. draw, dropped: see `LinkQueue`. frame_bytes: of a full packet."""

    def __init__(self, hop: PacketHop, draw: Random | None, frame_bytes: int) -> None:
        self._wire = LinkQueue(hop._replace(queue_bytes=math.inf), draw)
        self._queues = ClassQueues[Leave](hop.classes, hop.rate_bps / 8, hop.queue_bytes, None, frame_bytes)
        self._wakes_s = math.inf
        self.dropped = 0

    def empty_s(self, size_bytes: int) -> float:
        """What a frame takes that finds it idle."""
        return self._wire.empty_s(size_bytes)

    def take(self, agenda: EventQueue, number: int, size_bytes: int, leave: Leave) -> bool:
        """A frame comes, to that class's queue: whether there is room."""
        if self._queues.enqueue(number, QueuedItem(agenda.now_s, size_bytes, leave)) is None:
            self.dropped += 1
            return False
        if self._wakes_s > self._wire.free_s:  # else somebody waits for the wire, and it goes on then
            self._go_on(agenda)
        return True

    def _go_on(self, agenda: EventQueue) -> None:
        """Let go what may leave now, and wake up when more may."""
        now_s, queues, wire = agenda.now_s, self._queues, self._wire
        while queues.packets:
            next_s = queues.next_departure(max(now_s, wire.free_s))
            assert next_s is not None
            if next_s > now_s:
                if next_s < self._wakes_s:
                    self._wakes_s = next_s
                    agenda.at(next_s, partial(self._wake, agenda))
                return
            waiting = queues.dequeue(now_s)
            waiting.frame(wire.take(now_s, waiting.size))

    def _wake(self, agenda: EventQueue) -> None:
        if agenda.now_s >= self._wakes_s:  # else another one has come since then, who could go before
            self._wakes_s = math.inf
            self._go_on(agenda)

    def shift(self, seconds: float) -> None:
        """Tell the time from so much later on; nothing waits."""
        self._wire.shift(seconds)
        self._queues.shift(seconds)


class Place(NamedTuple):
    """In front of a link, in the queue of the class with that number."""

    line: ClassfulLinkQueue
    number: int

    def empty_s(self, size_bytes: int) -> float:
        """What a frame takes that finds the link idle."""
        return self.line.empty_s(size_bytes)


Entrance = LinkQueue | Place
"""What frames come to next on their way."""


class Frame(Protocol):
    """Anything that has a size on the wire."""

    frame_bytes: int


F = TypeVar("F", bound=Frame)


class PathHop(Generic[F]):
    """One line of a connection's way. come: where its frames go then; gone: who hears of those that are lost."""

    __slots__ = ("_come", "_flying", "_go", "_gone", "agenda")

    def __init__(
        self, agenda: EventQueue, come: Callable[[F], None], gone: Callable[[F], None] | None
    ) -> None:
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


class FifoHop(PathHop[F]):
    """Of a line with one queue: when each is at the far end is known as soon as it comes."""

    __slots__ = ("_take",)

    def __init__(
        self, line: LinkQueue, agenda: EventQueue, come: Callable[[F], None], gone: Callable[[F], None] | None
    ) -> None:
        super().__init__(agenda, come, gone)
        self._take = line.take

    def enter(self, frame: F) -> None:
        """It comes to the line."""
        self.leave(frame, self._take(self.agenda.now_s, frame.frame_bytes))


class ClassfulHop(PathHop[F]):
    """Of a line with a queue for each class, all in one of them."""

    __slots__ = ("_place",)

    def __init__(
        self, place: Place, agenda: EventQueue, come: Callable[[F], None], gone: Callable[[F], None] | None
    ) -> None:
        super().__init__(agenda, come, gone)
        self._place = place

    def enter(self, frame: F) -> None:
        """It comes to its queue."""
        line, number = self._place
        takes = line.take(self.agenda, number, frame.frame_bytes, partial(self.leave, frame))
        if not takes and self._gone is not None:
            self._gone(frame)


class FramePath(Generic[F]):
    """All lines that a connection's frames take, one way: `enter` takes them. come, gone: as `PathHop` has them."""

    def __init__(
        self,
        agenda: EventQueue,
        hops: Sequence[Entrance],
        come: Callable[[F], None],
        gone: Callable[[F], None] | None = None,
    ) -> None:
        self._legs: list[PathHop[F]] = []
        self.enter = come
        for hop in reversed(hops):
            of = agenda, self.enter, gone
            leg: FifoHop[F] | ClassfulHop[F] = (
                FifoHop(hop, *of) if isinstance(hop, LinkQueue) else ClassfulHop(hop, *of)
            )
            self._legs.append(leg)
            self.enter = leg.enter

    def go_on(self, agenda: EventQueue) -> None:
        """By another's time; nothing is under way."""
        for leg in self._legs:
            leg.agenda = agenda

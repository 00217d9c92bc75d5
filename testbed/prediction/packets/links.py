"""Packet-level links: drop-tail queues with a rate and a delay, traffic classes, and the paths of frames."""

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


class NicBacklog:
    """One connection's packets that wait in the NIC: when each begins to leave, and the memory that it uses."""

    __slots__ = ("held_bytes", "packets")

    def __init__(self) -> None:
        self.packets: deque[tuple[float, int]] = deque()
        self.held_bytes = 0

    def add(self, begins_s: float, memory_bytes: int) -> None:
        """Add the last packet."""
        self.packets.append((begins_s, memory_bytes))
        self.held_bytes += memory_bytes

    def waits(self, now_s: float) -> bool:
        """Return whether packets still wait, after removing those that have begun to leave."""
        packets = self.packets
        while packets and packets[0][0] <= now_s:
            self.held_bytes -= packets.popleft()[1]
        return bool(packets)


class LinkQueue:
    """A drop-tail FIFO queue of one link direction.

    `draw` is the random source of losses; None for no loss.

    Attributes:
        sent, dropped, lost: Number of frames that left the queue, did not fit into it, or were lost on the link.
        free_s: When the next frame may start to leave.
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
        """Return the time that a frame takes to cross an idle link."""
        return (size_bytes * self._byte_s if self._held else 0.0) + self._delay_s

    def take(self, now_s: float, size_bytes: int) -> float | None:
        """Enqueue a frame; return when it arrives at the far end, or None if it is lost."""
        free_s = self.free_s
        if free_s <= now_s:
            free_s = now_s
            if self._queued_bytes:
                self._queue.clear()
                self._queued_bytes = 0
        elif self._bounded:
            if self._queued_bytes + size_bytes > self._most_bytes and not self._make_room(now_s, size_bytes):
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

    def _make_room(self, now_s: float, size_bytes: int) -> bool:
        """Remove frames that have begun to leave (only needed if the queue seems full); return whether a frame fits."""
        queue = self._queue
        while queue and queue[0][0] <= now_s:
            self._queued_bytes -= queue.popleft()[1]
        return self._queued_bytes + size_bytes <= self._most_bytes

    def shift(self, seconds: float) -> None:
        """Move recorded times `seconds` back."""
        self.free_s -= seconds
        self._queue = deque((begins_s - seconds, size) for begins_s, size in self._queue)


Leave = Callable[[float | None], None]
"""Called when a frame leaves the queue, with its arrival time at the far end, or None if the link loses it."""


class ClassfulLinkQueue:
    """A link direction with a queue per traffic class, scheduled as in `links.class_scheduler`.

    `draw` and `dropped` are as in `LinkQueue`. `frame_bytes` is the size of a full packet.
    """

    def __init__(self, hop: PacketHop, draw: Random | None, frame_bytes: int) -> None:
        self._wire = LinkQueue(hop._replace(queue_bytes=math.inf), draw)
        self._queues = ClassQueues[Leave](hop.classes, hop.rate_bps / 8, hop.queue_bytes, None, frame_bytes)
        self._wakes_s = math.inf
        self.dropped = 0

    def empty_s(self, size_bytes: int) -> float:
        """Return the time that a frame takes to cross an idle link."""
        return self._wire.empty_s(size_bytes)

    def take(self, events: EventQueue, number: int, size_bytes: int, leave: Leave) -> bool:
        """Enqueue a frame into the class with this number; return whether there was room."""
        if self._queues.enqueue(number, QueuedItem(events.now_s, size_bytes, leave)) is None:
            self.dropped += 1
            return False
        if self._wakes_s > self._wire.free_s:  # otherwise a wake-up is due when the wire is free
            self._send_ready(events)
        return True

    def _send_ready(self, events: EventQueue) -> None:
        """Send the frames that may leave now, and schedule a wake-up for the rest."""
        now_s, queues, wire = events.now_s, self._queues, self._wire
        while queues.packets:
            next_s = queues.next_departure(max(now_s, wire.free_s))
            assert next_s is not None
            if next_s > now_s:
                if next_s < self._wakes_s:
                    self._wakes_s = next_s
                    events.call_at(next_s, partial(self._wake, events))
                return
            waiting = queues.dequeue(now_s)
            waiting.frame(wire.take(now_s, waiting.size))

    def _wake(self, events: EventQueue) -> None:
        if events.now_s >= self._wakes_s:  # otherwise an earlier wake-up has replaced this one
            self._wakes_s = math.inf
            self._send_ready(events)

    def shift(self, seconds: float) -> None:
        """Make all recorded times `seconds` earlier. Call this only while no frame is queued."""
        self._wire.shift(seconds)
        self._queues.shift(seconds)


class Place(NamedTuple):
    """The queue of one traffic class of a link, identified by the class's number."""

    line: ClassfulLinkQueue
    number: int

    def empty_s(self, size_bytes: int) -> float:
        """Return the time that a frame takes to cross an idle link."""
        return self.line.empty_s(size_bytes)


Entrance = LinkQueue | Place
"""A queue on a path."""


class Frame(Protocol):
    """Anything with a size on the wire."""

    frame_bytes: int


F = TypeVar("F", bound=Frame)


class PathHop(Generic[F]):
    """A link on a connection's path; it calls `on_arrival` with arrived frames and `on_loss` with lost ones.

    `enter` enqueues a frame.
    """

    __slots__ = ("_deliver", "_in_flight", "_on_arrival", "_on_loss", "enter", "events")

    def __init__(
        self,
        entrance: Entrance,
        events: EventQueue,
        on_arrival: Callable[[F], None],
        on_loss: Callable[[F], None] | None,
    ) -> None:
        self.events = events
        self._on_arrival, self._on_loss = on_arrival, on_loss
        self.enter: Callable[[F], None] = (
            partial(self._enter_queue, entrance)
            if isinstance(entrance, LinkQueue)
            else partial(self._enter_class, *entrance)
        )
        # frames stay in order: the arrival time and turn of each; only the first one is in the event queue
        self._in_flight: deque[tuple[float, int, F]] = deque()
        self._deliver = self.deliver

    def _enter_queue(self, line: LinkQueue, frame: F) -> None:
        """Enqueue a frame into the link's only queue: its arrival time is known at once."""
        self.leave(frame, line.take(self.events.now_s, frame.frame_bytes))

    def _enter_class(self, line: ClassfulLinkQueue, number: int, frame: F) -> None:
        takes = line.take(self.events, number, frame.frame_bytes, partial(self.leave, frame))
        if not takes and self._on_loss is not None:
            self._on_loss(frame)

    def leave(self, frame: F, arrival_s: float | None) -> None:
        """Put a frame onto the link; `arrival_s` is its arrival time at the far end, or None if it is lost."""
        events = self.events
        if arrival_s is not None:
            turn = next(events.number)
            if not self._in_flight:
                heappush(events.heap, (arrival_s, turn, self._deliver))
            self._in_flight.append((arrival_s, turn, frame))
        elif self._on_loss is not None:
            self._on_loss(frame)

    def deliver(self) -> None:
        """Deliver the first frame at the far end."""
        flying = self._in_flight
        _, _, frame = flying.popleft()
        if flying:
            arrival_s, turn, _ = flying[0]
            heappush(self.events.heap, (arrival_s, turn, self._deliver))
        self._on_arrival(frame)


class FramePath(Generic[F]):
    """All links of a connection in one direction; frames enter with `enter`; for the callbacks, see `PathHop`."""

    def __init__(
        self,
        events: EventQueue,
        hops: Sequence[Entrance],
        on_arrival: Callable[[F], None],
        on_loss: Callable[[F], None] | None = None,
    ) -> None:
        self._hops: list[PathHop[F]] = []
        self.enter = on_arrival
        for hop in reversed(hops):
            self._hops.append(PathHop(hop, events, self.enter, on_loss))
            self.enter = self._hops[-1].enter

    def continue_on(self, events: EventQueue) -> None:
        """Continue on another event queue, with nothing in flight."""
        for hop_queue in self._hops:
            hop_queue.events = events

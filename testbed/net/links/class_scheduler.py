"""Packet scheduler for classes that have their own queues in front of a link. Pure: callers pass in the time.

It works like the kernel's HTB with two levels. Classes below their guarantee go before all other classes. Within each
of these two groups, the class with the lowest `priority` goes first. Classes of equal priority share by weight, with
deficit round robin (Shreedhar and Varghese 1995). A class with a `limit` waits while it exceeds it. Bandwidth borrowed
from idle classes counts against the limit of a class, not against its guarantee. Sizes are bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from testbed.spec.link_direction import Pause, QueueClass

MAX_FRAME_BYTES = 9_100
MIN_WEIGHT = 0.01
ROUNDING_TOLERANCE_BYTES = 1e-3


PauseSignal = Callable[[float, bool], None]
"""Called with a moment in nanoseconds and whether to pause (True) or resume (False) the sender."""


class PauseIngress:
    """The buffer in which a switch holds the frames of one incoming link, and the pauses that it sends.

    Args:
        pause: The thresholds.
        signal: Called to pause or resume the sender.
        extra_bytes: Room beyond the buffer for the bytes that arrive because a pause took effect late.
    """

    def __init__(self, pause: Pause, signal: PauseSignal, extra_bytes: int = 0) -> None:
        self.set_limits(pause, extra_bytes)
        self._signal = signal
        self.held_bytes = self.peak_bytes = 0
        self.pauses = self.dropped = 0
        self.is_pausing = False

    def set_limits(self, pause: Pause, extra_bytes: int = 0) -> None:
        """Set the thresholds for the frames that arrive and leave from now on."""
        self.pause = pause
        self._room_bytes = pause.buffer_bytes + extra_bytes

    def admit(self, size: int) -> bool:
        """Return whether the buffer has room for a frame of `size` bytes; otherwise count it as dropped."""
        has_room = self.held_bytes + size <= self._room_bytes
        self.dropped += not has_room
        return has_room

    def on_enqueue(self, size: int, at_ns: float) -> None:
        """Count a frame that entered one of the switch's queues; pause the sender above the threshold."""
        self.held_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        if self.held_bytes > self.pause.xoff_bytes and not self.is_pausing:
            self.is_pausing = True
            self.pauses += 1
            self._signal(at_ns, True)

    def on_dequeue(self, size: int, at_ns: float) -> None:
        """Count a frame whose last bit has left the switch; resume the sender below the threshold."""
        self.held_bytes -= size
        if self.is_pausing and self.held_bytes <= self.pause.xon_bytes:
            self.is_pausing = False
            self._signal(at_ns, False)


T = TypeVar("T")


@dataclass(slots=True)
class QueuedItem(Generic[T]):
    """A queued frame: its arrival time, its size on the wire, the frame, and the account of the link it came from."""

    arrival: float
    size: int
    frame: T
    origin: PauseIngress | None = None


class _TokenBucket:
    """A token bucket that may be overdrawn by one frame."""

    __slots__ = ("_burst_bytes", "_bytes", "_updated", "rate")

    def __init__(self, rate: float, burst_bytes: float) -> None:
        self.rate = rate
        self._bytes = self._burst_bytes = burst_bytes
        self._updated = 0.0

    def level(self, now: float) -> float:
        if now > self._updated:
            self._bytes = min(self._burst_bytes, self._bytes + (now - self._updated) * self.rate)
            self._updated = now
        return self._bytes

    def take(self, size: int) -> None:
        self._bytes -= size

    def ready_at(self, now: float) -> float:
        """Return when the bucket is no longer overdrawn."""
        level = self.level(now)
        return now if level >= -ROUNDING_TOLERANCE_BYTES else now - level / self.rate

    def shift(self, offset: float) -> None:
        self._updated -= offset


class _ClassQueue(Generic[T]):
    __slots__ = ("deficit", "frames", "guarantee", "limit", "priority", "size", "weight")

    def __init__(self, settings: QueueClass, rate: float, burst_bytes: float) -> None:
        self.frames: deque[QueuedItem[T]] = deque()
        self.size = 0
        self.priority = settings.priority
        self.weight = max(settings.share, MIN_WEIGHT)
        self.guarantee = _TokenBucket(settings.share * rate, burst_bytes) if settings.share else None
        self.limit = _TokenBucket(settings.limit * rate, burst_bytes) if settings.limit < 1.0 else None
        self.deficit = 0.0


class ClassQueues(Generic[T]):
    """One queue per class and the scheduler that serves them.

    Args:
        classes: The classes, in the order in which queues are numbered.
        rate: Rate of the link in bytes per unit of time; all times are in that unit.
        queue_bytes: Capacity of each queue.
        queue_packets: Capacity of each queue in packets; if given, it replaces `queue_bytes`.
        frame_bytes: Size of the largest frame. A guarantee or limit allows a burst of two of them.
    """

    def __init__(
        self,
        classes: Sequence[QueueClass],
        rate: float,
        queue_bytes: float,
        queue_packets: int | None,
        frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        self.queues = [_ClassQueue[T](settings, rate, 2 * frame_bytes) for settings in classes]
        by_dscp = {dscp: number for number, entry in enumerate(classes) for dscp in entry.dscps}
        self.default = next((number for number, entry in enumerate(classes) if not entry.dscps), 0)
        self._by_dscp = [by_dscp.get(dscp, self.default) for dscp in range(64)]
        self._queue_bytes, self._queue_packets = queue_bytes, queue_packets
        self._quantum_bytes = frame_bytes
        self._turn = 0
        self.bytes = 0
        self.packets = 0

    def __len__(self) -> int:
        return self.packets

    def enqueue(self, number: int, item: QueuedItem[T]) -> int | None:
        """Queue an item in a class.

        An item with an `origin` is always queued: its account has admitted it already.

        Returns:
            The bytes in that class's queue, including the item, or None if it was dropped.
        """
        queue = self.queues[number]
        full = item.origin is None and (
            len(queue.frames) >= self._queue_packets
            if self._queue_packets
            else queue.size + item.size > self._queue_bytes
        )
        if full:
            return None
        queue.frames.append(item)
        queue.size += item.size
        self.bytes += item.size
        self.packets += 1
        return queue.size

    def next_departure(self, free: float) -> float | None:
        """Return when the next frame can leave if the wire is free at `free`; None when all queues are empty."""
        times = []
        for queue in self.queues:
            if queue.frames:
                ready = max(free, queue.frames[0].arrival)
                times.append(queue.limit.ready_at(ready) if queue.limit else ready)
        return min(times, default=None)

    def dequeue(self, now: float) -> QueuedItem[T]:
        """Remove and return the next item; `now` is the result of `next_departure`, or later."""
        ready = [
            queue
            for queue in self.queues
            if queue.frames
            and queue.frames[0].arrival <= now
            and (queue.limit is None or queue.limit.ready_at(now) <= now)
        ]
        below = [queue for queue in ready if queue.guarantee is not None and queue.guarantee.level(now) > 0]
        queue = self._select(below or ready)
        item = queue.frames.popleft()
        queue.size -= item.size
        self.bytes -= item.size
        self.packets -= 1
        if below and queue.guarantee is not None:
            queue.guarantee.take(item.size)
        if queue.limit is not None:
            queue.limit.take(item.size)
        return item

    def _select(self, candidates: list[_ClassQueue[T]]) -> _ClassQueue[T]:
        if len(candidates) == 1:
            return candidates[0]
        first = min(queue.priority for queue in candidates)
        return self._round_robin([queue for queue in candidates if queue.priority == first])

    def _round_robin(self, equals: list[_ClassQueue[T]]) -> _ClassQueue[T]:
        if len(equals) == 1:
            return equals[0]
        for queue in self.queues:
            if queue not in equals:
                queue.deficit = 0.0
        while True:
            for step in range(len(self.queues)):
                queue = self.queues[(self._turn + step) % len(self.queues)]
                if queue in equals and queue.deficit >= queue.frames[0].size:
                    queue.deficit -= queue.frames[0].size
                    self._turn = (self._turn + step) % len(self.queues)
                    return queue
            # no queue has enough deficit: top up each by its weight
            least = min(queue.weight for queue in equals)
            for queue in equals:
                queue.deficit += self._quantum_bytes * queue.weight / least
            self._turn = (self._turn + 1) % len(self.queues)

    def clear(self, now: float) -> int:
        """Drop all queued frames and return their number."""
        count = self.packets
        for queue in self.queues:
            for item in queue.frames:
                if item.origin is not None:
                    item.origin.on_dequeue(item.size, now)
            queue.frames.clear()
            queue.size = 0
        self.bytes = self.packets = 0
        return count

    def shift(self, offset: float) -> None:
        """Move the origin of time forward by `offset`; the queues must be empty."""
        for queue in self.queues:
            for bucket in (queue.guarantee, queue.limit):
                if bucket is not None:
                    bucket.shift(offset)


class Scheduler(ClassQueues[bytes]):
    """The class queues of one direction, holding Ethernet frames; times in nanoseconds."""

    def __init__(
        self, classes: Sequence[QueueClass], rate_bps: float, queue_bytes: int, queue_packets: int | None
    ) -> None:
        super().__init__(classes, rate_bps / 8e9, queue_bytes, queue_packets)

    def class_of(self, frame: bytes) -> int:
        """Return the number of the class that a frame belongs to, by its DSCP."""
        ipv4 = frame[12:14] == b"\x08\x00" and len(frame) >= 34
        return self._by_dscp[frame[15] >> 2] if ipv4 else self.default

    def backlog_bytes(self, frame: bytes) -> int:
        """Return the bytes queued in the class that a frame belongs to."""
        return self.queues[self.class_of(frame)].size

    def enqueue_frame(
        self, frame: bytes, arrival_ns: float, origin: PauseIngress | None = None
    ) -> int | None:
        """Queue a frame in its class; see `enqueue`."""
        return self.enqueue(self.class_of(frame), QueuedItem(arrival_ns, len(frame), frame, origin))

    def dequeue_frame(self, now_ns: float) -> bytes:
        """Remove and return the next frame; see `dequeue`."""
        return self.dequeue(now_ns).frame

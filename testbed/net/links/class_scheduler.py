"""What leaves next, where packets have queues of their own in front of a link. Pure: times are handed in.

As the kernel's HTB does it with two levels: a class that has had less than its guarantee goes before all that have had
theirs, within each of these the least `priority` first, and among equals by their shares (deficit round robin:
Shreedhar and Varghese 1995). A class with a `limit` waits while it is ahead of it. What it borrows, while nobody else
sends, counts against its limit and not against its guarantee. Sizes are bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from testbed.spec.link_direction import QueueClass

FRAME_BYTES = 9_100
LEAST_WEIGHT = 0.01
ROUNDING_BYTES = 1e-3


class Origin(Protocol):
    """Keeps account of what waits of frames that came from one place."""

    def takes(self, size: int) -> bool:
        """Whether there is room for a frame of `size` bytes; else it is dropped."""

    def came(self, size: int, at_ns: float) -> None:
        """It is in a queue."""

    def left(self, size: int, at_ns: float) -> None:
        """It has left."""


T = TypeVar("T")


@dataclass(slots=True)
class QueuedItem(Generic[T]):
    """What waits: since when, its size on the wire, itself, where it came from."""

    came: float
    size: int
    frame: T
    origin: Origin | None = None


class _Bucket:
    """How much a class may send at a rate: it fills with time, up to a burst, and may be overdrawn by one frame."""

    __slots__ = ("_at", "_burst_bytes", "_bytes", "rate")

    def __init__(self, rate: float, burst_bytes: float) -> None:
        self.rate = rate
        self._bytes = self._burst_bytes = burst_bytes
        self._at = 0.0

    def level(self, now: float) -> float:
        if now > self._at:
            self._bytes = min(self._burst_bytes, self._bytes + (now - self._at) * self.rate)
            self._at = now
        return self._bytes

    def take(self, size: int) -> None:
        self._bytes -= size

    def ready_at(self, now: float) -> float:
        """When it is no longer overdrawn."""
        level = self.level(now)
        return now if level >= -ROUNDING_BYTES else now - level / self.rate

    def shift(self, time: float) -> None:
        """Tell the time from so much later on."""
        self._at -= time


class _Queue(Generic[T]):
    __slots__ = ("deficit", "frames", "guarantee", "limit", "priority", "size", "weight")

    def __init__(self, settings: QueueClass, rate: float, burst_bytes: float) -> None:
        self.frames: deque[QueuedItem[T]] = deque()
        self.size = 0
        self.priority = settings.priority
        self.weight = max(settings.share, LEAST_WEIGHT)
        self.guarantee = _Bucket(settings.share * rate, burst_bytes) if settings.share else None
        self.limit = _Bucket(settings.limit * rate, burst_bytes) if settings.limit < 1.0 else None
        self.deficit = 0.0


class ClassQueues(Generic[T]):
    """A queue for each class, of whatever waits. Each holds `queue_bytes`, or `queue_packets` if given.

    rate: of the link, in bytes per unit of time; all times are in that unit. frame_bytes: of the largest; two of them
    may go before their time where there is a guarantee or a limit.
    """

    def __init__(
        self,
        classes: Sequence[QueueClass],
        rate: float,
        queue_bytes: float,
        queue_packets: int | None,
        frame_bytes: int = FRAME_BYTES,
    ) -> None:
        self.queues = [_Queue[T](settings, rate, 2 * frame_bytes) for settings in classes]
        by_dscp = {dscp: number for number, entry in enumerate(classes) for dscp in entry.dscps}
        self.rest = next((number for number, entry in enumerate(classes) if not entry.dscps), 0)
        self._by_dscp = [by_dscp.get(dscp, self.rest) for dscp in range(64)]
        self._queue_bytes, self._queue_packets = queue_bytes, queue_packets
        self._quantum_bytes = frame_bytes
        self._turn = 0
        self.bytes = 0
        self.packets = 0

    def __len__(self) -> int:
        return self.packets

    def of_dscp(self, dscp: int) -> int:
        """Which queue is that of packets with a DSCP: its place among the classes."""
        return self._by_dscp[dscp]

    def enter(self, number: int, waiting: QueuedItem[T]) -> int | None:
        """Take it into that queue; the bytes there with it, or None when there is no room.

        Where somebody keeps account of it, it is theirs whether there is room.
        """
        queue = self.queues[number]
        full = waiting.origin is None and (
            len(queue.frames) >= self._queue_packets
            if self._queue_packets
            else queue.size + waiting.size > self._queue_bytes
        )
        if full:
            return None
        queue.frames.append(waiting)
        queue.size += waiting.size
        self.bytes += waiting.size
        self.packets += 1
        return queue.size

    def next_at(self, free: float) -> float | None:
        """When the next frame can go, if the wire is free at `free`; None when nothing waits."""
        times = []
        for queue in self.queues:
            if queue.frames:
                ready = max(free, queue.frames[0].came)
                times.append(queue.limit.ready_at(ready) if queue.limit else ready)
        return min(times, default=None)

    def pop(self, now: float) -> QueuedItem[T]:
        """What goes now; `now` is what `next_at` gave, or later."""
        ready = [
            queue
            for queue in self.queues
            if queue.frames
            and queue.frames[0].came <= now
            and (queue.limit is None or queue.limit.ready_at(now) <= now)
        ]
        owed = [queue for queue in ready if queue.guarantee is not None and queue.guarantee.level(now) > 0]
        queue = self._first(owed or ready)
        waiting = queue.frames.popleft()
        queue.size -= waiting.size
        self.bytes -= waiting.size
        self.packets -= 1
        if owed and queue.guarantee is not None:
            queue.guarantee.take(waiting.size)
        if queue.limit is not None:
            queue.limit.take(waiting.size)
        return waiting

    def _first(self, among: list[_Queue[T]]) -> _Queue[T]:
        if len(among) == 1:
            return among[0]
        first = min(queue.priority for queue in among)
        return self._by_turns([queue for queue in among if queue.priority == first])

    def _by_turns(self, equals: list[_Queue[T]]) -> _Queue[T]:
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
            # nobody's turn: everyone gets more, by weight
            least = min(queue.weight for queue in equals)
            for queue in equals:
                queue.deficit += self._quantum_bytes * queue.weight / least
            self._turn = (self._turn + 1) % len(self.queues)

    def clear(self, now: float) -> int:
        """Throw all away; how many there were."""
        count = self.packets
        for queue in self.queues:
            for waiting in queue.frames:
                if waiting.origin is not None:
                    waiting.origin.left(waiting.size, now)
            queue.frames.clear()
            queue.size = 0
        self.bytes = self.packets = 0
        return count

    def shift(self, time: float) -> None:
        """Tell the time from so much later on; nothing waits."""
        for queue in self.queues:
            for bucket in (queue.guarantee, queue.limit):
                if bucket is not None:
                    bucket.shift(time)


class Scheduler(ClassQueues[bytes]):
    """The queues of one direction, of frames as they are on the wire, for a link of `rate_bps`; times in ns."""

    def __init__(
        self, classes: Sequence[QueueClass], rate_bps: float, queue_bytes: int, queue_packets: int | None
    ) -> None:
        super().__init__(classes, rate_bps / 8e9, queue_bytes, queue_packets)

    def number_of(self, frame: bytes) -> int:
        """Which queue is that of a frame's class."""
        ipv4 = frame[12:14] == b"\x08\x00" and len(frame) >= 34
        return self.of_dscp(frame[15] >> 2) if ipv4 else self.rest

    def waiting_bytes(self, frame: bytes) -> int:
        """In the queue that it would come into."""
        return self.queues[self.number_of(frame)].size

    def put(self, frame: bytes, arrival_ns: float, origin: Origin | None = None) -> int | None:
        """Take it in; see `enter`."""
        return self.enter(self.number_of(frame), QueuedItem(arrival_ns, len(frame), frame, origin))

    def take(self, now_ns: float) -> bytes:
        """The frame that goes now; see `pop`."""
        return self.pop(now_ns).frame

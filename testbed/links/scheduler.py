"""What leaves next, where packets have queues of their own in front of a link. Pure: times are handed in.

As the kernel's HTB does it with two levels: a class that has had less than its guarantee goes before all that have had
theirs, within each of these the least `priority` first, and among equals by their shares (deficit round robin:
Shreedhar and Varghese 1995). A class with a `limit` waits while it is ahead of it. Times are nanoseconds, sizes bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from testbed.directions import QueueClass

BURST_BYTES = 2 * 9_100
LEAST_WEIGHT = 0.01
QUANTUM_BYTES = 9_100
ROUNDING_BYTES = 1e-3


class Origin(Protocol):
    """Keeps account of what waits of frames that came from one place."""

    def takes(self, size: int) -> bool:
        """Whether there is room for a frame of `size` bytes; else it is dropped."""

    def came(self, size: int, at_ns: float) -> None:
        """It is in a queue."""

    def left(self, size: int, at_ns: float) -> None:
        """It has left."""


Waiting = tuple[int, bytes, Origin | None]  # when it came, the frame, where from


class _Bucket:
    """How much a class may send at a rate: it fills with time, up to a burst, and may be overdrawn by one frame."""

    __slots__ = ("_at_ns", "_bytes", "bytes_per_ns")

    def __init__(self, bytes_per_ns: float) -> None:
        self.bytes_per_ns = bytes_per_ns
        self._bytes = float(BURST_BYTES)
        self._at_ns = 0.0

    def level(self, now_ns: float) -> float:
        if now_ns > self._at_ns:
            self._bytes = min(BURST_BYTES, self._bytes + (now_ns - self._at_ns) * self.bytes_per_ns)
            self._at_ns = now_ns
        return self._bytes

    def take(self, size: int) -> None:
        self._bytes -= size

    def ready_ns(self, now_ns: float) -> float:
        """When it is no longer overdrawn."""
        level = self.level(now_ns)
        return now_ns if level >= -ROUNDING_BYTES else now_ns - level / self.bytes_per_ns


class _Queue:
    __slots__ = ("deficit", "frames", "guarantee", "limit", "priority", "size", "weight")

    def __init__(self, settings: QueueClass, bytes_per_ns: float) -> None:
        self.frames: deque[Waiting] = deque()
        self.size = 0
        self.priority = settings.priority
        self.weight = max(settings.share, LEAST_WEIGHT)
        self.guarantee = _Bucket(settings.share * bytes_per_ns) if settings.share else None
        self.limit = _Bucket(settings.limit * bytes_per_ns) if settings.limit < 1.0 else None
        self.deficit = 0.0


class Scheduler:
    """The queues of one direction, for a link of `rate_bps`. Each holds `queue_bytes`, or `queue_packets` if given."""

    def __init__(
        self, classes: Sequence[QueueClass], rate_bps: float, queue_bytes: int, queue_packets: int | None
    ) -> None:
        bytes_per_ns = rate_bps / 8e9
        self._queues = [_Queue(settings, bytes_per_ns) for settings in classes]
        by_dscp = {dscp: number for number, entry in enumerate(classes) for dscp in entry.dscps}
        rest = next((number for number, entry in enumerate(classes) if not entry.dscps), 0)
        self._by_dscp = [by_dscp.get(dscp, rest) for dscp in range(64)]
        self._rest = rest
        self._queue_bytes, self._queue_packets = queue_bytes, queue_packets
        self._turn = 0
        self.bytes = 0
        self.packets = 0

    def __len__(self) -> int:
        return self.packets

    def queue_of(self, frame: bytes) -> _Queue:
        """The queue of a frame's class."""
        ipv4 = frame[12:14] == b"\x08\x00" and len(frame) >= 34
        return self._queues[self._by_dscp[frame[15] >> 2] if ipv4 else self._rest]

    def put(self, frame: bytes, arrival_ns: int, origin: Origin | None = None) -> int | None:
        """Take a frame in; the bytes of its queue with it, or None when that has no room.

        Where somebody keeps account of it, it is theirs whether there is room.
        """
        queue = self.queue_of(frame)
        full = origin is None and (
            len(queue.frames) >= self._queue_packets
            if self._queue_packets
            else queue.size + len(frame) > self._queue_bytes
        )
        if full:
            return None
        queue.frames.append((arrival_ns, frame, origin))
        queue.size += len(frame)
        self.bytes += len(frame)
        self.packets += 1
        return queue.size

    def next_ns(self, free_ns: float) -> float | None:
        """When the next frame can go, if the wire is free at `free_ns`; None when nothing waits."""
        times = []
        for queue in self._queues:
            if queue.frames:
                ready_ns = max(free_ns, queue.frames[0][0])
                times.append(queue.limit.ready_ns(ready_ns) if queue.limit else ready_ns)
        return min(times, default=None)

    def take(self, now_ns: float) -> bytes:
        """The frame that goes now; `now_ns` is what `next_ns` gave, or later."""
        return self.pop(now_ns)[1]

    def pop(self, now_ns: float) -> Waiting:
        """The same, with when it came and where from."""
        ready = [
            queue
            for queue in self._queues
            if queue.frames
            and queue.frames[0][0] <= now_ns
            and (queue.limit is None or queue.limit.ready_ns(now_ns) <= now_ns)
        ]
        owed = [queue for queue in ready if queue.guarantee is not None and queue.guarantee.level(now_ns) > 0]
        among = owed or ready
        first = min(queue.priority for queue in among)
        queue = self._by_turns([queue for queue in among if queue.priority == first])
        waiting = queue.frames.popleft()
        size = len(waiting[1])
        queue.size -= size
        self.bytes -= size
        self.packets -= 1
        for bucket in (queue.guarantee, queue.limit):
            if bucket is not None:
                bucket.take(size)
        return waiting

    def _by_turns(self, equals: list[_Queue]) -> _Queue:
        if len(equals) == 1:
            return equals[0]
        for queue in self._queues:
            if queue not in equals:
                queue.deficit = 0.0
        while True:
            for step in range(len(self._queues)):
                queue = self._queues[(self._turn + step) % len(self._queues)]
                if queue in equals and queue.deficit >= len(queue.frames[0][1]):
                    queue.deficit -= len(queue.frames[0][1])
                    self._turn = (self._turn + step) % len(self._queues)
                    return queue
            # nobody's turn: everyone gets more, by weight
            least = min(queue.weight for queue in equals)
            for queue in equals:
                queue.deficit += QUANTUM_BYTES * queue.weight / least
            self._turn = (self._turn + 1) % len(self._queues)

    def clear(self, now_ns: float) -> int:
        """Throw all away; how many there were."""
        count = self.packets
        for queue in self._queues:
            for _, frame, origin in queue.frames:
                if origin is not None:
                    origin.left(len(frame), now_ns)
            queue.frames.clear()
            queue.size = 0
        self.bytes = self.packets = 0
        return count

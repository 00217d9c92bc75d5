"""One direction of a link, packet by packet: a queue that drops what it has no room for, its rate, the fibre."""

from __future__ import annotations

from collections import deque
from random import Random

from testbed.paths.packet_paths import PacketHop


class Line:
    """First come, first served. draw: says what the fibre loses; None: nothing.

    sent, dropped, lost: frames that have left it, that its queue had no room for, that the fibre lost.
    """

    __slots__ = (
        "_byte_s",
        "_delay_s",
        "_draw",
        "_free_s",
        "_held",
        "_loss",
        "_most_bytes",
        "_queue",
        "_queued_bytes",
        "dropped",
        "lost",
        "sent",
    )

    def __init__(self, hop: PacketHop, draw: Random | None) -> None:
        self._draw, self._loss = draw if hop.loss else None, hop.loss
        self._most_bytes = hop.queue_bytes
        self._byte_s, self._held = 8 / hop.rate_bps, hop.held
        self._delay_s = hop.delay_s + hop.early_s
        self._free_s = 0.0
        self._queue: deque[tuple[float, int]] = deque()
        self._queued_bytes = 0
        self.sent = self.dropped = self.lost = 0

    def empty_s(self, size_bytes: int) -> float:
        """What a frame takes that finds it idle."""
        return (size_bytes * self._byte_s if self._held else 0.0) + self._delay_s

    def take(self, now_s: float, size_bytes: int) -> float | None:
        """A frame comes: when it is at the far end; None where it never is."""
        queue = self._queue
        while queue and queue[0][0] <= now_s:
            self._queued_bytes -= queue.popleft()[1]
        free_s = self._free_s
        if free_s > now_s:
            if self._queued_bytes + size_bytes > self._most_bytes:
                self.dropped += 1
                return None
            queue.append((free_s, size_bytes))
            self._queued_bytes += size_bytes
        else:
            free_s = now_s
        self.sent += 1
        self._free_s = over_s = free_s + size_bytes * self._byte_s
        if self._draw is not None and self._draw.random() < self._loss:
            self.lost += 1
            return None
        return (over_s if self._held else free_s) + self._delay_s

    def begins_s(self, now_s: float) -> float:
        """When what comes now would begin to leave."""
        return max(now_s, self._free_s)

    def shift(self, seconds: float) -> None:
        """Tell the time from so much later on."""
        self._free_s -= seconds
        self._queue = deque((begins_s - seconds, size) for begins_s, size in self._queue)

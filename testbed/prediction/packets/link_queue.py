"""One direction of a link, packet by packet: a queue that drops what it has no room for, its rate, the fibre."""

from __future__ import annotations

import math
from collections import deque
from random import Random

from testbed.net.paths.hops import PacketHop


class Line:
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

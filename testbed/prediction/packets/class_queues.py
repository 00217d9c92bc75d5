"""One direction of a link, packet by packet, where classes of traffic have queues of their own in front of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from random import Random
from typing import NamedTuple

from testbed.net.links.class_scheduler import ClassQueues, QueuedItem
from testbed.net.paths.hops import PacketHop
from testbed.prediction.event_queue import Agenda
from testbed.prediction.packets.link_queue import Line

Leave = Callable[[float | None], None]
"""What is called when a frame's turn has come. When it is at the far end; None: never, the fibre loses it."""


class ClassedLine:
    """`links.class_scheduler` says what goes next. draw, dropped: as `Line` has them. frame_bytes: of a full packet."""

    def __init__(self, hop: PacketHop, draw: Random | None, frame_bytes: int) -> None:
        self._wire = Line(hop._replace(queue_bytes=math.inf), draw)
        self._queues = ClassQueues[Leave](hop.classes, hop.rate_bps / 8, hop.queue_bytes, None, frame_bytes)
        self._wakes_s = math.inf
        self.dropped = 0

    def empty_s(self, size_bytes: int) -> float:
        """What a frame takes that finds it idle."""
        return self._wire.empty_s(size_bytes)

    def take(self, agenda: Agenda, number: int, size_bytes: int, leave: Leave) -> bool:
        """A frame comes, to that class's queue: whether there is room."""
        if self._queues.enter(number, QueuedItem(agenda.now_s, size_bytes, leave)) is None:
            self.dropped += 1
            return False
        if self._wakes_s > self._wire.free_s:  # else somebody waits for the wire, and it goes on then
            self._go_on(agenda)
        return True

    def _go_on(self, agenda: Agenda) -> None:
        """Let go what may leave now, and wake up when more may."""
        now_s, queues, wire = agenda.now_s, self._queues, self._wire
        while queues.packets:
            next_s = queues.next_at(max(now_s, wire.free_s))
            assert next_s is not None
            if next_s > now_s:
                if next_s < self._wakes_s:
                    self._wakes_s = next_s
                    agenda.at(next_s, partial(self._wake, agenda))
                return
            waiting = queues.pop(now_s)
            waiting.frame(wire.take(now_s, waiting.size))

    def _wake(self, agenda: Agenda) -> None:
        if agenda.now_s >= self._wakes_s:  # else another one has come since then, who could go before
            self._wakes_s = math.inf
            self._go_on(agenda)

    def shift(self, seconds: float) -> None:
        """Tell the time from so much later on; nothing waits."""
        self._wire.shift(seconds)
        self._queues.shift(seconds)


class Place(NamedTuple):
    """In front of a link, in the queue of the class with that number."""

    line: ClassedLine
    number: int

    def empty_s(self, size_bytes: int) -> float:
        """What a frame takes that finds the link idle."""
        return self.line.empty_s(size_bytes)

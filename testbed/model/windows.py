"""Congestion windows where nothing is lost but by queues that overflow: of TCP that sends all of a window at once.

Where several messages meet in front of a slower link, its queue may hold each of them and not all: of what comes while
it is full so much is lost as does not leave it meanwhile (drop-tail), whole packets of those that come. Whoever lost
some sends it again a round trip later and goes on with less; a window grows while there is more to send than it holds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import NamedTuple

PIECES = 4  # in which a window leaves behind acknowledgements, at the most
SLOW_START = 2  # times as much as it has had under way, slow start opens a window (`tcp_is_cwnd_limited`)
LEAST_PACKETS = 2  # of a window
NOTHING_BYTES = 1e-3

Action = Callable[[], None]


@dataclass(eq=False)
class Arrival:
    """Bytes that come into a queue: those that have not yet, and those that it had no room for."""

    left_bytes: float
    lost_bytes: float = 0.0


@dataclass(eq=False)
class Queue:
    """In front of a part. rate: bytes per second that leave it; size_bytes: the most that it holds.

    coming: by the part before it, with the rate of that, what comes one behind the other. over_bytes: that it had no
    room for and nobody has lost: packets are lost whole, each by one of those that come.
    """

    rate: float
    size_bytes: float
    packet_bytes: float
    standing_bytes: float = 0.0
    over_bytes: float = 0.0
    now_s: float = 0.0
    coming: dict[str, tuple[float, deque[Arrival]]] = field(default_factory=dict)
    draw: Random = field(default_factory=partial(Random, 0))

    def put(self, now_s: float, source: str, rate: float, size_bytes: float) -> Arrival:
        """So much begins to come."""
        self.advance(now_s)
        arrival = Arrival(size_bytes)
        self.coming.setdefault(source, (rate, deque()))[1].append(arrival)
        return arrival

    def advance(self, until_s: float) -> None:
        """Let come what comes until then."""
        while self.coming and self.now_s < until_s:
            into = sum([rate for rate, _ in self.coming.values()])
            more = into - self.rate
            full = more > 0 and self.standing_bytes >= self.size_bytes
            seconds = min([line[0].left_bytes / rate for rate, line in self.coming.values()])
            if more > 0 and not full:
                seconds = min(seconds, (self.size_bytes - self.standing_bytes) / more)
            last = self.now_s + seconds >= until_s
            seconds = until_s - self.now_s if last else seconds
            if full:
                self._lose(more * seconds)
            self._come(seconds)
            self.now_s = until_s if last else self.now_s + seconds
            self.standing_bytes = max(0.0, self.standing_bytes + (0.0 if full else more * seconds))
            if self.size_bytes - self.standing_bytes < NOTHING_BYTES:
                self.standing_bytes = self.size_bytes
        if until_s > self.now_s:
            self.standing_bytes = max(0.0, self.standing_bytes - self.rate * (until_s - self.now_s))
            self.now_s = until_s

    def _lose(self, size_bytes: float) -> None:
        """Of all that come now, each as likely as it has packets among them."""
        self.over_bytes += size_bytes
        while self.over_bytes >= self.packet_bytes:
            self.over_bytes -= self.packet_bytes
            lines = list(self.coming.values())
            ((_, line),) = self.draw.choices(lines, [rate for rate, _ in lines])
            line[0].lost_bytes += self.packet_bytes

    def _come(self, seconds: float) -> None:
        """From everywhere for so long."""
        for source, (rate, line) in list(self.coming.items()):
            first = line[0]
            first.left_bytes -= rate * seconds
            if first.left_bytes < NOTHING_BYTES:
                line.popleft()
                if not line:
                    del self.coming[source]


class Way(NamedTuple):
    """Of a connection's packets: the queue that they may overflow, the part before it and its rate, bytes per second.

    packet_bytes: of a full one's payload. back_s: what word of them takes. kept, growth: of its congestion control.
    """

    queue: Queue
    source: str
    rate: float
    packet_bytes: float
    back_s: float
    kept: float
    growth: float


class Opened(NamedTuple):
    """Bytes that a window has; the most that was under way at once."""

    size_bytes: float
    most_bytes: float


@dataclass(eq=False)
class _Message:
    """unsent_bytes: that are to leave; missing_bytes: that were lost, which its sender does not know yet."""

    size_bytes: float
    unsent_bytes: float
    send: Callable[[float, Callable[[float], None]], None]
    left: Action
    come: Action
    missing_bytes: float = 0.0
    pieces: int = 0
    there: bool = False

    @property
    def over(self) -> bool:
        """Whether all of it has left for good."""
        return not self.pieces and self.unsent_bytes < NOTHING_BYTES and self.missing_bytes < NOTHING_BYTES


class Window:
    """Of a connection. later, now: act after so many seconds; the time.

    size_bytes: infinite until it loses some: what was under way until then was within what slow start had opened.
    """

    def __init__(
        self, way: Way, later: Callable[[float, Action], None], now: Callable[[], float], opened: Opened
    ) -> None:
        self.way, self._later, self._now = way, later, now
        self.size_bytes, self.most_bytes = opened
        self._under_way_bytes = self._given_bytes = 0.0
        self._waiting: deque[_Message] = deque()
        self._order: deque[_Message] = deque()
        self._reduced_s = -math.inf

    @property
    def bounded(self) -> bool:
        """Whether it has lost packets."""
        return math.isfinite(self.size_bytes)

    @property
    def opened(self) -> Opened:
        """What it is now."""
        return Opened(self.size_bytes, self.most_bytes)

    def send(
        self,
        size_bytes: float,
        send: Callable[[float, Callable[[float], None]], None],
        left: Action,
        come: Action,
    ) -> None:
        """A message. send: lets so much of it leave; calls what it is given then, with the seconds until it is there.

        left, come: called when all of it has left, and when it and all before it are there.
        """
        message = _Message(size_bytes, size_bytes, send, left, come)
        self._waiting.append(message)
        self._order.append(message)
        self._given_bytes += size_bytes
        self.most_bytes = max(self.most_bytes, self._given_bytes)
        self._go_on()

    def _go_on(self) -> None:
        """Let leave what there is room for."""
        while self._waiting:
            message = self._waiting[0]
            room_bytes = self.size_bytes - self._under_way_bytes
            piece_bytes = message.unsent_bytes
            if room_bytes < piece_bytes:  # acknowledgements of its first packets let the next ones go
                piece_bytes = min(piece_bytes, self.size_bytes / PIECES)
                if room_bytes < piece_bytes - NOTHING_BYTES:
                    return
            message.unsent_bytes -= piece_bytes
            if message.unsent_bytes < NOTHING_BYTES:
                self._waiting.popleft()
            self._leave(message, piece_bytes)

    def _leave(self, message: _Message, piece_bytes: float) -> None:
        way = self.way
        bound = self.bounded
        full = bool(self._waiting)
        if bound:
            self._under_way_bytes += piece_bytes
        arrival = way.queue.put(self._now(), way.source, way.rate, piece_bytes)
        message.pieces += 1

        def left(latency_s: float) -> None:
            way.queue.advance(self._now())
            message.pieces -= 1
            lost_bytes = min(arrival.lost_bytes, piece_bytes)
            message.missing_bytes += lost_bytes
            round_trip_s = latency_s + way.back_s

            def acknowledged() -> None:
                if bound:
                    self._under_way_bytes -= piece_bytes
                if lost_bytes:
                    self._mend(message, lost_bytes, round_trip_s)
                elif bound and full:
                    self.size_bytes += way.growth * way.packet_bytes * piece_bytes / self.size_bytes
                self._go_on()

            if bound or lost_bytes:
                self._later(round_trip_s, acknowledged)
            if message.over:
                message.left()
                self._later(latency_s, lambda: self._come(message))

        message.send(piece_bytes, left)

    def _come(self, message: _Message) -> None:
        message.there = True
        while self._order and self._order[0].there:
            first = self._order.popleft()
            self._given_bytes -= first.size_bytes
            first.come()

    def _mend(self, message: _Message, lost_bytes: float, round_trip_s: float) -> None:
        """Lost bytes leave again, before all others; of what was lost in one round trip a window goes down once."""
        way = self.way
        message.missing_bytes -= lost_bytes
        if message.unsent_bytes < NOTHING_BYTES:
            self._waiting.appendleft(message)
        message.unsent_bytes += lost_bytes
        if self._now() - self._reduced_s >= round_trip_s:
            self._reduced_s = self._now()
            size_bytes = min(self.size_bytes, SLOW_START * self.most_bytes)
            self.size_bytes = max(LEAST_PACKETS * way.packet_bytes, way.kept * size_bytes)

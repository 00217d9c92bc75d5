"""What a sender does about packets that are lost: which to send next, which to send again, and when. No sockets.

Paths are first in, first out: what has not come when something sent later on the same path has is lost. A receiver's
acknowledgement names the latest serial that it heard on a path, so a sender knows this of each packet exactly, also of
one that was sent again, and paths of unlike length disturb nothing. What one makes of it differs by recovery.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from testbed.transport.datagram.packets import MOST_AHEAD, Ack
from testbed.transport.datagram.round_trips import RoundTrips


class Parity(NamedTuple):
    """One of a group's packets of parity: the group's first packet, how many it has, which of how many this is."""

    first: int
    data: int
    number: int
    parity: int


Item = int | Parity
"""What can be sent: a packet of data, by number, or one of parity."""


class Sending(NamedTuple):
    """What was sent, when."""

    item: Item
    sent_s: float


@dataclass
class Path:
    """What is under way on one path. flight: by serial, of which nothing has been heard yet."""

    serial: int = 0  # of the next
    heard: int = -1
    heard_s: float = -math.inf
    came: int = 0
    marked: int = 0
    flight: dict[int, Sending] = field(default_factory=dict)
    times: deque[tuple[int, float]] = field(default_factory=deque)


@dataclass
class News:
    """What an acknowledgement, or a time-out, has changed.

    acked: packets that are known to have come now and were not before. lost: of which that is known now. marked: that
    the network has marked. late: packets of which nothing was heard for too long; late_on: how many on each path.
    """

    acked: int = 0
    lost: int = 0
    marked: int = 0
    round_trip_s: float | None = None
    late: int = 0
    late_on: dict[int, int] = field(default_factory=dict)


class Recovery(ABC):
    """One pair's, one direction's. Packets are numbered from 0, in the order in which they are first sent."""

    in_order: ClassVar[bool] = False
    """Whether its receiver takes packets in order only."""

    code: ClassVar[str | None] = None
    """What makes its parity; see `codes`."""

    def __init__(self, round_trips: RoundTrips) -> None:
        self.round_trips = round_trips
        self.end = 0  # how many packets there are to send
        self.next = 0  # the first that was not sent yet, or has to be sent with all after it
        self.low = 0  # all before have come
        self.resent = 0
        self.parity_sent = 0
        self.paths: dict[int, Path] = {}
        self._acked = 0  # bit i: low + i has come
        self._sent_end = 0  # the first that was never sent
        # path and serial of a packet's latest sending, while in flight
        self._where: dict[int, tuple[int, int]] = {}
        self._lost: set[int] = set()  # to be sent again

    # ---- for those who derive

    @abstractmethod
    def _passed(self, number: int, sending: Sending, news: News) -> None:
        """A packet of data has not come, but something that was sent later has."""

    def _after_ack(self, ack: Ack, news: News, now_s: float) -> None:
        """All of an acknowledgement has been looked at."""
        return

    def _parity_late(self, parity: Parity, news: News) -> None:
        """Nothing was heard of a packet of parity."""
        return

    # ---- sending

    @property
    def under_way(self) -> int:
        """Packets of which nothing has been heard since they were sent."""
        return sum(len(path.flight) for path in self.paths.values())

    @property
    def idle(self) -> bool:
        """Whether all has come."""
        return self.low == self.end

    @property
    def pending(self) -> int:
        """Packets that would be sent now if all of them might."""
        return max(0, self._limit - self.next) + len(self._lost)

    def extend(self, count: int) -> None:
        """There are so many packets more to send, which belong together."""
        self.end += count

    def sent_below(self, end: int) -> bool:
        """Whether all packets below, and all parity of theirs, were sent once."""
        return end <= self._sent_end

    def items(self, most: int) -> list[Item]:
        """What to send next, at most so many; nothing changes until `sent` says so."""
        found: list[Item] = list(self._again(most))
        new = min(most - len(found), self._limit - self.next)
        found += range(self.next, self.next + new)
        return found

    @property
    def _limit(self) -> int:
        """Numbers below may be sent: they are there, and not too far ahead of what has come."""
        return min(self.end, self.low + MOST_AHEAD)

    def _again(self, most: int) -> list[int]:
        """What is lost, lowest number first."""
        return heapq.nsmallest(most, self._lost) if self._lost else []

    def next_serial(self, path: int) -> int:
        """Of what is sent next on this path."""
        own = self.paths.get(path)
        return 0 if own is None else own.serial

    def sent(self, item: Item, path: int, now_s: float) -> int:
        """It was sent; its serial."""
        own = self.paths.get(path)
        if own is None:
            own = self.paths[path] = Path()
        serial = own.serial
        own.serial += 1
        own.flight[serial] = Sending(item, now_s)
        own.times.append((serial, now_s))
        if isinstance(item, int):
            self._data_sent(item, path, serial)
        else:
            self.parity_sent += 1
        return serial

    def _data_sent(self, number: int, path: int, serial: int) -> None:
        if number < self._sent_end:
            self.resent += 1
            self._lost.discard(number)
        else:
            self._sent_end = number + 1
        self._where[number] = (path, serial)
        self.next = max(self.next, number + 1)

    # ---- hearing

    def heard(self, ack: Ack, now_s: float) -> News:
        """An acknowledgement has come. ValueError for what no receiver can have said."""
        path = self.paths.get(ack.path)
        if (
            path is None
            or not -1 <= ack.heard < path.serial
            or ack.low + ack.bits.bit_length() > self._sent_end
        ):
            raise ValueError(f"an acknowledgement of packets that were not sent: {ack.heard}, {ack.low}")
        news = News()
        path.heard_s = now_s
        if ack.came >= path.came:
            news.marked = max(0, ack.marked - path.marked)
            path.came, path.marked = ack.came, ack.marked
        for number in self._newly(ack):
            news.acked += 1
            self._lost.discard(number)
            where = self._where.pop(number, None)
            if where is not None:
                self.paths[where[0]].flight.pop(where[1], None)
        if news.acked:
            self.round_trips.doublings = 0
        if ack.heard > path.heard:
            path.heard = ack.heard
            self._measure(path, news, now_s)
            for serial in list(path.flight):
                if serial > ack.heard:
                    break
                sending = path.flight.pop(serial)
                if isinstance(sending.item, int) and self._where.get(sending.item) == (ack.path, serial):
                    del self._where[sending.item]
                    self._passed(sending.item, sending, news)
        self._after_ack(ack, news, now_s)
        return news

    def _measure(self, path: Path, news: News, now_s: float) -> None:
        """The round trip of the packet that was heard last."""
        times = path.times
        while times and times[0][0] <= path.heard:
            serial, sent_s = times.popleft()
            if serial == path.heard:
                news.round_trip_s = now_s - sent_s
                self.round_trips.add(news.round_trip_s)

    def _newly(self, ack: Ack) -> list[int]:
        """The packets that are known to have come only now."""
        low = self.low
        found = []
        if ack.low > low:
            had = self._acked
            found = [low + i for i in range(ack.low - low) if not had >> i & 1]
            self._acked = had >> (ack.low - low)
            self.low = ack.low
        bits = ack.bits << (ack.low - self.low) if ack.low >= self.low else ack.bits >> (self.low - ack.low)
        new = bits & ~self._acked
        self._acked |= new
        while new:
            lowest = new & -new
            found.append(self.low + lowest.bit_length() - 1)
            new ^= lowest
        self.next = max(self.next, self.low)
        return found

    def _has(self, number: int) -> bool:
        """Whether it is known to have come."""
        return number < self.low or bool(self._acked >> (number - self.low) & 1)

    def _lose(self, number: int, news: News) -> None:
        """It has to be sent again."""
        if number not in self._lost and not self._has(number):
            self._lost.add(number)
            news.lost += 1

    # ---- time

    @property
    def due_s(self) -> float:
        """When `on_timer` has something to do; infinite where only acknowledgements are waited for, or nothing."""
        oldest_s = min(
            (self._late_from_s(path) for path in self.paths.values() if path.flight), default=math.inf
        )
        return oldest_s + self.round_trips.rto_s

    @staticmethod
    def _late_from_s(path: Path) -> float:
        """When waiting for word of a path began: what is in its queues may take long, as long as something comes."""
        return max(next(iter(path.flight.values())).sent_s, path.heard_s)

    def on_timer(self, now_s: float) -> News:
        """Time has passed: what nothing is heard of is lost."""
        news = News()
        rto_s = self.round_trips.rto_s
        for number, path in self.paths.items():
            while path.flight and self._late_from_s(path) + rto_s <= now_s:
                serial = next(iter(path.flight))
                item = path.flight.pop(serial).item
                news.late_on[number] = news.late_on.get(number, 0) + 1
                if isinstance(item, Parity):
                    self._parity_late(item, news)
                elif self._where.get(item) == (number, serial):
                    del self._where[item]
                    self._lose(item, news)
        if news.lost:
            news.late = news.lost
            self.round_trips.doublings += 1
        return news

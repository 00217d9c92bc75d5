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
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from testbed.comm.transport.datagram.packets import MAX_AHEAD, Ack
from testbed.comm.transport.datagram.rtt_estimator import RttEstimator


class Parity(NamedTuple):
    """One of a group's packets of parity: the group's first packet, how many it has, which of how many this is."""

    first: int
    data: int
    number: int
    parity: int


Item = int | Parity
"""What can be sent: a packet of data, by number, or one of parity."""


class SentPackets(NamedTuple):
    """What was sent, when: so many packets of data in a row, from `item` on, or one of parity. serial: of the first."""

    serial: int
    item: Item
    packets: int
    sent_s: float


@dataclass
class Path:
    """What is under way on one path. flight: of which nothing has been heard yet, oldest first.

    settled: of all serials below something has been heard, or they have been given up. times: last serials of what was
    sent at once, and when.
    """

    serial: int = 0  # of the next
    settled: int = 0
    heard: int = -1
    heard_s: float = -math.inf
    came: int = 0
    marked: int = 0
    flight: deque[SentPackets] = field(default_factory=deque)
    times: deque[tuple[int, float]] = field(default_factory=deque)


@dataclass
class Feedback:
    """What an acknowledgement, or a time-out, has changed.

    acked: packets that are known to have come now and were not before. holes: that have not, though something sent
    later on their path has. lost: that count as lost now. marked: that the network has marked. late: packets of which
    nothing was heard for too long; late_on: how many on each path.
    """

    acked: int = 0
    holes: int = 0
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
    """What makes its parity; see `erasure_codes`."""

    def __init__(self, round_trips: RttEstimator) -> None:
        self.round_trips = round_trips
        self.end = 0  # how many packets there are to send
        self.next = 0  # the first that was not sent yet, or has to be sent with all after it
        self.low = 0  # all before have come
        self.resent = 0
        self.parity_sent = 0
        self.paths: dict[int, Path] = {}
        self._acked = 0  # bit i: low + i has come
        self._sent_end = 0  # the first that was never sent
        # path and serial of the latest sending of packets that were sent more than once and have not come
        self._again_at: dict[int, tuple[int, int]] = {}
        self._lost: set[int] = set()  # to be sent again

    # ---- for those who derive

    @abstractmethod
    def _passed(self, number: int, sending: SentPackets, news: Feedback) -> None:
        """A packet of data has not come, but something that was sent later has."""

    def _after_ack(self, ack: Ack, news: Feedback, now_s: float) -> None:
        """All of an acknowledgement has been looked at."""
        return

    def _parity_late(self, parity: Parity, news: Feedback) -> None:
        """Nothing was heard of a packet of parity."""
        return

    # ---- sending

    @property
    def under_way(self) -> int:
        """Packets of which nothing has been heard on their path since they were sent."""
        return sum(path.serial - path.settled for path in self.paths.values())

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

    def fresh(self, most: int) -> range:
        """Packets of data in a row to send next, where nothing else goes first; as `items` otherwise."""
        return range(0) if self._lost else range(self.next, min(self.next + most, self._limit))

    def items(self, most: int) -> list[Item]:
        """What to send next, at most so many; nothing changes until `sent` says so."""
        found: list[Item] = list(self._again(most))
        new = min(most - len(found), self._limit - self.next)
        found += range(self.next, self.next + new)
        return found

    @property
    def _limit(self) -> int:
        """Numbers below may be sent: they are there, and not too far ahead of what has come."""
        return min(self.end, self.low + MAX_AHEAD)

    def _again(self, most: int) -> list[int]:
        """What is lost, lowest number first."""
        return heapq.nsmallest(most, self._lost) if self._lost else []

    def next_serial(self, path: int) -> int:
        """Of what is sent next on this path."""
        own = self.paths.get(path)
        return 0 if own is None else own.serial

    def sent(self, item: Item, path: int, now_s: float) -> int:
        """It was sent; its serial."""
        if isinstance(item, int):
            return self.sent_run(range(item, item + 1), path, now_s)
        self.parity_sent += 1
        return self._fly(item, 1, path, now_s)

    def sent_run(self, numbers: range, path: int, now_s: float) -> int:
        """These packets of data were sent, one after the other; the serial of the first."""
        first, end = numbers.start, numbers.stop
        serial = self._fly(first, end - first, path, now_s)
        if first < self._sent_end:
            for number in range(first, min(end, self._sent_end)):
                self.resent += 1
                self._lost.discard(number)
                self._again_at[number] = (path, serial + number - first)
        self._sent_end = max(self._sent_end, end)
        self.next = max(self.next, end)
        return serial

    def _fly(self, item: Item, count: int, path: int, now_s: float) -> int:
        own = self.paths.get(path)
        if own is None:
            own = self.paths[path] = Path()
        serial = own.serial
        own.serial += count
        own.flight.append(SentPackets(serial, item, count, now_s))
        own.times.append((own.serial - 1, now_s))
        return serial

    # ---- hearing

    def heard(self, ack: Ack, now_s: float) -> Feedback:
        """An acknowledgement has come. ValueError for what no receiver can have said."""
        path = self.paths.get(ack.path)
        if (
            path is None
            or not -1 <= ack.heard < path.serial
            or ack.low + ack.bits.bit_length() > self._sent_end
        ):
            raise ValueError(f"an acknowledgement of packets that were not sent: {ack.heard}, {ack.low}")
        news = Feedback()
        path.heard_s = now_s
        if ack.came >= path.came:
            news.marked = max(0, ack.marked - path.marked)
            path.came, path.marked = ack.came, ack.marked
        news.acked = self._learn(ack)
        if news.acked:
            self.round_trips.doublings = 0
            if self._lost:
                self._lost = {number for number in self._lost if not self._has(number)}
            if self._again_at:
                self._again_at = {
                    number: where for number, where in self._again_at.items() if not self._has(number)
                }
        if ack.heard > path.heard:
            path.heard = ack.heard
            self._measure(path, news, now_s)
            self._pass(ack.path, path, news)
        if news.acked and len(self.paths) > 1:
            self._skip_what_came()
        self._after_ack(ack, news, now_s)
        return news

    def _pass(self, which: int, path: Path, news: Feedback) -> None:
        """Of all up to what was heard last on a path it is known what has become."""
        flight, end = path.flight, path.heard + 1
        while flight and flight[0].serial < end:
            sending = flight.popleft()
            serial, item, count, sent_s = sending
            if isinstance(item, Parity):
                continue
            if serial + count > end:  # the rest is still under way
                passed = end - serial
                flight.appendleft(SentPackets(end, item + passed, count - passed, sent_s))
                count = passed
            for number in self._not_come(which, serial, item, count):
                news.holes += 1
                self._passed(number, sending, news)
        path.settled = max(path.settled, end)

    def _skip_what_came(self) -> None:
        """What is known to have come by word of other paths is not waited for."""
        for path in self.paths.values():
            flight = path.flight
            while flight and self._came(flight[0]):
                serial, _, count, _ = flight.popleft()
                path.settled = serial + count

    def _came(self, sending: SentPackets) -> bool:
        first = sending.item
        if isinstance(first, Parity):
            return False
        return all(self._has(number) for number in range(max(first, self.low), first + sending.packets))

    def _measure(self, path: Path, news: Feedback, now_s: float) -> None:
        """The round trip of the packet that was heard last."""
        times = path.times
        while times[0][0] < path.heard:
            times.popleft()
        last, sent_s = times[0]
        if last == path.heard:
            times.popleft()
        news.round_trip_s = now_s - sent_s
        self.round_trips.add(news.round_trip_s)

    def _learn(self, ack: Ack) -> int:
        """Take in which packets have come; how many of them were not known to have."""
        low, had, news = self.low, self._acked, 0
        if ack.low > low:
            step = ack.low - low
            news = step - (had & ((1 << step) - 1)).bit_count()
            self._acked = had = had >> step
            self.low = ack.low
        if ack.bits:
            bits = (
                ack.bits << (ack.low - self.low) if ack.low >= self.low else ack.bits >> (self.low - ack.low)
            )
            new = bits & ~had
            self._acked |= new
            news += new.bit_count()
        self.next = max(self.next, self.low)
        return news

    def _has(self, number: int) -> bool:
        """Whether it is known to have come."""
        return number < self.low or bool(self._acked >> (number - self.low) & 1)

    def _not_come(self, which: int, serial: int, first: int, count: int) -> Iterator[int]:
        """Of so many packets sent in a row on a path those that have not, and were not sent again since."""
        for number in range(max(first, self.low), first + count):
            here = which, serial + number - first
            if not self._has(number) and self._again_at.get(number, here) == here:
                yield number

    def _lose(self, number: int, news: Feedback) -> None:
        """It has to be sent again."""
        if number not in self._lost and not self._has(number):
            self._lost.add(number)
            news.lost += 1

    # ---- time

    @property
    def due_s(self) -> float:
        """When `on_timer` has something to do; infinite where only acknowledgements are waited for, or nothing."""
        oldest_s = math.inf
        for path in self.paths.values():
            if path.flight:
                oldest_s = min(oldest_s, self._late_from_s(path))
        return oldest_s + self.round_trips.rto_s

    @staticmethod
    def _late_from_s(path: Path) -> float:
        """When waiting for word of a path began: what is in its queues may take long, as long as something comes."""
        return max(path.flight[0].sent_s, path.heard_s)

    def on_timer(self, now_s: float) -> Feedback:
        """Time has passed: what nothing is heard of is lost."""
        news = Feedback()
        rto_s = self.round_trips.rto_s
        for which, path in self.paths.items():
            late = 0
            while path.flight and self._late_from_s(path) + rto_s <= now_s:
                serial, item, count, _ = path.flight.popleft()
                path.settled = serial + count
                if isinstance(item, Parity):
                    late += 1
                    self._parity_late(item, news)
                    continue
                for number in self._not_come(which, serial, item, count):
                    late += 1
                    self._lose(number, news)
            if late:
                news.late_on[which] = late
        if news.lost:
            news.late = news.lost
            self.round_trips.doublings += 1
        return news

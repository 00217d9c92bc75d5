"""Loss recoveries: which packets a sender sends next, which it resends, and when. No sockets.

Paths are first in, first out: once a packet has arrived, packets sent earlier on the same path that have not arrived
are lost. An acknowledgement names the latest serial that arrived on a path. So a sender knows exactly which packets are
lost, including resent ones, even if paths differ in length. Recoveries differ in how they react.
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
    """A parity packet of a group.

    Attributes:
        first: The group's first packet.
        data: The group's number of data packets.
        number: Which parity packet this is.
        parity: The group's number of parity packets.
    """

    first: int
    data: int
    number: int
    parity: int


Item = int | Parity
"""A packet to send: a data packet, by number, or a parity packet."""


class SentPackets(NamedTuple):
    """A transmission: consecutive data packets from `item` on, or one parity packet. `serial`: that of the first."""

    serial: int
    item: Item
    packets: int
    sent_s: float


@dataclass
class Path:
    """Packets in flight on one path.

    Attributes:
        serial: The next serial.
        settled: All serials below this one have been acknowledged or given up.
        latest_serial: The latest acknowledged serial.
        last_ack_s: When the last acknowledgement arrived.
        received: Packets received, as last reported.
        marked: Packets marked, as last reported.
        flight: Transmissions without feedback, oldest first.
        times: Last serial and time of each transmission, for round-trip samples.
    """

    serial: int = 0  # that of the next packet
    settled: int = 0
    latest_serial: int = -1
    last_ack_s: float = -math.inf
    received: int = 0
    marked: int = 0
    flight: deque[SentPackets] = field(default_factory=deque)
    times: deque[tuple[int, float]] = field(default_factory=deque)


@dataclass
class Feedback:
    """The changes that an acknowledgement or a timeout causes.

    Attributes:
        acked: Packets newly known to have arrived.
        holes: Packets that have not arrived although packets sent later on their path have.
        lost: Packets newly considered lost.
        marked: Packets with an ECN mark.
        round_trip_s: The round-trip sample, if any.
        timed_out: Packets without feedback for too long.
        timed_out_by_path: The same by path.
    """

    acked: int = 0
    holes: int = 0
    lost: int = 0
    marked: int = 0
    round_trip_s: float | None = None
    timed_out: int = 0
    timed_out_by_path: dict[int, int] = field(default_factory=dict)


class Recovery(ABC):
    """The recovery of one pair in one direction.

    Packets are numbered from 0, in the order of their first transmission.
    """

    in_order: ClassVar[bool] = False
    """Whether its receiver accepts packets only in order."""

    code: ClassVar[str | None] = None
    """Its erasure code, if any; see `erasure_codes`."""

    def __init__(self, round_trips: RttEstimator) -> None:
        self.round_trips = round_trips
        self.end = 0  # the total number of packets to send so far
        self.next = 0  # the next packet to send
        self.low = 0  # all packets before this one have arrived
        self.resent = 0
        self.parity_sent = 0
        self.paths: dict[int, Path] = {}
        self._acked = 0  # bit i: low + i has arrived
        self._sent_end = 0  # the first packet that was never sent
        # path and serial of the last transmission, for missing packets that were resent
        self._last_resends: dict[int, tuple[int, int]] = {}
        self._lost: set[int] = set()  # to be resent

    # ---- for subclasses

    @abstractmethod
    def _on_hole(self, number: int, sending: SentPackets, feedback: Feedback) -> None:
        """Handle a data packet that has not arrived although a later one has."""

    def _after_ack(self, ack: Ack, feedback: Feedback, now_s: float) -> None:
        """Finish the handling of an acknowledgement."""
        return

    def _on_parity_timeout(self, parity: Parity, feedback: Feedback) -> None:
        """Handle a parity packet without feedback."""
        return

    # ---- sending

    @property
    def in_flight(self) -> int:
        """Packets without any feedback on their path since they were sent."""
        return sum(path.serial - path.settled for path in self.paths.values())

    @property
    def idle(self) -> bool:
        """Whether everything has arrived."""
        return self.low == self.end

    @property
    def pending(self) -> int:
        """Packets that would be sent now if there were no limit."""
        return max(0, self._limit - self.next) + len(self._lost)

    def extend(self, count: int) -> None:
        """Add `count` packets to send, which belong to one message."""
        self.end += count

    def is_sent_below(self, end: int) -> bool:
        """Return whether all packets below `end`, and all their parity, were sent once."""
        return end <= self._sent_end

    def next_run(self, max_packets: int) -> range:
        """Return consecutive data packets to send next, unless other items come first; see `next_items`."""
        return range(0) if self._lost else range(self.next, min(self.next + max_packets, self._limit))

    def next_items(self, max_packets: int) -> list[Item]:
        """Return up to `max_packets` items to send next. Nothing changes until `on_sent`."""
        items: list[Item] = list(self._next_resends(max_packets))
        new = min(max_packets - len(items), self._limit - self.next)
        items += range(self.next, self.next + new)
        return items

    @property
    def _limit(self) -> int:
        """The limit below which packets may be sent: they exist, and are not too far ahead of arrived ones."""
        return min(self.end, self.low + MAX_AHEAD)

    def _next_resends(self, max_packets: int) -> list[int]:
        """Return lost packets, lowest number first."""
        return heapq.nsmallest(max_packets, self._lost) if self._lost else []

    def next_serial(self, path: int) -> int:
        """Return the serial of the next packet on this path."""
        state = self.paths.get(path)
        return 0 if state is None else state.serial

    def on_sent(self, item: Item, path: int, now_s: float) -> int:
        """Record that an item was sent; return its serial."""
        if isinstance(item, int):
            return self.on_run_sent(range(item, item + 1), path, now_s)
        self.parity_sent += 1
        return self._record_sending(item, 1, path, now_s)

    def on_run_sent(self, numbers: range, path: int, now_s: float) -> int:
        """Record that these data packets were sent in order; return the first one's serial."""
        first, end = numbers.start, numbers.stop
        serial = self._record_sending(first, end - first, path, now_s)
        if first < self._sent_end:
            for number in range(first, min(end, self._sent_end)):
                self.resent += 1
                self._lost.discard(number)
                self._last_resends[number] = (path, serial + number - first)
        self._sent_end = max(self._sent_end, end)
        self.next = max(self.next, end)
        return serial

    def _record_sending(self, item: Item, count: int, path: int, now_s: float) -> int:
        state = self.paths.get(path)
        if state is None:
            state = self.paths[path] = Path()
        serial = state.serial
        state.serial += count
        state.flight.append(SentPackets(serial, item, count, now_s))
        state.times.append((state.serial - 1, now_s))
        return serial

    # ---- feedback

    def on_ack(self, ack: Ack, now_s: float) -> Feedback:
        """Handle an acknowledgement. Raises ValueError if no receiver can have sent it."""
        path = self.paths.get(ack.path)
        if (
            path is None
            or not -1 <= ack.latest_serial < path.serial
            or ack.low + ack.bits.bit_length() > self._sent_end
        ):
            raise ValueError(
                f"an acknowledgement of packets that were not sent: {ack.latest_serial}, {ack.low}"
            )
        feedback = Feedback()
        path.last_ack_s = now_s
        if ack.received >= path.received:
            feedback.marked = max(0, ack.marked - path.marked)
            path.received, path.marked = ack.received, ack.marked
        feedback.acked = self._apply_ack(ack)
        if feedback.acked:
            self.round_trips.doublings = 0
            if self._lost:
                self._lost = {number for number in self._lost if not self._has_come(number)}
            if self._last_resends:
                self._last_resends = {
                    number: where
                    for number, where in self._last_resends.items()
                    if not self._has_come(number)
                }
        if ack.latest_serial > path.latest_serial:
            path.latest_serial = ack.latest_serial
            self._sample_round_trip(path, feedback, now_s)
            self._settle_up_to_ack(ack.path, path, feedback)
        if feedback.acked and len(self.paths) > 1:
            self._skip_acked()
        self._after_ack(ack, feedback, now_s)
        return feedback

    def _settle_up_to_ack(self, path_number: int, path: Path, feedback: Feedback) -> None:
        """Settle all transmissions up to the latest acknowledged serial of a path."""
        flight, end = path.flight, path.latest_serial + 1
        while flight and flight[0].serial < end:
            sending = flight.popleft()
            serial, item, count, sent_s = sending
            if isinstance(item, Parity):
                continue
            if serial + count > end:  # the rest is still in flight
                passed = end - serial
                flight.appendleft(SentPackets(end, item + passed, count - passed, sent_s))
                count = passed
            for number in self._find_missing(path_number, serial, item, count):
                feedback.holes += 1
                self._on_hole(number, sending, feedback)
        path.settled = max(path.settled, end)

    def _skip_acked(self) -> None:
        """Drop transmissions whose packets are acknowledged through other paths."""
        for path in self.paths.values():
            flight = path.flight
            while flight and self._is_acked(flight[0]):
                serial, _, count, _ = flight.popleft()
                path.settled = serial + count

    def _is_acked(self, sending: SentPackets) -> bool:
        first = sending.item
        if isinstance(first, Parity):
            return False
        return all(self._has_come(number) for number in range(max(first, self.low), first + sending.packets))

    def _sample_round_trip(self, path: Path, feedback: Feedback, now_s: float) -> None:
        """Sample the round trip of the latest acknowledged packet."""
        times = path.times
        while times[0][0] < path.latest_serial:
            times.popleft()
        last, sent_s = times[0]
        if last == path.latest_serial:
            times.popleft()
        feedback.round_trip_s = now_s - sent_s
        self.round_trips.add(feedback.round_trip_s)

    def _apply_ack(self, ack: Ack) -> int:
        """Record which packets have arrived; return how many were not known before."""
        low, had, new_count = self.low, self._acked, 0
        if ack.low > low:
            step = ack.low - low
            new_count = step - (had & ((1 << step) - 1)).bit_count()
            self._acked = had = had >> step
            self.low = ack.low
        if ack.bits:
            bits = (
                ack.bits << (ack.low - self.low) if ack.low >= self.low else ack.bits >> (self.low - ack.low)
            )
            new = bits & ~had
            self._acked |= new
            new_count += new.bit_count()
        self.next = max(self.next, self.low)
        return new_count

    def _has_come(self, number: int) -> bool:
        """Return whether the packet is known to have arrived."""
        return number < self.low or bool(self._acked >> (number - self.low) & 1)

    def _find_missing(self, path_number: int, serial: int, first: int, count: int) -> Iterator[int]:
        """Yield packets of a transmission that have not arrived and were not resent since."""
        for number in range(max(first, self.low), first + count):
            sending = path_number, serial + number - first
            if not self._has_come(number) and self._last_resends.get(number, sending) == sending:
                yield number

    def _lose(self, number: int, feedback: Feedback) -> None:
        """Mark a packet for resending."""
        if number not in self._lost and not self._has_come(number):
            self._lost.add(number)
            feedback.lost += 1

    # ---- timers

    @property
    def due_s(self) -> float:
        """The time at which `on_timer` has something to do; infinite if no timer is running."""
        oldest_s = math.inf
        for path in self.paths.values():
            if path.flight:
                oldest_s = min(oldest_s, self._timeout_base_s(path))
        return oldest_s + self.round_trips.rto_s

    @staticmethod
    def _timeout_base_s(path: Path) -> float:
        """Return when the timeout of a path started. Queues may delay feedback for long, provided that some arrives."""
        return max(path.flight[0].sent_s, path.last_ack_s)

    def on_timer(self, now_s: float) -> Feedback:
        """Handle timeouts: packets without feedback are lost."""
        feedback = Feedback()
        rto_s = self.round_trips.rto_s
        for path_number, path in self.paths.items():
            late = 0
            while path.flight and self._timeout_base_s(path) + rto_s <= now_s:
                serial, item, count, _ = path.flight.popleft()
                path.settled = serial + count
                if isinstance(item, Parity):
                    late += 1
                    self._on_parity_timeout(item, feedback)
                    continue
                for number in self._find_missing(path_number, serial, item, count):
                    late += 1
                    self._lose(number, feedback)
            if late:
                feedback.timed_out_by_path[path_number] = late
        if feedback.lost:
            feedback.timed_out = feedback.lost
            self.round_trips.doublings += 1
        return feedback

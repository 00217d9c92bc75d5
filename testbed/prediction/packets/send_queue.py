"""A sender's queue of unsent data, and its scoreboard of packets in flight, delivered and lost (RFC 8985: RACK)."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence

from testbed.prediction.packets.congestion_control import Stamp

NOW_S = 1e-9


class Acknowledgement:
    """An acknowledgement.

    next: first byte that has not arrived. passed: packets before it. news: packets that arrived since the last
    acknowledgement. doubled: a packet arrived twice.
    """

    __slots__ = ("doubled", "frame_bytes", "news", "next", "passed")

    def __init__(
        self, next_byte: int, passed: int, news: Sequence[int], doubled: bool, frame_bytes: int
    ) -> None:
        self.next, self.passed, self.news = next_byte, passed, news
        self.doubled, self.frame_bytes = doubled, frame_bytes


class Packet:
    """A data packet.

    Attributes:
        number: Its first byte.
        ends: Callbacks of messages that end in it.
        left: Callbacks for when it is first sent.
        frame_bytes: Size on the wire.
        short: Whether it is less than full.
        first_s: When it was first sent.
        sent_s: When it was last sent.
        times: How often it was sent.
        flying: Whether the sender counts it, or its retransmission, as in flight.
        here: Whether the sender knows that it has arrived.
        there: Whether it has arrived.
        lost: Whether the sender counts it as lost.
        gone: How often the network lost it, which the sender does not know.
        stamp: State of the delivery-rate sampler when it was sent.
        told: Acknowledgement of the other direction that it carries.

    Attributes without a default are set when it is first sent.
    """

    __slots__ = (
        "ends",
        "first_s",
        "flying",
        "frame_bytes",
        "gone",
        "here",
        "left",
        "lost",
        "number",
        "sent_s",
        "short",
        "size_bytes",
        "stamp",
        "there",
        "times",
        "told",
    )
    frame_bytes: int
    short: bool
    stamp: Stamp | None
    first_s: float
    sent_s: float
    times: int
    flying: bool
    here: bool
    lost: bool

    def __init__(self, number: int, size_bytes: int) -> None:
        self.number, self.size_bytes = number, size_bytes
        self.ends: Sequence[Callable[[], None]] = ()
        self.left: Sequence[Callable[[], None]] = ()
        self.there = False
        self.gone = 0
        self.told: Acknowledgement | None = None

    def cut(self, size_bytes: int) -> Packet:
        """Split off all but the first `size_bytes`, with the messages that end there."""
        rest = Packet(self.number + size_bytes, self.size_bytes - size_bytes)
        self.size_bytes = size_bytes
        rest.ends, rest.left, self.ends, self.left = self.ends, self.left, (), ()
        return rest


class Scoreboard:
    """The packets of one connection that are not cumulatively acknowledged.

    least_s: minimum round trip, initially of the empty path. out: packets in order, by number. lost: heap of packets to
    retransmit; may contain some that no longer need it.
    """

    def __init__(self, least_s: float) -> None:
        self.out: dict[int, Packet] = {}
        self.unacknowledged = self.next = 0  # byte numbers
        self.passed = 0  # acknowledged packets
        self.flying = self.here = 0
        self.least_s = least_s
        # packets that have not arrived, in the order in which they were last sent
        self._by_time: dict[int, Packet] = {}
        self.lost: list[int] = []
        # of delivered packets the one sent last: when, its number, and its round trip
        self._newest_sent_s, self._newest = -math.inf, -1
        self._newest_s = 0.0

    def add(self, packet: Packet, now_s: float) -> None:
        """Record a new packet."""
        number = packet.number
        self.out[number] = self._by_time[number] = packet
        self.next = number + packet.size_bytes
        packet.first_s = packet.sent_s = now_s
        packet.times = 1
        packet.flying, packet.here, packet.lost = True, False, False
        self.flying += 1

    def fly(self, packet: Packet, now_s: float) -> None:
        """Record a retransmission."""
        packet.times += 1
        packet.sent_s = now_s
        packet.lost = False
        if not packet.flying:
            packet.flying = True
            self.flying += 1
        self._by_time.pop(packet.number, None)
        self._by_time[packet.number] = packet

    def cut(self, packet: Packet, size_bytes: int) -> None:
        """Split a packet whose retransmission no longer fits into one; the rest has the same state."""
        rest = packet.cut(size_bytes)
        rest.sent_s, rest.times, rest.stamp, rest.short = packet.sent_s, packet.times, packet.stamp, True
        rest.first_s, rest.gone = packet.first_s, packet.gone
        rest.flying, rest.here, rest.lost = packet.flying, False, packet.lost
        self.out[rest.number] = rest
        self.flying += rest.flying
        if rest.lost:
            heapq.heappush(self.lost, rest.number)
        else:
            self._by_time[rest.number] = rest

    def all_of(self, told: Acknowledgement) -> Sequence[int]:
        """Return the newly arrived packets, including cumulatively acknowledged ones whose report was lost."""
        if len(told.news) >= told.passed - self.passed:
            return told.news
        found, number = list(told.news), self.unacknowledged
        while number < told.next:
            found.append(number)
            number += self.out[number].size_bytes
        return found

    def arrive(
        self, numbers: Sequence[int], now_s: float, came: Callable[[float, int, Stamp], None]
    ) -> tuple[int, float, float]:
        """Mark packets as delivered.

        came: see `Control.came`.

        Returns:
            How many are newly delivered, and when the first and the last of those sent just once were sent.
        """
        out = self.out
        packets, first_s, last_s = 0, math.inf, -math.inf
        for number in numbers:
            packet = out.get(number)
            if packet is None or packet.here:
                continue
            packets += 1
            sent_s = packet.sent_s
            if packet.stamp is not None:
                came(sent_s, number, packet.stamp)
            packet.here, packet.lost = True, False
            self._ground(packet)
            if packet.times == 1:
                first_s = sent_s if sent_s < first_s else first_s
                last_s = sent_s if sent_s > last_s else last_s
            elif now_s - sent_s < self.least_s:
                continue  # it may be the original packet
            self._newest_s = now_s - sent_s
            newest_s = self._newest_sent_s
            if sent_s > newest_s or (sent_s == newest_s and number > self._newest):
                self._newest_sent_s, self._newest = sent_s, number
        self.here += packets
        return packets, first_s, last_s

    def acknowledge(self) -> int:
        """Remove the first packet and return its size."""
        packet = self.out.pop(self.unacknowledged)
        if packet.here:
            self.here -= 1
        else:  # not reported before
            self._ground(packet)
        self.passed += 1
        self.unacknowledged += packet.size_bytes
        return packet.size_bytes

    def next_lost(self) -> Packet | None:
        """Return the next packet to retransmit."""
        while self.lost:
            packet = self.out.get(self.lost[0])
            if packet is not None and packet.lost:
                return packet
            heapq.heappop(self.lost)
        return None

    def find_lost(self, now_s: float, reordering_s: float) -> tuple[int, float]:
        """Mark packets as lost if later ones have arrived (RACK).

        reordering_s: reordering window beyond a round trip.

        Returns:
            How many are newly lost, and how many seconds until others may be.
        """
        found, later_s = [], 0.0
        newest_sent_s, newest = self._newest_sent_s, self._newest
        for packet in self._by_time.values():
            if packet.sent_s > newest_sent_s or (packet.sent_s == newest_sent_s and packet.number > newest):
                break
            rest_s = packet.sent_s + self._newest_s + reordering_s - now_s
            if rest_s <= NOW_S:
                found.append(packet)
            else:
                later_s = max(later_s, rest_s)
        for packet in found:
            self._lose(packet)
        return len(found), later_s

    def _lose(self, packet: Packet) -> None:
        packet.lost = True
        self._ground(packet)
        heapq.heappush(self.lost, packet.number)

    def _ground(self, packet: Packet) -> None:
        """Take a packet out of flight and out of loss detection."""
        self._by_time.pop(packet.number, None)
        if packet.flying:
            packet.flying = False
            self.flying -= 1

    def time_out(self, now_s: float) -> None:
        """Mark the first packet, and all that were sent a round trip ago, as lost."""
        for packet in self.out.values():
            old = packet.sent_s + self._newest_s <= now_s
            if not packet.here and not packet.lost and (old or packet.number == self.unacknowledged):
                self._lose(packet)

    def undo(self) -> None:
        """Mark all lost packets as in flight again."""
        for packet in self.out.values():
            if packet.lost:
                packet.lost, packet.flying = False, True
                self.flying += 1
                self._by_time[packet.number] = packet
        self._by_time = dict(sorted(self._by_time.items(), key=lambda item: item[1].sent_s))

    def shift(self, seconds: float) -> None:
        """Move recorded times `seconds` back."""
        self._newest_sent_s -= seconds


Action = Callable[[], None]


class UnsentData:
    """Data to send, as packets that are full except for the last one. full_bytes: size of a full packet."""

    def __init__(self, full_bytes: int) -> None:
        self._full_bytes, self._given_bytes = full_bytes, 0
        self._packets: deque[Packet] = deque()

    def __len__(self) -> int:
        return len(self._packets)

    @property
    def is_part(self) -> bool:
        """Whether there is less than one packet."""
        return len(self._packets) == 1 and self._packets[0].size_bytes < self._full_bytes

    def give(self, size_bytes: int, left: Action, come: Action) -> None:
        """Append a message, filling the last packet first; left, come: its callbacks when sent and when arrived."""
        packets, full_bytes, rest = self._packets, self._full_bytes, size_bytes
        packet = packets[-1] if packets else None
        if packet is not None:
            some = min(rest, full_bytes - packet.size_bytes)
            packet.size_bytes += some
            rest -= some
        while rest:
            packet = Packet(self._given_bytes + size_bytes - rest, full_bytes if rest > full_bytes else rest)
            packets.append(packet)
            rest -= packet.size_bytes
        assert packet is not None
        packet.ends = (*packet.ends, come)
        packet.left = (*packet.left, left)
        self._given_bytes += size_bytes

    def take(self, most_bytes: int) -> Packet:
        """Return the next packet, filled to what fits now (`tcp_grow_skb`)."""
        packets = self._packets
        packet = packets.popleft()
        if packet.size_bytes > most_bytes:
            packets.appendleft(packet.cut(most_bytes))
        while packet.size_bytes < most_bytes and packets:
            behind, room_bytes = packets.popleft(), most_bytes - packet.size_bytes
            if behind.size_bytes > room_bytes:
                packets.appendleft(behind.cut(room_bytes))
            packet.size_bytes += behind.size_bytes
            packet.ends, packet.left = (*packet.ends, *behind.ends), (*packet.left, *behind.left)
        return packet

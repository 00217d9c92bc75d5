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

    `next` is the first byte that has not arrived, and `passed` the number of packets before it. `arrived` has the
    packets that arrived since the last acknowledgement. `duplicate` is true if a packet arrived twice.
    """

    __slots__ = ("arrived", "duplicate", "frame_bytes", "next", "passed")

    def __init__(
        self, next_byte: int, passed: int, arrived: Sequence[int], duplicate: bool, frame_bytes: int
    ) -> None:
        self.next, self.passed, self.arrived = next_byte, passed, arrived
        self.duplicate, self.frame_bytes = duplicate, frame_bytes


class Packet:
    """A data packet.

    Attributes:
        number: Number of its first byte.
        on_arrivals: Callbacks of messages that end in it.
        on_sent: Callbacks for when it is first sent.
        frame_bytes: Size on the wire.
        short: Whether it is smaller than a full packet.
        first_s: When it was first sent.
        sent_s: When it was last sent.
        times: Number of times that it was sent.
        in_flight: Whether the sender counts it, or its retransmission, as in flight.
        acked: Whether the sender knows that it has arrived.
        has_arrived: Whether it has arrived.
        lost: Whether the sender counts it as lost.
        times_lost: Number of times that the network lost it, which the sender does not know.
        stamp: State of the delivery-rate sampler when it was sent.
        carried_ack: Acknowledgement for the other direction that it carries.

    Attributes without a default are set when it is first sent.
    """

    __slots__ = (
        "acked",
        "carried_ack",
        "first_s",
        "frame_bytes",
        "has_arrived",
        "in_flight",
        "lost",
        "number",
        "on_arrivals",
        "on_sent",
        "sent_s",
        "short",
        "size_bytes",
        "stamp",
        "times",
        "times_lost",
    )
    frame_bytes: int
    short: bool
    stamp: Stamp | None
    first_s: float
    sent_s: float
    times: int
    in_flight: bool
    acked: bool
    lost: bool

    def __init__(self, number: int, size_bytes: int) -> None:
        self.number, self.size_bytes = number, size_bytes
        self.on_arrivals: Sequence[Callable[[], None]] = ()
        self.on_sent: Sequence[Callable[[], None]] = ()
        self.has_arrived = False
        self.times_lost = 0
        self.carried_ack: Acknowledgement | None = None

    def cut(self, size_bytes: int) -> Packet:
        """Split off everything after the first `size_bytes`, with the messages that end there."""
        remaining = Packet(self.number + size_bytes, self.size_bytes - size_bytes)
        self.size_bytes = size_bytes
        remaining.on_arrivals, remaining.on_sent = self.on_arrivals, self.on_sent
        self.on_arrivals, self.on_sent = (), ()
        return remaining


class Scoreboard:
    """The packets of one connection that are not cumulatively acknowledged.

    `least_s` is the minimum round-trip time, initially that of the empty path. `out` has the packets in order, by
    number. `lost` is a heap of packets to retransmit; it may contain some that no longer need it.
    """

    def __init__(self, least_s: float) -> None:
        self.out: dict[int, Packet] = {}
        self.unacknowledged = self.next = 0  # byte numbers
        self.passed = 0  # number of acknowledged packets
        self.in_flight = self.acked = 0
        self.least_s = least_s
        # packets that have not arrived, in the order in which they were last sent
        self._by_time: dict[int, Packet] = {}
        self.lost: list[int] = []
        # the delivered packet that was sent last: its send time, number and round-trip time
        self._newest_sent_s, self._newest = -math.inf, -1
        self._newest_rtt_s = 0.0

    def add(self, packet: Packet, now_s: float) -> None:
        """Record a new packet."""
        number = packet.number
        self.out[number] = self._by_time[number] = packet
        self.next = number + packet.size_bytes
        packet.first_s = packet.sent_s = now_s
        packet.times = 1
        packet.in_flight, packet.acked, packet.lost = True, False, False
        self.in_flight += 1

    def retransmit(self, packet: Packet, now_s: float) -> None:
        """Record a retransmission."""
        packet.times += 1
        packet.sent_s = now_s
        packet.lost = False
        if not packet.in_flight:
            packet.in_flight = True
            self.in_flight += 1
        self._by_time.pop(packet.number, None)
        self._by_time[packet.number] = packet

    def cut(self, packet: Packet, size_bytes: int) -> None:
        """Split a packet whose retransmission no longer fits into one packet; both parts have the same state."""
        remaining = packet.cut(size_bytes)
        remaining.sent_s, remaining.times, remaining.stamp = packet.sent_s, packet.times, packet.stamp
        remaining.short = True
        remaining.first_s, remaining.times_lost = packet.first_s, packet.times_lost
        remaining.in_flight, remaining.acked, remaining.lost = packet.in_flight, False, packet.lost
        self.out[remaining.number] = remaining
        self.in_flight += remaining.in_flight
        if remaining.lost:
            heapq.heappush(self.lost, remaining.number)
        else:
            self._by_time[remaining.number] = remaining

    def newly_arrived(self, ack: Acknowledgement) -> Sequence[int]:
        """Return the newly arrived packets, including cumulatively acknowledged ones whose report was lost."""
        if len(ack.arrived) >= ack.passed - self.passed:
            return ack.arrived
        found, number = list(ack.arrived), self.unacknowledged
        while number < ack.next:
            found.append(number)
            number += self.out[number].size_bytes
        return found

    def deliver(
        self, numbers: Sequence[int], now_s: float, on_delivered: Callable[[float, int, Stamp], None]
    ) -> tuple[int, float, float]:
        """Mark packets as delivered.

        `on_delivered` is called for each delivered packet, see `Control.on_delivered`.

        Returns:
            The number of newly delivered packets, and the send times of the first and the last that were sent only
            once.
        """
        out = self.out
        packets, first_s, last_s = 0, math.inf, -math.inf
        for number in numbers:
            packet = out.get(number)
            if packet is None or packet.acked:
                continue
            packets += 1
            sent_s = packet.sent_s
            if packet.stamp is not None:
                on_delivered(sent_s, number, packet.stamp)
            packet.acked, packet.lost = True, False
            self._take_out_of_flight(packet)
            if packet.times == 1:
                first_s = sent_s if sent_s < first_s else first_s
                last_s = sent_s if sent_s > last_s else last_s
            elif now_s - sent_s < self.least_s:
                continue  # it may be the original packet
            self._newest_rtt_s = now_s - sent_s
            newest_s = self._newest_sent_s
            if sent_s > newest_s or (sent_s == newest_s and number > self._newest):
                self._newest_sent_s, self._newest = sent_s, number
        self.acked += packets
        return packets, first_s, last_s

    def acknowledge(self) -> int:
        """Remove the first packet and return its size."""
        packet = self.out.pop(self.unacknowledged)
        if packet.acked:
            self.acked -= 1
        else:  # not reported before
            self._take_out_of_flight(packet)
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

        `reordering_s` is the reordering window in addition to a round trip.

        Returns:
            The number of newly lost packets, and the seconds until others may be lost.
        """
        found, later_s = [], 0.0
        newest_sent_s, newest = self._newest_sent_s, self._newest
        for packet in self._by_time.values():
            if packet.sent_s > newest_sent_s or (packet.sent_s == newest_sent_s and packet.number > newest):
                break
            rest_s = packet.sent_s + self._newest_rtt_s + reordering_s - now_s
            if rest_s <= NOW_S:
                found.append(packet)
            else:
                later_s = max(later_s, rest_s)
        for packet in found:
            self._lose(packet)
        return len(found), later_s

    def _lose(self, packet: Packet) -> None:
        packet.lost = True
        self._take_out_of_flight(packet)
        heapq.heappush(self.lost, packet.number)

    def _take_out_of_flight(self, packet: Packet) -> None:
        """Take a packet out of flight and out of loss detection."""
        self._by_time.pop(packet.number, None)
        if packet.in_flight:
            packet.in_flight = False
            self.in_flight -= 1

    def time_out(self, now_s: float) -> None:
        """Mark the first packet, and all packets that were sent at least a round trip ago, as lost."""
        for packet in self.out.values():
            old = packet.sent_s + self._newest_rtt_s <= now_s
            if not packet.acked and not packet.lost and (old or packet.number == self.unacknowledged):
                self._lose(packet)

    def undo(self) -> None:
        """Mark all lost packets as in flight again."""
        for packet in self.out.values():
            if packet.lost:
                packet.lost, packet.in_flight = False, True
                self.in_flight += 1
                self._by_time[packet.number] = packet
        self._by_time = dict(sorted(self._by_time.items(), key=lambda item: item[1].sent_s))

    def shift(self, seconds: float) -> None:
        """Move recorded times back by `seconds`."""
        self._newest_sent_s -= seconds


Action = Callable[[], None]


class UnsentData:
    """Data to send, as packets of `full_bytes` except for the last one."""

    def __init__(self, full_bytes: int) -> None:
        self._full_bytes, self._given_bytes = full_bytes, 0
        self._packets: deque[Packet] = deque()

    def __len__(self) -> int:
        return len(self._packets)

    @property
    def is_less_than_packet(self) -> bool:
        """Whether there is less data than one packet."""
        return len(self._packets) == 1 and self._packets[0].size_bytes < self._full_bytes

    def append(self, size_bytes: int, on_sent: Action, on_arrival: Action) -> None:
        """Append a message, filling the last packet first; `on_sent` and `on_arrival` are its callbacks."""
        packets, full_bytes, remaining = self._packets, self._full_bytes, size_bytes
        packet = packets[-1] if packets else None
        if packet is not None:
            filled = min(remaining, full_bytes - packet.size_bytes)
            packet.size_bytes += filled
            remaining -= filled
        while remaining:
            number = self._given_bytes + size_bytes - remaining
            packet = Packet(number, min(full_bytes, remaining))
            packets.append(packet)
            remaining -= packet.size_bytes
        assert packet is not None
        packet.on_arrivals = (*packet.on_arrivals, on_arrival)
        packet.on_sent = (*packet.on_sent, on_sent)
        self._given_bytes += size_bytes

    def take(self, most_bytes: int) -> Packet:
        """Return the next packet, filled to the size that fits now (`tcp_grow_skb`)."""
        packets = self._packets
        packet = packets.popleft()
        if packet.size_bytes > most_bytes:
            packets.appendleft(packet.cut(most_bytes))
        while packet.size_bytes < most_bytes and packets:
            behind, room_bytes = packets.popleft(), most_bytes - packet.size_bytes
            if behind.size_bytes > room_bytes:
                packets.appendleft(behind.cut(room_bytes))
            packet.size_bytes += behind.size_bytes
            packet.on_arrivals = (*packet.on_arrivals, *behind.on_arrivals)
            packet.on_sent = (*packet.on_sent, *behind.on_sent)
        return packet

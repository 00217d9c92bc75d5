"""What a sender knows of its packets: which are out, there, lost (RFC 8985: RACK)."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence

from testbed.prediction.packets.congestion_control import Stamp

NOW_S = 1e-9


class Acknowledgement:
    """next: the first byte that is not there. passed: packets before it.

    news: those that came since the last acknowledgement. doubled: one came twice.
    """

    __slots__ = ("doubled", "frame_bytes", "news", "next", "passed")

    def __init__(
        self, next_byte: int, passed: int, news: Sequence[int], doubled: bool, frame_bytes: int
    ) -> None:
        self.next, self.passed, self.news = next_byte, passed, news
        self.doubled, self.frame_bytes = doubled, frame_bytes


class Packet:
    """number: of its first byte. flying: it, or what was sent again in its place, is taken to be on its way.

    here: at the receiver, as is known; there: at the receiver. ends, left: whom to tell that messages, which end in it,
    are there, and that it was sent. times: that it was. frame_bytes: on the wire; short: whether it is less than a full
    one. told: of the other direction. first_s: when it was sent first; gone: how often it got lost on its way, which
    its sender does not know. All but those of what it is sent with are known when it is sent.
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
        """All but so many bytes of it: another one, with the messages that end there."""
        rest = Packet(self.number + size_bytes, self.size_bytes - size_bytes)
        self.size_bytes = size_bytes
        rest.ends, rest.left, self.ends, self.left = self.ends, self.left, (), ()
        return rest


class Scoreboard:
    """Of one connection, whose round trip takes `least_s` when its path is empty.

    out: packets that were sent and are not acknowledged with all before them, in order. lost: numbers of those that
    are to be sent again, and of some that are not any more.
    """

    def __init__(self, least_s: float) -> None:
        self.out: dict[int, Packet] = {}
        self.unacknowledged = self.next = 0  # bytes
        self.passed = 0  # packets that are acknowledged
        self.flying = self.here = 0
        self.least_s = least_s
        # of those out, what is not there, in the order it was sent last
        self._by_time: dict[int, Packet] = {}
        self.lost: list[int] = []
        # of what is there, the one sent last: when, its number, and how long it took
        self._newest_sent_s, self._newest = -math.inf, -1
        self._newest_s = 0.0

    def add(self, packet: Packet, now_s: float) -> None:
        """One more is sent."""
        number = packet.number
        self.out[number] = self._by_time[number] = packet
        self.next = number + packet.size_bytes
        packet.first_s = packet.sent_s = now_s
        packet.times = 1
        packet.flying, packet.here, packet.lost = True, False, False
        self.flying += 1

    def fly(self, packet: Packet, now_s: float) -> None:
        """It is sent again."""
        packet.times += 1
        packet.sent_s = now_s
        packet.lost = False
        if not packet.flying:
            packet.flying = True
            self.flying += 1
        self._by_time.pop(packet.number, None)
        self._by_time[packet.number] = packet

    def cut(self, packet: Packet, size_bytes: int) -> None:
        """What is sent again does not go into one packet any more: the rest is another one, in the same state."""
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
        """Packets that it tells of, with those before its next byte that others told of, and which was lost."""
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
        """Those are there, as is known now: how many are news; when the first and the last was sent, if once.

        came: told of each, as `Control` has it.
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
                continue  # it may have been the one before
            self._newest_s = now_s - sent_s
            newest_s = self._newest_sent_s
            if sent_s > newest_s or (sent_s == newest_s and number > self._newest):
                self._newest_sent_s, self._newest = sent_s, number
        self.here += packets
        return packets, first_s, last_s

    def acknowledge(self) -> int:
        """The first one, with all before it; its bytes."""
        packet = self.out.pop(self.unacknowledged)
        if packet.here:
            self.here -= 1
        else:  # nobody told of it
            self._ground(packet)
        self.passed += 1
        self.unacknowledged += packet.size_bytes
        return packet.size_bytes

    def next_lost(self) -> Packet | None:
        """That is to be sent again."""
        while self.lost:
            packet = self.out.get(self.lost[0])
            if packet is not None and packet.lost:
                return packet
            heapq.heappop(self.lost)
        return None

    def find_lost(self, now_s: float, reordering_s: float) -> tuple[int, float]:
        """How many are lost, as later ones are there; how long others are waited for, seconds.

        reordering_s: for so long beyond a round trip.
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
        """It is not on its way any more, nor waited for."""
        self._by_time.pop(packet.number, None)
        if packet.flying:
            packet.flying = False
            self.flying -= 1

    def time_out(self, now_s: float) -> None:
        """All that was sent a round trip ago is lost, and the first in any case."""
        for packet in self.out.values():
            old = packet.sent_s + self._newest_s <= now_s
            if not packet.here and not packet.lost and (old or packet.number == self.unacknowledged):
                self._lose(packet)

    def undo(self) -> None:
        """Nothing is lost: all that was taken for it is still on its way."""
        for packet in self.out.values():
            if packet.lost:
                packet.lost, packet.flying = False, True
                self.flying += 1
                self._by_time[packet.number] = packet
        self._by_time = dict(sorted(self._by_time.items(), key=lambda item: item[1].sent_s))

    def shift(self, seconds: float) -> None:
        """Tell the time from so much later on."""
        self._newest_sent_s -= seconds


Action = Callable[[], None]


class UnsentData:
    """In order, as packets that are full but for the last one. full_bytes: of a full one."""

    def __init__(self, full_bytes: int) -> None:
        self._full_bytes, self._given_bytes = full_bytes, 0
        self._packets: deque[Packet] = deque()

    def __len__(self) -> int:
        return len(self._packets)

    @property
    def is_part(self) -> bool:
        """Whether it is less than a packet."""
        return len(self._packets) == 1 and self._packets[0].size_bytes < self._full_bytes

    def give(self, size_bytes: int, left: Action, come: Action) -> None:
        """A message: its first bytes fill the last packet. left, come: called when it was sent, when it is there."""
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
        """The next packet, of as much as goes into it now (`tcp_grow_skb`)."""
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

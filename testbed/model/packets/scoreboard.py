"""What a sender knows of its packets: which are out, there, lost (RFC 8985: RACK)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence

from testbed.model.packets.rates import Stamp

NOW_S = 1e-9


class Packet:
    """flying: it, or what was sent again in its place, is taken to be on its way. here: at the receiver.

    ends, left: whom to tell that messages, which end in it, are there, and that it was sent. times: that it was.
    """

    __slots__ = ("ends", "flying", "here", "left", "lost", "number", "sent_s", "size_bytes", "stamp", "times")

    def __init__(self, number: int) -> None:
        self.number, self.size_bytes = number, 0
        self.ends: Sequence[Callable[[], None]] = ()
        self.left: Sequence[Callable[[], None]] = ()
        self.sent_s = 0.0
        self.stamp: Stamp | None = None
        self.times = 0
        self.flying = self.here = self.lost = False


class Scoreboard:
    """Of one connection, whose round trip takes `least_s` when its path is empty.

    out: packets that were sent and are not acknowledged with all before them, in order.
    """

    def __init__(self, least_s: float) -> None:
        self.out: dict[int, Packet] = {}
        self.unacknowledged = self.next = 0  # packets, by number
        self.flying = self.here = 0
        self.least_s = least_s
        self._by_time: dict[
            int, Packet
        ] = {}  # of those out, what is not there, in the order it was sent last
        self._lost: list[int] = []  # that are to be sent again
        self._newest = (-math.inf, -1)  # that is there: when it was sent, its number
        self._newest_s = 0.0  # and how long it took

    def add(self, packet: Packet) -> None:
        """One more is sent."""
        self.out[packet.number] = packet
        self.next = packet.number + 1

    def fly(self, packet: Packet, now_s: float) -> None:
        """It is sent, or sent again."""
        packet.times += 1
        packet.sent_s = now_s
        packet.lost = False
        if not packet.flying:
            packet.flying = True
            self.flying += 1
        self._by_time.pop(packet.number, None)
        self._by_time[packet.number] = packet

    def _land(self, packet: Packet) -> None:
        self._by_time.pop(packet.number, None)
        if packet.flying:
            packet.flying = False
            self.flying -= 1

    def arrive(self, packet: Packet, now_s: float) -> None:
        """It is there, as is known now."""
        packet.here, packet.lost = True, False
        self.here += 1
        self._land(packet)
        took_s = now_s - packet.sent_s
        if packet.times > 1 and took_s < self.least_s:
            return  # it may have been the one before
        self._newest_s = took_s
        self._newest = max(self._newest, (packet.sent_s, packet.number))

    def acknowledge(self) -> Packet:
        """The first one, with all before it."""
        packet = self.out.pop(self.unacknowledged)
        self.here -= packet.here
        self.unacknowledged += 1
        return packet

    def next_lost(self) -> Packet | None:
        """That is to be sent again."""
        while self._lost:
            packet = self.out.get(self._lost[0])
            if packet is not None and packet.lost:
                return packet
            heapq.heappop(self._lost)
        return None

    def find_lost(self, now_s: float, reordering_s: float) -> tuple[int, float]:
        """How many are lost, as later ones are there; how long others are waited for, seconds.

        reordering_s: for so long beyond a round trip.
        """
        found, later_s = [], 0.0
        for packet in self._by_time.values():
            if (packet.sent_s, packet.number) > self._newest:
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
        self._land(packet)
        heapq.heappush(self._lost, packet.number)

    def time_out(self, now_s: float) -> None:
        """All that was sent a round trip ago is lost, and the first in any case."""
        for packet in list(self._missing()):
            old = packet.sent_s + self._newest_s <= now_s
            if not packet.lost and (old or packet.number == self.unacknowledged):
                self._lose(packet)

    def _missing(self) -> Iterator[Packet]:
        return (packet for packet in self.out.values() if not packet.here)

    def shift(self, seconds: float) -> None:
        """Tell the time from so much later on."""
        self._newest = self._newest[0] - seconds, self._newest[1]

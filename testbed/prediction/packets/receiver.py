"""The end of a connection that packets come to: puts them in order, and acknowledges them as Linux does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from testbed.clock import KERNEL_TICK_S
from testbed.net.paths.losses import DELAYED_ACK_S, DUP_THRESHOLD, MIN_RTO_S
from testbed.prediction.events import EventQueue
from testbed.prediction.packets.links import Entrance, FramePath
from testbed.prediction.packets.send_queue import Acknowledgement, Packet
from testbed.prediction.packets.timers import timer_s

ACKNOWLEDGEMENT_BYTES = 66  # Ethernet, IP, TCP with timestamps
SELECTIVE_BYTES = 12  # more, of one that tells what is there behind a gap
# out of order acknowledgements of one gap wait, but for the first ones: a third of a round trip, 1 ms, 44 packets
COMPRESSED_SHARE, COMPRESSED_S, COMPRESSED = 1 / 3, 1e-3, 44


class PeerSender(Protocol):
    """Who sends in the other direction."""

    def hear(self, told: Acknowledgement, *, goes_on: bool = True) -> None:
        """An acknowledgement. goes_on: sends what may be sent now."""

    def push(self) -> None:
        """Send what may be sent."""


class Receiver:
    """heard: called with each acknowledgement that comes back. The rest as `DelayedAck` has it."""

    def __init__(
        self,
        agenda: EventQueue,
        back: Sequence[Entrance],
        heard: Callable[[Acknowledgement], None],
        round_trip_s: float,
        window_bytes: float = math.inf,
        answers: bool = False,
    ) -> None:
        self.agenda = agenda
        self._delaying = DelayedAck(round_trip_s, window_bytes, answers)
        self._back = FramePath(agenda, back, heard, self.repeat)
        self.other: PeerSender | None = None  # who sends in the other direction, from here
        self.next = 0
        # packets behind a gap; blocks that they are, and where each of them ends
        self._early: dict[int, Packet] = {}
        self.blocks, self._ends = 0, set[int]()
        self.news: list[int] = []  # packets that nobody was told of yet
        self._acknowledged = self._passed = self._largest = 0  # until which byte; packets; bytes
        self._late_s = 0.0  # when what waits is acknowledged; 0: nothing does
        # one alarm at a time is set; behind it the last one in its turn: those between would go off for nothing
        self._alarmed, self._last_s, self._last_turn, self._jiffy = False, 0.0, 0, -1
        self._compressed_s = min(COMPRESSED_S, COMPRESSED_SHARE * round_trip_s)
        self._gap, self._duplicates, self._compressed = -1, 0, 0
        self._together_s = 0.0  # when what is compressed is acknowledged; 0: nothing is

    def take(self, packet: Packet) -> None:
        """A packet; whoever waits for a message that ends in it, or behind a gap that it fills, is told."""
        if packet.told is not None:
            self._take_with_word(packet, packet.told)
            return
        if packet.there:
            self._delaying.double()
            self._acknowledge(doubled=True)
            return
        self._largest = max(self._largest, packet.size_bytes)
        self._delaying.come(self.agenda.now_s, packet.size_bytes, self._largest)
        number, early = packet.number, self._early
        packet.there = True
        self.news.append(number)
        end = number + packet.size_bytes
        if number != self.next:
            self.blocks += 1 - (number in self._ends) - (end in early)
            self._ends.add(end)
            early[number] = packet
            self._acknowledge_gap()
            return
        self.next = end
        self._passed += 1
        comes = packet.ends
        delaying = self._delaying
        if (
            early
            or end - self._acknowledged > self._largest
            or delaying.at_once
            or (packet.short and not delaying.answers)
        ):
            if end in early:
                self.blocks -= 1
            while self.next in early:
                packet = early.pop(self.next)
                comes = (*comes, *packet.ends)
                self.next += packet.size_bytes
                self._passed += 1
                self._ends.remove(self.next)
            if self.other is not None:
                self.other.push()
            if self.news:
                self._acknowledge()
        elif not self._late_s:
            self._set_alarm()
        for come in comes:
            come()

    def _take_with_word(self, packet: Packet, told: Acknowledgement) -> None:
        """Of the other direction: who sends there hears that first, and goes on when the packet has been taken."""
        assert self.other is not None
        packet.told = None
        self.other.hear(told, goes_on=False)
        self.take(packet)
        self.other.push()

    def _acknowledge_gap(self) -> None:
        """Of those behind one gap the first ones at once, others together (`__tcp_ack_snd_check`)."""
        if self._gap != self.next:
            self._gap, self._duplicates = self.next, 0
        if self._compressed >= COMPRESSED or self._duplicates < DUP_THRESHOLD:
            self._duplicates += 1
            self._acknowledge()
            return
        self._compressed += 1
        if not self._together_s:
            self._together_s = self.agenda.now_s + self._compressed_s
            self.agenda.at(self._together_s, self._together)

    def _together(self) -> None:
        if self._together_s and self.agenda.now_s >= self._together_s:
            self._acknowledge()

    def _set_alarm(self) -> None:
        agenda = self.agenda
        jiffy = int(agenda.now_s / KERNEL_TICK_S)
        if jiffy != self._jiffy:  # else it goes off with the last one
            self._jiffy = jiffy
            self._last_s, self._last_turn = timer_s(agenda.now_s, DELAYED_ACK_S), next(agenda.number)
            if not self._alarmed:
                self._alarmed = True
                agenda.at(self._last_s, self._late, self._last_turn)
        self._late_s = self._last_s

    def _late(self) -> None:
        agenda = self.agenda
        if self._late_s and agenda.now_s >= self._late_s:
            self._late_s = 0.0
            self._delaying.run_out()
            self._acknowledge()
        self._alarmed = self._last_s > agenda.now_s
        if self._alarmed:
            agenda.at(self._last_s, self._late, self._last_turn)

    def go_on(self, agenda: EventQueue, seconds: float) -> None:
        """By another's time, which is so much less; nothing waits."""
        self.agenda = agenda
        self._delaying.shift(seconds)
        self._back.go_on(agenda)
        self._alarmed, self._last_s, self._jiffy = False, 0.0, -1

    def tell(self, before: Acknowledgement | None) -> Acknowledgement | None:
        """News, with a packet of the other direction. before: what it told when it was sent last, and has not yet."""
        self._delaying.send(self.agenda.now_s)
        if not self.news:
            return before
        told = self._told(doubled=False)
        if before is not None:
            told.news = [*before.news, *told.news]
        return told

    def _acknowledge(self, *, doubled: bool = False) -> None:
        self._back.enter(self._told(doubled=doubled))

    def _told(self, *, doubled: bool) -> Acknowledgement:
        news, self.news = self.news, []
        self._late_s = 0.0
        self._compressed, self._together_s = 0, 0.0
        self._acknowledged = self.next
        self._delaying.acknowledge()
        size_bytes = ACKNOWLEDGEMENT_BYTES + SELECTIVE_BYTES if self._early else ACKNOWLEDGEMENT_BYTES
        return Acknowledgement(self.next, self._passed, news, doubled, size_bytes)

    def repeat(self, lost: Acknowledgement) -> None:
        """The next one says it, too."""
        self.news = [*lost.news, *self.news]


QUICK = 16  # acknowledgements, `TCP_MAX_QUICKACKS`
FIRST_WINDOW_BYTES = 65_535
# packets of so many bytes and more; by so many full packets for each (`tcp_grow_window`)
GROWS_BYTES, GROWS_BY = 128, 2


class DelayedAck:
    """round_trip_s: of the empty path. window_bytes: of the receiver, when it has grown; infinite: it need not grow.

    answers: it has answered already (`inet_csk_in_pingpong_mode`).
    """

    __slots__ = ("_came_s", "_grows_bytes", "_quick", "_timeout_s", "_wait_s", "answers")

    def __init__(self, round_trip_s: float, window_bytes: float, answers: bool) -> None:
        self.answers = answers
        self._grows_bytes = window_bytes - FIRST_WINDOW_BYTES if window_bytes < math.inf else 0.0
        self._timeout_s = MIN_RTO_S + round_trip_s
        # its peer's hello came when time began; how long after a packet an answer counts as one, `icsk_ack.ato`
        self._came_s, self._wait_s = 0.0, DELAYED_ACK_S
        self._quick = QUICK

    @property
    def at_once(self) -> bool:
        """Whether each packet is."""
        return self._quick > 0 and not self.answers

    def come(self, now_s: float, size_bytes: int, full_bytes: int) -> None:
        """A packet has, of so many bytes; a full one has so many (`tcp_event_data_recv`)."""
        gap_s, self._came_s = now_s - self._came_s, now_s
        if gap_s <= DELAYED_ACK_S / 2:
            self._wait_s = (self._wait_s + DELAYED_ACK_S) / 2
        elif gap_s < self._wait_s:
            self._wait_s = min(self._wait_s / 2 + gap_s, self._timeout_s)
        elif gap_s > self._timeout_s:
            self._quick = QUICK
        if self._grows_bytes > 0 and size_bytes >= GROWS_BYTES:
            self._grows_bytes -= GROWS_BY * full_bytes
            self._quick |= 1

    def send(self, now_s: float) -> None:
        """Data goes the other way (`tcp_event_data_sent`)."""
        if now_s - self._came_s < self._wait_s:
            self.answers = True

    def acknowledge(self) -> None:
        """It does (`tcp_dec_quickack_mode`)."""
        if self._quick:
            self._quick -= 1
            if not self._quick:
                self._wait_s = DELAYED_ACK_S

    def double(self) -> None:
        """What comes is there already (`tcp_enter_quickack_mode`)."""
        self._quick, self.answers, self._wait_s = QUICK, False, DELAYED_ACK_S

    def run_out(self) -> None:
        """It has waited for long enough (`tcp_delack_timer_handler`)."""
        self._wait_s = DELAYED_ACK_S if self.answers else min(2 * self._wait_s, self._timeout_s)
        self.answers = False

    def shift(self, seconds: float) -> None:
        """Tell the time from so much later on."""
        self._came_s -= seconds

"""The receiving side of a TCP connection: reassembly and acknowledgements, as Linux implements them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from testbed.clock import KERNEL_TICK_S
from testbed.net.paths.losses import DELAYED_S, DUPLICATES, TIMEOUT_S
from testbed.prediction.events import EventQueue
from testbed.prediction.packets.links import Entrance, FramePath
from testbed.prediction.packets.send_queue import Acknowledgement, Packet
from testbed.prediction.packets.timers import timer_s

ACKNOWLEDGEMENT_BYTES = 66  # Ethernet, IP, TCP with timestamps
SELECTIVE_BYTES = 12  # additional bytes with SACK blocks
# ACK compression of out-of-order packets: after the first ones of a gap, a third of a round trip, 1 ms or 44 packets
COMPRESSED_SHARE, COMPRESSED_S, COMPRESSED = 1 / 3, 1e-3, 44


class PeerSender(Protocol):
    """The sender of the other direction."""

    def hear(self, told: Acknowledgement, *, goes_on: bool = True) -> None:
        """Process an acknowledgement. goes_on: also send what may be sent now."""

    def push(self) -> None:
        """Send what may be sent."""


class Receiver:
    """The receiving side. heard: called with each acknowledgement at the sender. Other arguments as of `DelayedAck`."""

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
        self.other: PeerSender | None = None  # sends the other direction from this end
        self.next = 0
        # out-of-order packets; number of contiguous blocks, and where each of them ends
        self._early: dict[int, Packet] = {}
        self.blocks, self._ends = 0, set[int]()
        self.news: list[int] = []  # packets that were not reported yet
        # last acknowledged byte; packets; largest packet in bytes
        self._acknowledged = self._passed = self._largest = 0
        self._late_s = 0.0  # when the delayed acknowledgement is due; 0: none
        # at most one alarm is scheduled; when it fires it reschedules for the latest one
        self._alarmed, self._last_s, self._last_turn, self._jiffy = False, 0.0, 0, -1
        self._compressed_s = min(COMPRESSED_S, COMPRESSED_SHARE * round_trip_s)
        self._gap, self._duplicates, self._compressed = -1, 0, 0
        self._together_s = 0.0  # when the compressed acknowledgement is due; 0: none

    def take(self, packet: Packet) -> None:
        """Process a packet; call back messages that end in it or behind a gap that it fills."""
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
        """Process a packet with an acknowledgement: the sender sees that first and continues after the packet."""
        assert self.other is not None
        packet.told = None
        self.other.hear(told, goes_on=False)
        self.take(packet)
        self.other.push()

    def _acknowledge_gap(self) -> None:
        """Acknowledge the first packets after a gap at once, further ones together (`__tcp_ack_snd_check`)."""
        if self._gap != self.next:
            self._gap, self._duplicates = self.next, 0
        if self._compressed >= COMPRESSED or self._duplicates < DUPLICATES:
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
        if jiffy != self._jiffy:  # else it fires with the last one
            self._jiffy = jiffy
            self._last_s, self._last_turn = timer_s(agenda.now_s, DELAYED_S), next(agenda.number)
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
        """Continue on another event queue whose time is `seconds` less; nothing waits."""
        self.agenda = agenda
        self._delaying.shift(seconds)
        self._back.go_on(agenda)
        self._alarmed, self._last_s, self._jiffy = False, 0.0, -1

    def tell(self, before: Acknowledgement | None) -> Acknowledgement | None:
        """Return the acknowledgement that a data packet carries. before: what it carried, if not delivered yet."""
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
        """Report what a lost acknowledgement did, with the next one."""
        self.news = [*lost.news, *self.news]


QUICK = 16  # acknowledgements, `TCP_MAX_QUICKACKS`
FIRST_WINDOW_BYTES = 65_535
# minimum size of packets that grow the window; growth per packet in full packets (`tcp_grow_window`)
GROWS_BYTES, GROWS_BY = 128, 2


class DelayedAck:
    """Decides which packets are acknowledged at once, as Linux does (`tcp_input.c`).

    These are the first packets, packets that still grow the receive window, and packets after a pause longer than a
    timeout. A side that sends replies waits, since its data carries acknowledgements. When no data was sent in time, it
    no longer counts on that.

    Args:
        round_trip_s: Of the empty path.
        window_bytes: Final receive window; infinite if it need not grow.
        answers: Whether this side has already sent a reply (`inet_csk_in_pingpong_mode`).
    """

    __slots__ = ("_came_s", "_grows_bytes", "_quick", "_timeout_s", "_wait_s", "answers")

    def __init__(self, round_trip_s: float, window_bytes: float, answers: bool) -> None:
        self.answers = answers
        self._grows_bytes = window_bytes - FIRST_WINDOW_BYTES if window_bytes < math.inf else 0.0
        self._timeout_s = TIMEOUT_S + round_trip_s
        # the handshake is at time 0; window after a packet in which data counts as a reply, `icsk_ack.ato`
        self._came_s, self._wait_s = 0.0, DELAYED_S
        self._quick = QUICK

    @property
    def at_once(self) -> bool:
        """Whether each packet is acknowledged at once."""
        return self._quick > 0 and not self.answers

    def come(self, now_s: float, size_bytes: int, full_bytes: int) -> None:
        """Record an arrival. size_bytes: of the packet. full_bytes: of a full packet (`tcp_event_data_recv`)."""
        gap_s, self._came_s = now_s - self._came_s, now_s
        if gap_s <= DELAYED_S / 2:
            self._wait_s = (self._wait_s + DELAYED_S) / 2
        elif gap_s < self._wait_s:
            self._wait_s = min(self._wait_s / 2 + gap_s, self._timeout_s)
        elif gap_s > self._timeout_s:
            self._quick = QUICK
        if self._grows_bytes > 0 and size_bytes >= GROWS_BYTES:
            self._grows_bytes -= GROWS_BY * full_bytes
            self._quick |= 1

    def send(self, now_s: float) -> None:
        """Record data sent in the other direction (`tcp_event_data_sent`)."""
        if now_s - self._came_s < self._wait_s:
            self.answers = True

    def acknowledge(self) -> None:
        """Record an acknowledgement (`tcp_dec_quickack_mode`)."""
        if self._quick:
            self._quick -= 1
            if not self._quick:
                self._wait_s = DELAYED_S

    def double(self) -> None:
        """Record a duplicate packet (`tcp_enter_quickack_mode`)."""
        self._quick, self.answers, self._wait_s = QUICK, False, DELAYED_S

    def run_out(self) -> None:
        """Record that the delayed acknowledgement timer has fired (`tcp_delack_timer_handler`)."""
        self._wait_s = DELAYED_S if self.answers else min(2 * self._wait_s, self._timeout_s)
        self.answers = False

    def shift(self, seconds: float) -> None:
        """Move recorded times `seconds` back."""
        self._came_s -= seconds

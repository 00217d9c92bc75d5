"""The receiving side of a TCP connection: reassembly and acknowledgements, as Linux implements them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from testbed.clock import KERNEL_TICK_S
from testbed.net.paths.congestion.linux_tcp import DELAYED_ACK_S, DUP_THRESHOLD, MIN_RTO_S
from testbed.prediction.events import EventQueue
from testbed.prediction.packets.links import Entrance, FramePath
from testbed.prediction.packets.send_queue import Acknowledgement, Packet
from testbed.prediction.packets.timers import timer_s

ACKNOWLEDGEMENT_BYTES = 66  # Ethernet, IP, TCP with timestamps
BLOCKS_BYTES, BLOCK_BYTES, MOST_BLOCKS = 4, 8, 3  # SACK blocks in TCP options
SELECTIVE_BYTES = 12  # additional bytes with SACK blocks
# ACK compression of out-of-order packets: after the first ones of a gap, wait for a third of a round trip, 1 ms or 44
# packets
COMPRESSED_SHARE, COMPRESSED_S, COMPRESSED = 1 / 3, 1e-3, 44


class PeerSender(Protocol):
    """The sender of the other direction."""

    def process_ack(self, ack: Acknowledgement, *, sends: bool = True) -> None:
        """Process an acknowledgement; if `sends`, also send the data that may be sent now."""

    def push(self) -> None:
        """Send the data that may be sent."""


class Receiver:
    """The receiving side; `on_ack` is called with each acknowledgement at the sender; for the rest see `DelayedAck`."""

    def __init__(
        self,
        events: EventQueue,
        back: Sequence[Entrance],
        on_ack: Callable[[Acknowledgement], None],
        round_trip_s: float,
        window_bytes: float = math.inf,
        is_replying: bool = False,
    ) -> None:
        self.events = events
        self._delayed_ack = DelayedAck(round_trip_s, window_bytes, is_replying)
        self._back = FramePath(events, back, on_ack, self.restore)
        self.peer: PeerSender | None = None  # sends the other direction from this end
        self.next = 0
        # out-of-order packets; the number of contiguous blocks, and the end of each
        self._out_of_order: dict[int, Packet] = {}
        self.blocks, self._ends = 0, set[int]()
        self.unreported: list[int] = []  # packets that have not been reported yet
        # last acknowledged byte; packets; largest packet in bytes
        self._acknowledged = self._passed = self._largest = 0
        self._delayed_ack_s = 0.0  # when the delayed acknowledgement is due; 0 for none
        # at most one alarm is scheduled; when it fires it reschedules for the latest one
        self._alarm_is_set, self._last_s, self._last_turn, self._jiffy = False, 0.0, 0, -1
        self._compressed_s = min(COMPRESSED_S, COMPRESSED_SHARE * round_trip_s)
        self._gap, self._duplicates, self._compressed = -1, 0, 0
        self._compressed_ack_s = 0.0  # when the compressed acknowledgement is due; 0 for none

    @property
    def option_bytes(self) -> int:
        """Bytes of TCP options that report gaps, in addition to timestamps."""
        return BLOCKS_BYTES + BLOCK_BYTES * min(self.blocks, MOST_BLOCKS) if self.blocks else 0

    def take(self, packet: Packet) -> None:
        """Process a packet; call back messages that end in it or after a gap that it fills."""
        if packet.carried_ack is not None:
            self._take_with_ack(packet, packet.carried_ack)
            return
        if packet.has_arrived:
            self._delayed_ack.on_duplicate()
            self._acknowledge(duplicate=True)
            return
        self._largest = max(self._largest, packet.size_bytes)
        self._delayed_ack.on_arrival(self.events.now_s, packet.size_bytes, self._largest)
        number, out_of_order = packet.number, self._out_of_order
        packet.has_arrived = True
        self.unreported.append(number)
        end = number + packet.size_bytes
        if number != self.next:
            self.blocks += 1 - (number in self._ends) - (end in out_of_order)
            self._ends.add(end)
            out_of_order[number] = packet
            self._acknowledge_gap()
            return
        self.next = end
        self._passed += 1
        on_arrivals = packet.on_arrivals
        delayed_ack = self._delayed_ack
        if (
            out_of_order
            or end - self._acknowledged > self._largest
            or delayed_ack.acks_at_once
            or (packet.short and not delayed_ack.is_replying)
        ):
            if end in out_of_order:
                self.blocks -= 1
            while self.next in out_of_order:
                packet = out_of_order.pop(self.next)
                on_arrivals = (*on_arrivals, *packet.on_arrivals)
                self.next += packet.size_bytes
                self._passed += 1
                self._ends.remove(self.next)
            if self.peer is not None:
                self.peer.push()
            if self.unreported:
                self._acknowledge()
        elif not self._delayed_ack_s:
            self._set_alarm()
        for on_arrival in on_arrivals:
            on_arrival()

    def _take_with_ack(self, packet: Packet, ack: Acknowledgement) -> None:
        """Process a packet with an acknowledgement; the sender sees that first, and sends only after the packet."""
        assert self.peer is not None
        packet.carried_ack = None
        self.peer.process_ack(ack, sends=False)
        self.take(packet)
        self.peer.push()

    def _acknowledge_gap(self) -> None:
        """Acknowledge the first packets after a gap at once, and later ones together (`__tcp_ack_snd_check`)."""
        if self._gap != self.next:
            self._gap, self._duplicates = self.next, 0
        if self._compressed >= COMPRESSED or self._duplicates < DUP_THRESHOLD:
            self._duplicates += 1
            self._acknowledge()
            return
        self._compressed += 1
        if not self._compressed_ack_s:
            self._compressed_ack_s = self.events.now_s + self._compressed_s
            self.events.call_at(self._compressed_ack_s, self._send_compressed_ack)

    def _send_compressed_ack(self) -> None:
        if self._compressed_ack_s and self.events.now_s >= self._compressed_ack_s:
            self._acknowledge()

    def _set_alarm(self) -> None:
        events = self.events
        jiffy = int(events.now_s / KERNEL_TICK_S)
        if jiffy != self._jiffy:  # otherwise it fires with the last one
            self._jiffy = jiffy
            self._last_s, self._last_turn = timer_s(events.now_s, DELAYED_ACK_S), next(events.number)
            if not self._alarm_is_set:
                self._alarm_is_set = True
                events.call_at(self._last_s, self._send_delayed_ack, self._last_turn)
        self._delayed_ack_s = self._last_s

    def _send_delayed_ack(self) -> None:
        events = self.events
        if self._delayed_ack_s and events.now_s >= self._delayed_ack_s:
            self._delayed_ack_s = 0.0
            self._delayed_ack.on_timer()
            self._acknowledge()
        self._alarm_is_set = self._last_s > events.now_s
        if self._alarm_is_set:
            events.call_at(self._last_s, self._send_delayed_ack, self._last_turn)

    def continue_on(self, events: EventQueue, seconds: float) -> None:
        """Continue on another event queue, whose time is `seconds` less; nothing is waiting."""
        self.events = events
        self._delayed_ack.shift(seconds)
        self._back.continue_on(events)
        self._alarm_is_set, self._last_s, self._jiffy = False, 0.0, -1

    def piggyback_ack(self, before: Acknowledgement | None) -> Acknowledgement | None:
        """Return the acknowledgement that a data packet carries; `before` is its earlier one, if not delivered yet."""
        self._delayed_ack.on_data_sent(self.events.now_s)
        if not self.unreported:
            return before
        ack = self._make_ack(duplicate=False)
        if before is not None:
            ack.arrived = [*before.arrived, *ack.arrived]
        return ack

    def _acknowledge(self, *, duplicate: bool = False) -> None:
        self._back.enter(self._make_ack(duplicate=duplicate))

    def _make_ack(self, *, duplicate: bool) -> Acknowledgement:
        unreported, self.unreported = self.unreported, []
        self._delayed_ack_s = 0.0
        self._compressed, self._compressed_ack_s = 0, 0.0
        self._acknowledged = self.next
        self._delayed_ack.on_ack_sent()
        size_bytes = ACKNOWLEDGEMENT_BYTES + SELECTIVE_BYTES if self._out_of_order else ACKNOWLEDGEMENT_BYTES
        return Acknowledgement(self.next, self._passed, unreported, duplicate, size_bytes)

    def restore(self, lost: Acknowledgement) -> None:
        """Repeat the reports of a lost acknowledgement in the next one."""
        self.unreported = [*lost.arrived, *self.unreported]


QUICK = 16  # acknowledgements, `TCP_MAX_QUICKACKS`
FIRST_WINDOW_BYTES = 65_535
# minimum size of packets that grow the window; growth per packet in full packets (`tcp_grow_window`)
GROWS_BYTES, GROWS_BY = 128, 2


class DelayedAck:
    """Decides which packets are acknowledged at once, as Linux does (`tcp_input.c`).

    These are the first packets, packets that still grow the receive window, and packets after a pause longer than a
    timeout. A side that sends replies delays acknowledgements, since its data carries them. If it does not send data in
    time, it no longer relies on this.

    Args:
        round_trip_s: Round-trip time of the empty path.
        window_bytes: Final receive window; infinite if it need not grow.
        is_replying: Whether this side has already sent a reply (`inet_csk_in_pingpong_mode`).
    """

    __slots__ = (
        "_ato_s",
        "_growth_left_bytes",
        "_last_arrival_s",
        "_quick_acks",
        "_timeout_s",
        "is_replying",
    )

    def __init__(self, round_trip_s: float, window_bytes: float, is_replying: bool) -> None:
        self.is_replying = is_replying
        self._growth_left_bytes = window_bytes - FIRST_WINDOW_BYTES if window_bytes < math.inf else 0.0
        self._timeout_s = MIN_RTO_S + round_trip_s
        # the handshake is at time 0; time after a packet in which data counts as a reply, `icsk_ack.ato`
        self._last_arrival_s, self._ato_s = 0.0, DELAYED_ACK_S
        self._quick_acks = QUICK

    @property
    def acks_at_once(self) -> bool:
        """Whether each packet is acknowledged at once."""
        return self._quick_acks > 0 and not self.is_replying

    def on_arrival(self, now_s: float, size_bytes: int, full_bytes: int) -> None:
        """Record the arrival of `size_bytes`; a full packet has `full_bytes` (`tcp_event_data_recv`)."""
        gap_s, self._last_arrival_s = now_s - self._last_arrival_s, now_s
        if gap_s <= DELAYED_ACK_S / 2:
            self._ato_s = (self._ato_s + DELAYED_ACK_S) / 2
        elif gap_s < self._ato_s:
            self._ato_s = min(self._ato_s / 2 + gap_s, self._timeout_s)
        elif gap_s > self._timeout_s:
            self._quick_acks = QUICK
        if self._growth_left_bytes > 0 and size_bytes >= GROWS_BYTES:
            self._growth_left_bytes -= GROWS_BY * full_bytes
            self._quick_acks |= 1

    def on_data_sent(self, now_s: float) -> None:
        """Record data sent in the other direction (`tcp_event_data_sent`)."""
        if now_s - self._last_arrival_s < self._ato_s:
            self.is_replying = True

    def on_ack_sent(self) -> None:
        """Record an acknowledgement (`tcp_dec_quickack_mode`)."""
        if self._quick_acks:
            self._quick_acks -= 1
            if not self._quick_acks:
                self._ato_s = DELAYED_ACK_S

    def on_duplicate(self) -> None:
        """Record a duplicate packet (`tcp_enter_quickack_mode`)."""
        self._quick_acks, self.is_replying, self._ato_s = QUICK, False, DELAYED_ACK_S

    def on_timer(self) -> None:
        """Record that the delayed acknowledgement timer has fired (`tcp_delack_timer_handler`)."""
        self._ato_s = DELAYED_ACK_S if self.is_replying else min(2 * self._ato_s, self._timeout_s)
        self.is_replying = False

    def shift(self, seconds: float) -> None:
        """Move recorded times back by `seconds`."""
        self._last_arrival_s -= seconds

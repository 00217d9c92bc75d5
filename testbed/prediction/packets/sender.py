"""The packet-level sending side of a TCP connection, as Linux implements it.

It follows RFC 8985 for loss detection (RACK, in `Scoreboard`) and tail loss probes, and RFC 6298 for the retransmission
timer, with a minimum of 200 ms. Linux differs in three points: timers have jiffy resolution, a loss that fewer than
three packets indicate waits for a jiffy, and data waits while the NIC has enough (TCP small queues, autocorking).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from testbed.comm.transport.wire import PACKET_HEADERS_BYTES
from testbed.net.fabric.namespace_setup import LIMIT_OUTPUT_BYTES
from testbed.net.paths.congestion.linux_tcp import (
    DUP_THRESHOLD,
    INITIAL_WINDOW_PACKETS,
    MIN_RTO_S,
    REORDERING,
)
from testbed.net.paths.hops import PacketPath
from testbed.prediction.events import Event, EventQueue, SendBuffer
from testbed.prediction.packets.bbr import Bbr
from testbed.prediction.packets.congestion_control import PACE_SHARE, AckSample, Control, LossBasedControl
from testbed.prediction.packets.links import Entrance, FramePath, LinkQueue, NicBacklog
from testbed.prediction.packets.receiver import Receiver
from testbed.prediction.packets.rtt_estimator import LEAST_ROUND_TRIP_S, RttEstimator, handshake_s
from testbed.prediction.packets.send_queue import Acknowledgement, Packet, Scoreboard, UnsentData
from testbed.prediction.packets.timers import LEAST_S, Timer

OVERHEAD_BYTES = 1024  # memory overhead per packet
OPEN, RECOVERY, LOSS = range(3)

Action = Callable[[], None]


class Sender:
    """The sender of one direction of a connection.

    Args:
        events: The clock.
        path: Its packet path.
        there: Queues on the path from the sender to the receiver.
        back: Queues on the path of acknowledgements.
        buffer_bytes: Size of the send buffer for data that is not acknowledged.
        draw: Random start of BBR's gain cycle.
        dials: Whether the peer has just answered this side's handshake.

    Attributes:
        retransmitted: Number of retransmitted packets.
    """

    def __init__(
        self,
        events: EventQueue,
        path: PacketPath,
        there: Sequence[Entrance],
        back: Sequence[Entrance],
        buffer_bytes: float,
        draw: Random,
        dials: bool = False,
    ) -> None:
        assert isinstance(there[0], LinkQueue)  # NICs have no traffic classes
        self._events, self._nic = events, there[0]
        self._full_bytes = path.payload_bytes
        self._most_window = max(1.0, path.window_bytes / path.payload_bytes)
        smoothed_s = handshake_s((*there, *back))
        self._receiver = Receiver(events, back, self.process_ack, smoothed_s, path.window_bytes, dials)
        self._path = FramePath(events, there, self._receiver.take, self._on_loss)
        self._enqueue = self._path.enter
        self._control: Control = (
            Bbr(path.payload_bytes, smoothed_s, draw)
            if path.growth is None
            else LossBasedControl(path.growth)
        )
        self._paces = self._control.paces
        self._buffer = SendBuffer(buffer_bytes)
        self._unsent, self._transmitted = UnsentData(path.payload_bytes), 0
        self._peer_receiver: Receiver | None = None  # receives the other direction at this end
        self._scoreboard = Scoreboard(smoothed_s)
        self._state, self._high = OPEN, 0
        self._timed_out = -1  # first byte that the last timeout marked as lost
        # for a tail loss probe: the next byte at that time; whether it was a retransmission
        self._probed: tuple[int, bool] | None = None
        self._round_trip = RttEstimator(smoothed_s)
        self._sent_s = -math.inf
        self._in_nic = NicBacklog()
        self._least_in_nic = min(2 * (self._full_bytes + OVERHEAD_BYTES), LIMIT_OUTPUT_BYTES)
        self._woken_s = self._departs_s = self._paced_s = 0.0
        self._timer = Timer(events)
        self._ack = AckSample()
        self.retransmitted = 0

    def join(self, peer: Sender) -> None:
        """Connect the two directions of a connection, so that data packets carry acknowledgements."""
        for own, peer_side in ((self, peer), (peer, self)):
            own._peer_receiver = peer_side._receiver
            own._receiver.peer = peer_side

    # ---- application data

    def send(self, size_bytes: float, accepted: Event, on_sent: Action, on_arrival: Action) -> None:
        """Send a message.

        `accepted` happens when the buffer has it all; `on_sent` and `on_arrival` are called at these times.
        """
        scoreboard = self._scoreboard
        if (
            not self._unsent
            and scoreboard.in_flight < self._control.window
            and not scoreboard.next_lost()
            and not self._in_nic.waits(self._events.now_s)
        ):
            self._control.on_app_limited(scoreboard.in_flight)
        size_bytes = max(1, math.ceil(size_bytes))
        self._unsent.append(size_bytes, on_sent, on_arrival)
        self._buffer.put(size_bytes, accepted)
        self.push()

    def push(self, left_nic: bool = False) -> None:
        """Send the data that may be sent; `left_nic` is true if the call is made because a packet has left the NIC."""
        scoreboard, control, unsent, now_s = self._scoreboard, self._control, self._unsent, self._events.now_s
        sent = full = arms = False
        window, most = control.window, self._most_window
        window = int(window if window < most else most)
        while True:
            packet = scoreboard.next_lost() if scoreboard.lost else None
            if packet is None and not unsent:
                break
            if scoreboard.in_flight >= window:
                full = True
                break
            if self._paces and self._departs_s > now_s:
                self._wait_for_pace()
                break
            if self._in_nic.packets and self._waits_for_nic(packet is None and not left_nic):
                break
            if packet is None:
                # with unrepaired losses the timer stays as it is (`tcp_event_new_data_sent`)
                arms = arms or not scoreboard.out or (self._state == OPEN and not scoreboard.acked)
                self._send_new(now_s)
                sent = True
            else:
                self._retransmit(packet, now_s)
        full = full or scoreboard.in_flight >= window
        if sent or full:
            control.on_window_use(full, len(scoreboard.out), scoreboard.unacknowledged, scoreboard.next)
        if arms:
            self._arm()

    def _most_bytes(self) -> int:
        """Return the maximum segment size that SACK options for the other direction leave (`tcp_current_mss`)."""
        return self._full_bytes - (0 if self._peer_receiver is None else self._peer_receiver.option_bytes)

    def _send_new(self, now_s: float) -> None:
        scoreboard, most = self._scoreboard, self._most_bytes()
        packet = self._unsent.take(most)
        if not scoreboard.in_flight and now_s > self._sent_s > -math.inf:
            self._control.on_restart(now_s, now_s - self._sent_s)
        self._sent_s = now_s
        packet.short = packet.size_bytes < most
        packet.stamp = self._control.stamp(now_s, not scoreboard.out) if self._paces else None
        scoreboard.add(packet, now_s)
        self._transmit(packet, most, now_s)
        for action in packet.on_sent:
            action()

    def _retransmit(self, packet: Packet, now_s: float) -> None:
        self.retransmitted += 1
        most = self._most_bytes()
        if packet.size_bytes > most and not packet.has_arrived:
            self._scoreboard.cut(packet, most)
        packet.stamp = self._control.stamp(now_s, False)
        self._scoreboard.retransmit(packet, now_s)
        self._transmit(packet, most, now_s)

    def _transmit(self, packet: Packet, most: int, now_s: float) -> None:
        packet.frame_bytes = packet.size_bytes + PACKET_HEADERS_BYTES + self._full_bytes - most
        if self._peer_receiver is not None:
            packet.carried_ack = self._peer_receiver.piggyback_ack(packet.carried_ack)
        self._transmitted += 1
        if self._paces:
            self._pace(packet, now_s)
        begins_s = self._nic.free_s
        if begins_s > now_s:
            self._in_nic.add(begins_s, packet.size_bytes + OVERHEAD_BYTES)
        self._enqueue(packet)

    def _on_loss(self, packet: Packet) -> None:
        packet.times_lost += 1
        if self._peer_receiver is not None and packet.carried_ack is not None:
            self._peer_receiver.restore(packet.carried_ack)
            packet.carried_ack = None

    # ---- pacing and the NIC

    def _pace(self, packet: Packet, now_s: float) -> None:
        """Compute when the next packet may leave (`tcp_update_skb_after_send`); the first packets are not paced."""
        before_s, self._departs_s = self._departs_s, max(self._departs_s, now_s)
        if self._transmitted >= INITIAL_WINDOW_PACKETS:
            takes_s = packet.size_bytes / self._linux_pace()
            self._departs_s += takes_s - min(takes_s / 2, self._departs_s - before_s)

    def _wait_for_pace(self) -> None:
        if self._paced_s != self._departs_s:
            self._paced_s = self._departs_s
            self._events.call_at(self._departs_s, self.push)

    def _waits_for_nic(self, new: bool) -> bool:
        """Return whether the NIC has enough data of this connection queued, or the last partial packet may still grow.

        `new` is true if the next packet is not a retransmission. Sending continues when a packet has left the NIC.
        """
        if not self._in_nic.waits(self._events.now_s):
            return False
        if not (new and self._unsent.is_less_than_packet):
            in_nic_bytes = self._in_nic.held_bytes
            # 1 ms at its pacing rate, but at least two packets, which is usually the larger value
            if in_nic_bytes <= self._least_in_nic or (
                in_nic_bytes <= LIMIT_OUTPUT_BYTES and in_nic_bytes <= self._linux_pace() / PACE_SHARE
            ):
                return False
        if self._woken_s <= self._events.now_s:
            self._woken_s = self._in_nic.packets[0][0]
            self._events.call_at(self._woken_s, partial(self.push, left_nic=True))
        return True

    def _linux_pace(self) -> float:
        if not (self._round_trip.timed or self._paces):
            return math.inf  # the kernel does not pace before the first acknowledgement
        return self._control.pace(self._full_bytes, len(self._scoreboard.out), self._round_trip.smoothed_s)

    # ---- acknowledgements

    def process_ack(self, ack: Acknowledgement, *, sends: bool = True) -> None:
        """Process an acknowledgement; if `sends`, also send the data that may be sent now."""
        now_s, scoreboard, control = self._events.now_s, self._scoreboard, self._control
        unacknowledged, in_flight = scoreboard.unacknowledged, scoreboard.in_flight
        delivered, first_s, last_s = scoreboard.deliver(
            scoreboard.newly_arrived(ack), now_s, control.on_delivered
        )
        advanced = ack.next > unacknowledged
        if advanced:
            if self._state == LOSS and unacknowledged == self._timed_out and not self._paces:
                self._undo(scoreboard.out[unacknowledged])
            self._acknowledge(ack.next)
        latest_s = -1.0
        if last_s > -math.inf:
            latest_s = now_s - last_s
            self._add_rtt_sample(now_s - first_s, latest_s)
        if self._probed is not None:
            self._process_probe_ack(ack, self._probed)
        lost, waits = 0, False
        if scoreboard.acked or self._state != OPEN:
            lost, waits = self._find_lost()
            self._change_state(lost)
        self._report_ack(delivered, in_flight, lost, latest_s, advanced)
        if advanced and not waits:
            self._arm()
        if sends:
            self.push()

    def _acknowledge(self, next_byte: int) -> None:
        """Acknowledge all packets before this byte."""
        scoreboard, buffer, size_bytes = self._scoreboard, self._buffer, 0
        while scoreboard.unacknowledged < next_byte:
            size_bytes += scoreboard.acknowledge()
            if buffer.waiting:  # otherwise it does not matter which packet makes room
                buffer.remove(size_bytes)
                size_bytes = 0
        buffer.remove(size_bytes)

    def _report_ack(self, delivered: int, before: int, lost: int, latest_s: float, advanced: bool) -> None:
        """Report an acknowledgement to the congestion control: see `AckSample`."""
        scoreboard, ack = self._scoreboard, self._ack
        ack.now_s = self._events.now_s
        ack.delivered, ack.advanced, ack.lost = delivered, advanced, lost
        ack.in_flight, ack.before = scoreboard.in_flight, before
        ack.recovering = self._state == RECOVERY
        ack.latest_s, ack.least_s = latest_s, scoreboard.least_s
        ack.departs_s, ack.sent = self._departs_s, self._transmitted
        self._control.on_ack(ack)

    def _add_rtt_sample(self, sample_s: float, latest_s: float) -> None:
        """Take a round-trip sample from the first (`sample_s`) and the last (`latest_s`) acknowledged packet."""
        scoreboard = self._scoreboard
        if latest_s < LEAST_ROUND_TRIP_S:  # the latest sample is the smallest
            sample_s, latest_s = max(LEAST_ROUND_TRIP_S, sample_s), LEAST_ROUND_TRIP_S
        scoreboard.least_s = min(scoreboard.least_s, latest_s)
        self._round_trip.add(sample_s)
        self._control.on_rtt_sample(
            self._events.now_s, latest_s, scoreboard.unacknowledged, scoreboard.next, self._linux_pace
        )

    def _process_probe_ack(self, ack: Acknowledgement, probed: tuple[int, bool]) -> None:
        """Detect whether a tail loss probe has repaired a loss (`tcp_process_tlp_ack`)."""
        high, was_retransmission = probed
        if ack.next < high:
            return
        if not was_retransmission or ack.duplicate:
            self._probed = None
        elif ack.next > high:
            self._probed = None
            self._control.on_probe_repair()

    def _find_lost(self) -> tuple[int, bool]:
        """Return the number of lost packets, and whether others may be lost, for which a timer is set."""
        scoreboard = self._scoreboard
        reordering_s = 0.0
        if self._state == OPEN and scoreboard.acked < DUP_THRESHOLD:
            reordering_s = min(REORDERING * scoreboard.least_s, self._round_trip.smoothed_s)
        lost, later_s = scoreboard.find_lost(self._events.now_s, reordering_s)
        if later_s:
            self._timer.set(later_s + LEAST_S, self._stop_waiting)
        return lost, later_s > 0

    def _change_state(self, lost: int) -> None:
        if self._state != OPEN and self._scoreboard.unacknowledged >= self._high:
            if self._state == RECOVERY:
                self._control.exit_recovery()
            self._state = OPEN
        if lost and self._state != RECOVERY:
            self._control.enter_recovery(self._transmitted, after_timeout=self._state == LOSS)
            self._high = self._scoreboard.next
            self._state = RECOVERY

    # ---- timers

    def _arm(self) -> None:
        scoreboard, round_trip = self._scoreboard, self._round_trip
        if not scoreboard.out:
            self._timer.stop()
            return
        if round_trip.timed and self._state == OPEN and not scoreboard.acked and self._probed is None:
            probe_s = 2 * round_trip.smoothed_s + (MIN_RTO_S if len(scoreboard.out) == 1 else LEAST_S)
            if probe_s < MIN_RTO_S or probe_s < round_trip.timeout_s:
                self._timer.set(probe_s, self._probe)
                return
        self._timer.set(self._round_trip.timeout_s, self._time_out)

    def _probe(self) -> None:
        """Send a tail loss probe: the next packet, or the last one again, to trigger an acknowledgement."""
        is_retransmission, now_s = not self._unsent, self._events.now_s
        if is_retransmission:
            self._retransmit(self._scoreboard.out[max(self._scoreboard.out)], now_s)
        else:
            self._send_new(now_s)
        self._probed = self._scoreboard.next, is_retransmission
        self._timer.set(self._round_trip.timeout_s, self._time_out)

    def _stop_waiting(self) -> None:
        """Handle the reordering timer: stop waiting for packets that may only be late."""
        scoreboard = self._scoreboard
        lost, _ = self._find_lost()
        if lost and self._state != RECOVERY:
            self._change_state(lost)
            if not self._paces:  # others learn of it from the next acknowledgement (`tcp_rack_reo_timeout`)
                self._report_ack(1, scoreboard.in_flight, lost, -1.0, False)
        self._timer.set(self._round_trip.timeout_s, self._time_out)
        self.push()

    def _time_out(self) -> None:
        scoreboard = self._scoreboard
        is_new_episode = self._state == OPEN or scoreboard.unacknowledged >= self._high
        scoreboard.time_out(self._events.now_s)
        self._control.on_timeout(scoreboard.in_flight, is_new_episode=is_new_episode)
        self._state, self._high, self._probed = LOSS, scoreboard.next, None
        self._timed_out = scoreboard.unacknowledged
        self._round_trip.doublings += 1
        self._timer.set(self._round_trip.timeout_s, self._time_out)
        self.push()

    def _undo(self, packet: Packet) -> None:
        """Undo a timeout if the original packet was only late and arrives before its retransmission.

        The kernel detects this from timestamps (Eifel, RFC 3522; `tcp_packet_delayed`).
        """
        if not packet.times_lost:
            self._state = OPEN
            self._scoreboard.undo()
            self._control.undo()
            late_s = self._events.now_s - packet.first_s
            self._add_rtt_sample(late_s, late_s)

    # ---- between steps

    def continue_on(self, events: EventQueue, seconds: float) -> None:
        """Continue on another event queue, whose time is `seconds` less; nothing is in flight."""
        self._events = events
        self._path.continue_on(events)
        self._receiver.continue_on(events, seconds)
        self._timer.continue_on(events)
        self._control.shift(seconds)
        self._scoreboard.shift(seconds)
        self._sent_s -= seconds
        self._woken_s = self._paced_s = 0.0
        self._departs_s -= seconds
        self._in_nic = NicBacklog()

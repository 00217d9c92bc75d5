"""The sending side of a TCP connection, packet by packet, as Linux implements it.

It follows RFC 8985 for loss detection (RACK, in `Scoreboard`) and tail loss probes, and RFC 6298 for the retransmission
timer, with a minimum of 200 ms. It also models what differs from the RFCs. Timers have jiffy resolution. A loss that
fewer than three packets indicate waits for at least one jiffy. Data waits while the NIC's queue holds enough of the
connection (TCP small queues, autocorking).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from testbed.comm.transport.wire import PACKET_HEADERS_BYTES
from testbed.net.fabric.namespace_setup import IN_CARD_BYTES
from testbed.net.paths.hops import PacketPath
from testbed.net.paths.losses import DUPLICATES, FIRST_PACKETS, REORDERING, TIMEOUT_S
from testbed.prediction.events import Event, EventQueue, SendBuffer
from testbed.prediction.packets.bbr import Bbr
from testbed.prediction.packets.congestion_control import PACE_SHARE, AckSample, Control, LossBasedControl
from testbed.prediction.packets.links import Entrance, FramePath, LinkQueue
from testbed.prediction.packets.receiver import Receiver
from testbed.prediction.packets.rtt_estimator import LEAST_ROUND_TRIP_S, RttEstimator, handshake_s
from testbed.prediction.packets.send_queue import Acknowledgement, Packet, Scoreboard, UnsentData
from testbed.prediction.packets.timers import LEAST_S, Timer

# TCP options of a packet that reports gaps, next to timestamps
BLOCKS_BYTES, BLOCK_BYTES, MOST_BLOCKS = 4, 8, 3
OVERHEAD_BYTES = 1024  # memory overhead per packet
OPEN, RECOVERY, LOSS = range(3)

Action = Callable[[], None]


class Sender:
    """One connection in one direction.

    Args:
        agenda: The clock.
        path: Its packet path.
        there: Queues from the sender to the receiver.
        back: Queues of acknowledgements.
        buffer_bytes: Send buffer for data that is not acknowledged.
        draw: Random start of BBR's gain cycle.
        dials: Whether the peer has just answered this side's handshake.

    Attributes:
        again: Number of retransmitted packets.
    """

    def __init__(
        self,
        agenda: EventQueue,
        path: PacketPath,
        there: Sequence[Entrance],
        back: Sequence[Entrance],
        buffer_bytes: float,
        draw: Random,
        dials: bool = False,
    ) -> None:
        assert isinstance(there[0], LinkQueue)  # NICs have no traffic classes
        self._agenda, self._card = agenda, there[0]
        self._full_bytes = path.payload_bytes
        self._most_window = max(1.0, path.window_bytes / path.payload_bytes)
        usual_s = handshake_s((*there, *back))
        self._receiver = Receiver(agenda, back, self.hear, usual_s, path.window_bytes, dials)
        self._there = FramePath(agenda, there, self._receiver.take, self._lose)
        self._enter = self._there.enter
        self._control: Control = (
            Bbr(path.payload_bytes, usual_s, draw) if path.growth is None else LossBasedControl(path.growth)
        )
        self._paces = self._control.paces
        self._buffer = SendBuffer(buffer_bytes)
        self._unsent, self._transmitted = UnsentData(path.payload_bytes), 0
        self._other: Receiver | None = None  # receives the other direction at this end
        self._board = Scoreboard(usual_s)
        self._state, self._high = OPEN, 0
        self._timed_out = -1  # first byte that was lost in the last timeout
        # of a tail loss probe: next byte then; whether it was a retransmission
        self._probed: tuple[int, bool] | None = None
        self._round_trip = RttEstimator(usual_s)
        self._sent_s = -math.inf
        self._in_card: deque[tuple[float, int]] = deque()
        self._in_card_bytes = 0
        self._least_in_card = min(2 * (self._full_bytes + OVERHEAD_BYTES), IN_CARD_BYTES)
        self._woken_s = self._departs_s = self._paced_s = 0.0
        self._timer = Timer(agenda)
        self._heard = AckSample()
        self.again = 0

    @property
    def window(self) -> float:
        """The congestion window in packets."""
        return self._control.window

    def join(self, other: Sender) -> None:
        """Join both directions of a connection, so that data packets carry acknowledgements."""
        for own, that in ((self, other), (other, self)):
            own._other = that._receiver
            own._receiver.other = that

    # ---- application data

    def send(self, size_bytes: float, taken: Event, left: Action, come: Action) -> None:
        """Send a message.

        taken: happens when the buffer has all of it. left: called when it was sent. come: called when it has arrived.
        """
        board = self._board
        if (
            not self._unsent
            and board.flying < self.window
            and not board.next_lost()
            and not self._are_in_card()
        ):
            self._control.starve(board.flying)
        size_bytes = max(1, math.ceil(size_bytes))
        self._unsent.give(size_bytes, left, come)
        self._buffer.put(size_bytes, taken)
        self.push()

    def push(self, left_card: bool = False) -> None:
        """Send what may be sent. left_card: called because a packet has left the NIC."""
        board, control, unsent, now_s = self._board, self._control, self._unsent, self._agenda.now_s
        sent = full = arms = False
        window, most = control.window, self._most_window
        window = int(window if window < most else most)
        while True:
            packet = board.next_lost() if board.lost else None
            if packet is None and not unsent:
                break
            if board.flying >= window:
                full = True
                break
            if self._paces and self._departs_s > now_s:
                self._wait_for_pace()
                break
            if self._in_card and self._waits_for_card(packet is None and not left_card):
                break
            if packet is None:
                # with unrepaired losses the timer stays as it is (`tcp_event_new_data_sent`)
                arms = arms or not board.out or (self._state == OPEN and not board.here)
                self._begin(now_s)
                sent = True
            else:
                self._repeat(packet, now_s)
        full = full or board.flying >= window
        if sent or full:
            control.use(full, len(board.out), board.unacknowledged, board.next)
        if arms:
            self._arm()

    def _most_bytes(self) -> int:
        """Return the maximum segment size next to SACK options for the other direction (`tcp_current_mss`)."""
        if self._other is None or not self._other.blocks:
            return self._full_bytes
        return self._full_bytes - BLOCKS_BYTES - BLOCK_BYTES * min(self._other.blocks, MOST_BLOCKS)

    def _begin(self, now_s: float) -> None:
        board, most = self._board, self._most_bytes()
        packet = self._unsent.take(most)
        if not board.flying and now_s > self._sent_s > -math.inf:
            self._control.resume(now_s, now_s - self._sent_s)
        self._sent_s = now_s
        packet.short = packet.size_bytes < most
        packet.stamp = self._control.stamp(now_s, not board.out) if self._paces else None
        board.add(packet, now_s)
        self._transmit(packet, most, now_s)
        for action in packet.left:
            action()

    def _repeat(self, packet: Packet, now_s: float) -> None:
        self.again += 1
        most = self._most_bytes()
        if packet.size_bytes > most and not packet.there:
            self._board.cut(packet, most)
        packet.stamp = self._control.stamp(now_s, False)
        self._board.fly(packet, now_s)
        self._transmit(packet, most, now_s)

    def _transmit(self, packet: Packet, most: int, now_s: float) -> None:
        packet.frame_bytes = packet.size_bytes + PACKET_HEADERS_BYTES + self._full_bytes - most
        if self._other is not None:
            packet.told = self._other.tell(packet.told)
        self._transmitted += 1
        if self._paces:
            self._pace(packet, now_s)
        begins_s = self._card.free_s
        if begins_s > now_s:
            in_memory = packet.size_bytes + OVERHEAD_BYTES
            self._in_card.append((begins_s, in_memory))
            self._in_card_bytes += in_memory
        self._enter(packet)

    def _lose(self, packet: Packet) -> None:
        packet.gone += 1
        if self._other is not None and packet.told is not None:
            self._other.repeat(packet.told)
            packet.told = None

    # ---- pacing and the NIC

    def _pace(self, packet: Packet, now_s: float) -> None:
        """Compute when the next packet may leave (`tcp_update_skb_after_send`); the first ones are not paced."""
        before_s, self._departs_s = self._departs_s, max(self._departs_s, now_s)
        if self._transmitted >= FIRST_PACKETS:
            takes_s = packet.size_bytes / self._linux_pace()
            self._departs_s += takes_s - min(takes_s / 2, self._departs_s - before_s)

    def _wait_for_pace(self) -> None:
        if self._paced_s != self._departs_s:
            self._paced_s = self._departs_s
            self._agenda.at(self._departs_s, self.push)

    def _waits_for_card(self, new: bool) -> bool:
        """Whether the NIC's queue has enough of this connection, or the last, partial, packet may still grow.

        new: the next packet is not a retransmission. Sending continues when a packet has left the NIC.
        """
        if not self._are_in_card():
            return False
        if not (new and self._unsent.is_part):
            in_card_bytes = self._in_card_bytes
            # 1 ms at its pacing rate but at least two packets, which mostly decides
            if in_card_bytes <= self._least_in_card or (
                in_card_bytes <= IN_CARD_BYTES and in_card_bytes <= self._linux_pace() / PACE_SHARE
            ):
                return False
        if self._woken_s <= self._agenda.now_s:
            self._woken_s = self._in_card[0][0]
            self._agenda.at(self._woken_s, partial(self.push, left_card=True))
        return True

    def _are_in_card(self) -> bool:
        """Whether packets wait in the NIC."""
        now_s, waiting = self._agenda.now_s, self._in_card
        while waiting and waiting[0][0] <= now_s:
            self._in_card_bytes -= waiting.popleft()[1]
        return bool(waiting)

    def _linux_pace(self) -> float:
        if not (self._round_trip.timed or self._paces):
            return math.inf  # the kernel does not pace before the first acknowledgement
        return self._control.pace(self._full_bytes, len(self._board.out), self._round_trip.usual_s)

    # ---- acknowledgements

    def hear(self, told: Acknowledgement, *, goes_on: bool = True) -> None:
        """Process an acknowledgement. goes_on: also send what may be sent now."""
        now_s, board, control = self._agenda.now_s, self._board, self._control
        unacknowledged, flying = board.unacknowledged, board.flying
        delivered, first_s, last_s = board.arrive(board.all_of(told), now_s, control.came)
        advanced = told.next > unacknowledged
        if advanced:
            if self._state == LOSS and unacknowledged == self._timed_out and not self._paces:
                self._undo(board.out[unacknowledged])
            self._acknowledge(told.next)
        latest_s = -1.0
        if last_s > -math.inf:
            latest_s = now_s - last_s
            self._time(now_s - first_s, latest_s)
        if self._probed is not None:
            self._hear_probe(told, self._probed)
        lost, waits = 0, False
        if board.here or self._state != OPEN:
            lost, waits = self._find_lost()
            self._change_state(lost)
        self._tell(delivered, flying, lost, latest_s, advanced)
        if advanced and not waits:
            self._arm()
        if goes_on:
            self.push()

    def _acknowledge(self, next_byte: int) -> None:
        """Acknowledge all packets before this byte."""
        board, buffer, size_bytes = self._board, self._buffer, 0
        while board.unacknowledged < next_byte:
            size_bytes += board.acknowledge()
            if buffer.waiting:  # else it does not matter which of them makes room
                buffer.leave(size_bytes)
                size_bytes = 0
        buffer.leave(size_bytes)

    def _tell(self, delivered: int, before: int, lost: int, latest_s: float, advanced: bool) -> None:
        """Report an acknowledgement to the congestion control: see `AckSample`."""
        board, heard = self._board, self._heard
        heard.now_s = self._agenda.now_s
        heard.delivered, heard.advanced, heard.lost = delivered, advanced, lost
        heard.flying, heard.before = board.flying, before
        heard.recovering = self._state == RECOVERY
        heard.latest_s, heard.least_s = latest_s, board.least_s
        heard.departs_s, heard.sent = self._departs_s, self._transmitted
        self._control.heard(heard)

    def _time(self, sample_s: float, latest_s: float) -> None:
        """Take a round-trip sample. sample_s, latest_s: of the first and the last packet that was acknowledged."""
        board = self._board
        if latest_s < LEAST_ROUND_TRIP_S:  # the latest sample is the smallest
            sample_s, latest_s = max(LEAST_ROUND_TRIP_S, sample_s), LEAST_ROUND_TRIP_S
        board.least_s = min(board.least_s, latest_s)
        self._round_trip.add(sample_s)
        self._control.time(self._agenda.now_s, latest_s, board.unacknowledged, board.next, self._linux_pace)

    def _hear_probe(self, told: Acknowledgement, probed: tuple[int, bool]) -> None:
        """Detect whether a tail loss probe has repaired a loss (`tcp_process_tlp_ack`)."""
        high, again = probed
        if told.next < high:
            return
        if not again or told.doubled:
            self._probed = None
        elif told.next > high:
            self._probed = None
            self._control.mended()

    def _find_lost(self) -> tuple[int, bool]:
        """Return how many packets are lost, and whether others may be, for which a timer is set."""
        board = self._board
        reordering_s = 0.0
        if self._state == OPEN and board.here < DUPLICATES:
            reordering_s = min(REORDERING * board.least_s, self._round_trip.usual_s)
        lost, later_s = board.find_lost(self._agenda.now_s, reordering_s)
        if later_s:
            self._timer.set(later_s + LEAST_S, self._stop_waiting)
        return lost, later_s > 0

    def _change_state(self, lost: int) -> None:
        if self._state != OPEN and self._board.unacknowledged >= self._high:
            if self._state == RECOVERY:
                self._control.recovered()
            self._state = OPEN
        if lost and self._state != RECOVERY:
            self._control.lose(self._transmitted, again=self._state == LOSS)
            self._high = self._board.next
            self._state = RECOVERY

    # ---- timers

    def _arm(self) -> None:
        board, round_trip = self._board, self._round_trip
        if not board.out:
            self._timer.stop()
            return
        if round_trip.timed and self._state == OPEN and not board.here and self._probed is None:
            probe_s = 2 * round_trip.usual_s + (TIMEOUT_S if len(board.out) == 1 else LEAST_S)
            if probe_s < TIMEOUT_S or probe_s < round_trip.timeout_s:
                self._timer.set(probe_s, self._probe)
                return
        self._timer.set(self._round_trip.timeout_s, self._time_out)

    def _probe(self) -> None:
        """Send a tail loss probe: the next packet, or the last one again, to provoke an acknowledgement."""
        again, now_s = not self._unsent, self._agenda.now_s
        if again:
            self._repeat(self._board.out[max(self._board.out)], now_s)
        else:
            self._begin(now_s)
        self._probed = self._board.next, again
        self._timer.set(self._round_trip.timeout_s, self._time_out)

    def _stop_waiting(self) -> None:
        """Handle the reordering timer: stop waiting for packets that may only be late."""
        board = self._board
        lost, _ = self._find_lost()
        if lost and self._state != RECOVERY:
            self._change_state(lost)
            if not self._paces:  # others learn it from the next acknowledgement (`tcp_rack_reo_timeout`)
                self._tell(1, board.flying, lost, -1.0, False)
        self._timer.set(self._round_trip.timeout_s, self._time_out)
        self.push()

    def _time_out(self) -> None:
        board = self._board
        anew = self._state == OPEN or board.unacknowledged >= self._high
        board.time_out(self._agenda.now_s)
        self._control.time_out(board.flying, anew=anew)
        self._state, self._high, self._probed = LOSS, board.next, None
        self._timed_out = board.unacknowledged
        self._round_trip.doublings += 1
        self._timer.set(self._round_trip.timeout_s, self._time_out)
        self.push()

    def _undo(self, packet: Packet) -> None:
        """Undo a timeout if the original packet was only late and arrives before its retransmission.

        The kernel knows by timestamps (Eifel, RFC 3522; `tcp_packet_delayed`).
        """
        if not packet.gone:
            self._state = OPEN
            self._board.undo()
            self._control.undo()
            late_s = self._agenda.now_s - packet.first_s
            self._time(late_s, late_s)

    # ---- between steps

    def go_on(self, agenda: EventQueue, seconds: float) -> None:
        """Continue on another event queue whose time is `seconds` less; nothing is in flight."""
        self._agenda = agenda
        self._there.go_on(agenda)
        self._receiver.go_on(agenda, seconds)
        self._timer.go_on(agenda)
        self._control.shift(seconds)
        self._board.shift(seconds)
        self._sent_s -= seconds
        self._woken_s = self._paced_s = 0.0
        self._departs_s -= seconds
        self._in_card.clear()
        self._in_card_bytes = 0

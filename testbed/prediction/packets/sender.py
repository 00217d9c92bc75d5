"""The end of a connection that sends, packet by packet, as Linux' TCP does.

RFC 8985 for what is lost (RACK, in `scoreboard`) and for last packets (TLP); RFC 6298's timer, no less than 200 ms.
Not as on paper: timers go by jiffies, a loss that fewer than three packets tell of waits for one of these at the least,
and what is written waits while the card has enough of the connection (TCP small queues, autocorking).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from testbed.comm.transport.wire import PACKET_HEADERS_BYTES
from testbed.net.fabric.namespace_setup import LIMIT_OUTPUT_BYTES
from testbed.net.paths.hops import PacketPath
from testbed.net.paths.losses import DUP_THRESHOLD, INITIAL_WINDOW_PACKETS, MIN_RTO_S, REORDERING
from testbed.prediction.events import Event, EventQueue, SendBuffer
from testbed.prediction.packets.bbr import Bbr
from testbed.prediction.packets.congestion_control import PACE_SHARE, AckSample, Control, LossBasedControl
from testbed.prediction.packets.links import Entrance, FramePath, LinkQueue
from testbed.prediction.packets.receiver import Receiver
from testbed.prediction.packets.rtt_estimator import LEAST_ROUND_TRIP_S, RttEstimator, handshake_s
from testbed.prediction.packets.send_queue import Acknowledgement, Packet, Scoreboard, UnsentData
from testbed.prediction.packets.timers import LEAST_S, Timer

# options of a packet that tells of gaps, with timestamps beside them
BLOCKS_BYTES, BLOCK_BYTES, MOST_BLOCKS = 4, 8, 3
OVERHEAD_BYTES = 1024  # of a packet in memory
OPEN, RECOVERY, LOSS = range(3)

Action = Callable[[], None]


class Sender:
    """One connection. buffer_bytes: of what it was given and is not acknowledged, at the most. draw: for BBR's cycle.

    dials: whether the other end has just answered its hello. again: packets that were sent again.
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
        assert isinstance(there[0], LinkQueue)  # cards have no classes
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
        self._other: Receiver | None = None  # of the other direction, at this end
        self._board = Scoreboard(usual_s)
        self._state, self._high = OPEN, 0
        self._timed_out = -1  # the first byte of what was taken for lost then, of the last episode
        self._probed: tuple[int, bool] | None = None  # the next packet then; whether one was sent again
        self._round_trip = RttEstimator(usual_s)
        self._sent_s = -math.inf
        self._in_card: deque[tuple[float, int]] = deque()
        self._in_card_bytes = 0
        self._least_in_card = min(2 * (self._full_bytes + OVERHEAD_BYTES), LIMIT_OUTPUT_BYTES)
        self._woken_s = self._departs_s = self._paced_s = 0.0
        self._timer = Timer(agenda)
        self._heard = AckSample()
        self.again = 0

    @property
    def window(self) -> float:
        """Packets."""
        return self._control.window

    def join(self, other: Sender) -> None:
        """They are the two directions of a connection: what one sends tells of what came of the other."""
        for own, that in ((self, other), (other, self)):
            own._other = that._receiver
            own._receiver.other = that

    # ---- what it is given

    def send(self, size_bytes: float, taken: Event, left: Action, come: Action) -> None:
        """A message. taken: happens when all of it is in the buffer; left, come: when sent once, when there."""
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
        """Send what may be sent. left_card: as a packet has left the card, for which others may have waited."""
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
                # else what is lost is waited for as before (`tcp_event_new_data_sent`)
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
        """Of a packet, beside what it tells of gaps in the other direction (`tcp_current_mss`)."""
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

    # ---- what it waits for

    def _pace(self, packet: Packet, now_s: float) -> None:
        """When the next one may leave (`tcp_update_skb_after_send`): the first ones are not paced."""
        before_s, self._departs_s = self._departs_s, max(self._departs_s, now_s)
        if self._transmitted >= INITIAL_WINDOW_PACKETS:
            takes_s = packet.size_bytes / self._linux_pace()
            self._departs_s += takes_s - min(takes_s / 2, self._departs_s - before_s)

    def _wait_for_pace(self) -> None:
        if self._paced_s != self._departs_s:
            self._paced_s = self._departs_s
            self._agenda.at(self._departs_s, self.push)

    def _waits_for_card(self, new: bool) -> bool:
        """Whether the card has enough of it, or more may come for its last packet, which is `new`.

        It goes on when one has left.
        """
        if not self._are_in_card():
            return False
        if not (new and self._unsent.is_part):
            in_card_bytes = self._in_card_bytes
            # 1 ms of its pace, two packets at the least, which mostly decides
            if in_card_bytes <= self._least_in_card or (
                in_card_bytes <= LIMIT_OUTPUT_BYTES and in_card_bytes <= self._linux_pace() / PACE_SHARE
            ):
                return False
        if self._woken_s <= self._agenda.now_s:
            self._woken_s = self._in_card[0][0]
            self._agenda.at(self._woken_s, partial(self.push, left_card=True))
        return True

    def _are_in_card(self) -> bool:
        """Whether packets still wait there."""
        now_s, waiting = self._agenda.now_s, self._in_card
        while waiting and waiting[0][0] <= now_s:
            self._in_card_bytes -= waiting.popleft()[1]
        return bool(waiting)

    def _linux_pace(self) -> float:
        if not (self._round_trip.timed or self._paces):
            return math.inf  # the kernel has none before the first acknowledgement
        return self._control.pace(self._full_bytes, len(self._board.out), self._round_trip.usual_s)

    # ---- what it hears

    def hear(self, told: Acknowledgement, *, goes_on: bool = True) -> None:
        """An acknowledgement. goes_on: sends what may be sent now."""
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
        """All packets before that byte."""
        board, buffer, size_bytes = self._board, self._buffer, 0
        while board.unacknowledged < next_byte:
            size_bytes += board.acknowledge()
            if buffer.waiting:  # else nobody asks which of them has made room
                buffer.leave(size_bytes)
                size_bytes = 0
        buffer.leave(size_bytes)

    def _tell(self, delivered: int, before: int, lost: int, latest_s: float, advanced: bool) -> None:
        """The congestion control, of what was heard: see `AckSample`."""
        board, heard = self._board, self._heard
        heard.now_s = self._agenda.now_s
        heard.delivered, heard.advanced, heard.lost = delivered, advanced, lost
        heard.flying, heard.before = board.flying, before
        heard.recovering = self._state == RECOVERY
        heard.latest_s, heard.least_s = latest_s, board.least_s
        heard.departs_s, heard.sent = self._departs_s, self._transmitted
        self._control.heard(heard)

    def _time(self, sample_s: float, latest_s: float) -> None:
        """An acknowledgement came so long after the first and the last packet that it tells of."""
        board = self._board
        if latest_s < LEAST_ROUND_TRIP_S:  # no sample is less than the latest one
            sample_s, latest_s = max(LEAST_ROUND_TRIP_S, sample_s), LEAST_ROUND_TRIP_S
        board.least_s = min(board.least_s, latest_s)
        self._round_trip.add(sample_s)
        self._control.time(self._agenda.now_s, latest_s, board.unacknowledged, board.next, self._linux_pace)

    def _hear_probe(self, told: Acknowledgement, probed: tuple[int, bool]) -> None:
        """Whether a probe has mended a loss, which then is one (`tcp_process_tlp_ack`)."""
        high, again = probed
        if told.next < high:
            return
        if not again or told.doubled:
            self._probed = None
        elif told.next > high:
            self._probed = None
            self._control.mended()

    def _find_lost(self) -> tuple[int, bool]:
        """Packets; whether there are others, which it looks for when it has waited long enough."""
        board = self._board
        reordering_s = 0.0
        if self._state == OPEN and board.here < DUP_THRESHOLD:
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
            probe_s = 2 * round_trip.usual_s + (MIN_RTO_S if len(board.out) == 1 else LEAST_S)
            if probe_s < MIN_RTO_S or probe_s < round_trip.timeout_s:
                self._timer.set(probe_s, self._probe)
                return
        self._timer.set(self._round_trip.timeout_s, self._time_out)

    def _probe(self) -> None:
        """The next packet, or the last one once more, so that an acknowledgement tells what is lost."""
        again, now_s = not self._unsent, self._agenda.now_s
        if again:
            self._repeat(self._board.out[max(self._board.out)], now_s)
        else:
            self._begin(now_s)
        self._probed = self._board.next, again
        self._timer.set(self._round_trip.timeout_s, self._time_out)

    def _stop_waiting(self) -> None:
        """For packets that may only be late."""
        board = self._board
        lost, _ = self._find_lost()
        if lost and self._state != RECOVERY:
            self._change_state(lost)
            if not self._paces:  # what it hears next tells that of recovery alone (`tcp_rack_reo_timeout`)
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
        """As if there had been no timeout, where the packet comes that was late, before the one that was sent again.

        Timestamps tell the kernel (Eifel, RFC 3522; `tcp_packet_delayed`).
        """
        if not packet.gone:
            self._state = OPEN
            self._board.undo()
            self._control.undo()
            late_s = self._agenda.now_s - packet.first_s
            self._time(late_s, late_s)

    # ---- from one step to the next

    def go_on(self, agenda: EventQueue, seconds: float) -> None:
        """By another's time, which is so much less; nothing is under way."""
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

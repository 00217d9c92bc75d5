"""The effect of losses on one connection: closed forms, and a simulation of its window.

The congestion control determines the window under losses (`congestion`). A loss among a message's last packets delays
the message by round trips; an earlier loss is recovered in the meantime. Calibration gives factors for both.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from random import Random
from typing import NamedTuple

from testbed.net.paths.congestion import CONGESTION_CONTROLS, CongestionControl, Growth, LossResponse
from testbed.net.paths.congestion.linux_tcp import (
    DELAYED_ACK_S,
    DUP_THRESHOLD,
    INITIAL_WINDOW_PACKETS,
    MIN_RTO_S,
    PACKETS_PER_ACK,
    REORDERING,
    WindowUse,
    window_after_loss,
)
from testbed.plugins import OWN_FILE

FALLBACK_CONTROL = "reno"  # the substitute, with a note, for congestion controls that the model does not know


def is_known_control(name: str) -> bool:
    """Return whether the model knows a congestion-control algorithm, by name or as FILE.py:NAME."""
    return name in CONGESTION_CONTROLS or OWN_FILE.fullmatch(name) is not None


def find_control(name: str) -> type[CongestionControl]:
    """Return a congestion-control algorithm by name or FILE.py:NAME; FALLBACK_CONTROL if unknown.

    Raises PluginError.
    """
    return CONGESTION_CONTROLS.find(name if is_known_control(name) else FALLBACK_CONTROL)


@dataclass(frozen=True)
class LossyConnection:
    """A connection over a path that loses packets, with an average window.

    Attributes:
        congestion_control: The congestion control, as a name or FILE.py:NAME.
        loss: The share of packets lost, 0 to 1.
        rtt_s: The round trip in seconds.
        path_rate: The path's rate in bytes per second.
        packet_bytes: The payload of a full packet.
        response: The calibrated loss response.
    """

    congestion_control: str
    loss: float
    rtt_s: float
    path_rate: float
    packet_bytes: float
    response: LossResponse

    @cached_property
    def window_bytes(self) -> float:
        """The average window in bytes; infinite if losses do not matter."""
        packets = find_control(self.congestion_control).window_packets(self.loss, self.rtt_s)
        return self.response.window * packets * self.packet_bytes

    @property
    def simulates_window(self) -> bool:
        """Whether its window can be simulated from its first packet on, not only on average."""
        return find_control(self.congestion_control).window is not None

    def open_window(self, one_way_s: float, draw: Random) -> LossyWindow:
        """Return the simulated window of a new connection; `one_way_s` is a packet's one-way time in seconds."""
        growth = find_control(self.congestion_control).window
        assert growth is not None
        return LossyWindow(
            growth(), self.loss, self.rtt_s, one_way_s, self.packet_bytes / self.path_rate, draw
        )

    @property
    def recovery_s(self) -> float:
        """The seconds from a packet's loss to the arrival of its retransmission."""
        return self.response.recovery * self.rtt_s

    def least_s(self, size_bytes: float, open_bytes: float = math.inf) -> float:
        """Return the seconds to send a message on an idle path: one window at once, the rest per round trip.

        Args:
            size_bytes: The message's size.
            open_bytes: The part of the window that earlier messages do not use; negative if they are waiting, too.
        """
        open_bytes = min(open_bytes, self.window_bytes)
        at_once = max(0.0, min(size_bytes, open_bytes))
        rest_s = (
            0.0 if size_bytes <= open_bytes else (size_bytes - open_bytes) / self.window_bytes * self.rtt_s
        )
        return max(size_bytes / self.path_rate, at_once / self.path_rate + rest_s)

    def open_bytes_after(self, open_bytes: float, seconds: float) -> float:
        """Return the open part of the window after `seconds`; acknowledgements open all of it in a round trip."""
        if math.isinf(self.window_bytes):
            return math.inf
        return min(self.window_bytes, open_bytes + self.window_bytes * seconds / self.rtt_s)

    def late_probability(self, size_bytes: float, busy_s: float = 0.0) -> float:
        """Return the probability that a message is late by `recovery_s`, because one of its last packets is lost.

        `busy_s` makes no difference, since the window is an average.
        """
        packets = min(math.ceil(size_bytes / self.packet_bytes), INITIAL_WINDOW_PACKETS)
        return 1 - (1 - self.loss) ** packets


MERGE_SHARE = 1 / 32  # acknowledgements within this share of a round trip are merged


@dataclass(eq=False)
class PacketLoss:
    """The loss of a packet.

    Attributes:
        sent_s: When the packet was sent.
        known_s: When the sender detects the loss.
        packets_after: The number of packets sent after it.
        on_earlier: Called when `known_s` moves to an earlier time.
    """

    sent_s: float
    known_s: float
    packets_after: int
    on_earlier: list[Callable[[], None]] = field(default_factory=list)


class Sent(NamedTuple):
    """The result of sending a message.

    Attributes:
        left_s: When its last byte has left.
        in_time_s: When it arrives without losses.
        one_way_s: The one-way time of a packet.
        losses: The losses, of this message or earlier ones, that it waits for.
    """

    left_s: float
    in_time_s: float
    one_way_s: float
    losses: tuple[PacketLoss, ...]

    @property
    def there_s(self) -> float:
        """The time when the message is complete, as currently known."""
        return max([self.in_time_s, *(loss.known_s + self.one_way_s for loss in self.losses)])


class _Flight(NamedTuple):
    """Packets that are acknowledged together."""

    known_s: float
    packets: int


class LossyWindow:
    """A simulated connection over a path that loses packets and carries nothing else.

    Args:
        growth: The window growth of its congestion control.
        loss: The share of packets lost.
        rtt_s: The round trip in seconds.
        one_way_s: The one-way time of a packet in seconds.
        packet_s: The seconds for a full packet at the path's slowest hop.
        draw: The random generator for losses.
    """

    def __init__(
        self, growth: Growth, loss: float, rtt_s: float, one_way_s: float, packet_s: float, draw: Random
    ) -> None:
        self._growth, self._loss, self._draw = growth, loss, draw
        self._rtt_s, self._one_way_s, self._packet_s = rtt_s, one_way_s, packet_s
        self.window = float(INITIAL_WINDOW_PACKETS)
        self._merge_s = MERGE_SHARE * rtt_s
        self._threshold = math.inf
        self._acks: deque[_Flight] = deque()
        self._in_flight = 0
        self._delayed_ack_s = math.inf  # when a single packet's delayed acknowledgement arrives
        self._ack_separately = (
            False  # whether the next packets are acknowledged separately, since they reveal a loss
        )
        self._line_free_s = -math.inf  # when the path's slowest hop has sent everything
        self._losses: list[PacketLoss] = []  # undetected losses, by time of detection
        self._retransmitted: list[float] = []  # when retransmissions are acknowledged
        self._awaited: list[PacketLoss] = []  # losses that messages may wait for
        self._reduced_s = -math.inf
        self._recovered_until_s = -math.inf
        self._use = WindowUse()
        self._requested_s = self._sent_s = -math.inf
        self._next_loss = self._draw_next_loss()

    def send(self, packets: int, now_s: float) -> Sent:
        """Send packets after those of earlier calls, at `now_s` or later."""
        at_s = max(now_s, self._requested_s)
        self._process_until(at_s)
        if not self._in_flight and at_s > self._sent_s > -math.inf:
            self._growth.idle(at_s - self._sent_s)
        left = packets
        while left:
            self._process_until(at_s)
            room = int(self.window) - self._in_flight
            if room < 1:
                self._track_use(at_s, full=True)
                at_s = self._next_s()
                continue
            batch = min(left, room, self._next_loss)
            begins_s = max(at_s, self._line_free_s)
            if self._losses:
                self._reveal_losses(begins_s + self._packet_s, batch)
            self._line_free_s = begins_s + batch * self._packet_s
            left -= batch
            self._next_loss -= batch
            last_lost = not self._next_loss
            if batch > last_lost:
                self._add_flight(begins_s + self._packet_s + self._rtt_s, batch - last_lost)
            if last_lost:
                self._next_loss = self._draw_next_loss()
                self._lose(self._line_free_s)
        self._track_use(at_s, full=int(self.window) <= self._in_flight)
        self._requested_s, self._sent_s = at_s, max(at_s, self._line_free_s)
        there_s = self._line_free_s + self._one_way_s
        late = tuple(loss for loss in self._awaited if loss.known_s + self._one_way_s > there_s)
        self._awaited = list(late)
        return Sent(self._line_free_s, there_s, self._one_way_s, late)

    def _reveal_losses(self, sent_s: float, packets: int) -> None:
        """Update when losses are detected, given more packets after them."""
        for loss in self._losses:
            if loss.packets_after >= DUP_THRESHOLD:
                continue
            loss.packets_after += packets
            round_trips = 1 if loss.packets_after >= DUP_THRESHOLD else 1 + REORDERING
            known_s = sent_s + self._rtt_s * round_trips
            if known_s < loss.known_s:
                loss.known_s = known_s
                for callback in loss.on_earlier:
                    callback()
        self._losses.sort(key=attrgetter("known_s"))

    def _draw_next_loss(self) -> int:
        """Draw the number of packets up to and including the next lost one."""
        return 1 + int(math.log(1.0 - self._draw.random()) / math.log1p(-self._loss))

    def _add_flight(self, known_s: float, packets: int) -> None:
        """Add acknowledgements; merge those close in time at their mean, or a window would split into many."""
        self._in_flight += packets
        if self._delayed_ack_s < math.inf:
            packets += 1
        self._delayed_ack_s = math.inf
        if packets % PACKETS_PER_ACK:
            packets -= 1
            self._delayed_ack_s = known_s + DELAYED_ACK_S
            if not packets:
                return
        if self._acks and not self._ack_separately and 0 <= known_s - self._acks[-1].known_s < self._merge_s:
            last = self._acks.pop()
            both = last.packets + packets
            known_s = (last.known_s * last.packets + known_s * packets) / both
            packets = both
        self._ack_separately = False
        self._acks.append(_Flight(known_s, packets))

    def _lose(self, sent_s: float) -> None:
        """Lose a packet; a timeout detects it unless later packets do."""
        loss = PacketLoss(sent_s, sent_s + 2 * self._rtt_s + MIN_RTO_S, 0)
        self._in_flight += 1
        insort(self._losses, loss, key=attrgetter("known_s"))
        self._awaited.append(loss)
        self._ack_separately = True

    def _next_s(self) -> float:
        """Return the time of the next acknowledgement or loss detection."""
        next_s = self._acks[0].known_s if self._acks else math.inf
        if self._losses:
            next_s = min(next_s, self._losses[0].known_s)
        if self._retransmitted:
            next_s = min(next_s, self._retransmitted[0])
        return min(next_s, self._delayed_ack_s)

    def _process_until(self, now_s: float) -> None:
        """Process all acknowledgements and loss detections until now, in order."""
        while (next_s := self._next_s()) <= now_s:
            if self._losses and self._losses[0].known_s <= next_s:
                self._reduce(self._losses.pop(0))
            elif self._retransmitted and self._retransmitted[0] <= next_s:
                self._in_flight -= 1
                self._grow(_Flight(self._retransmitted.pop(0), 1))
            elif self._delayed_ack_s <= next_s:
                self._in_flight -= 1
                self._grow(_Flight(self._delayed_ack_s, 1))
                self._delayed_ack_s = math.inf
            else:
                flight = self._acks.popleft()
                self._in_flight -= flight.packets
                self._grow(flight)

    def _reduce(self, loss: PacketLoss) -> None:
        """Retransmit a lost packet, and reduce the window once for all losses of a round trip."""
        known_s, sent_s = loss.known_s, loss.sent_s
        if self._draw.random() < self._loss:  # the retransmission is lost, too, which later packets reveal
            loss.known_s += (1 + REORDERING) * self._rtt_s
            loss.packets_after = DUP_THRESHOLD
            insort(self._losses, loss, key=attrgetter("known_s"))
        else:
            insort(self._retransmitted, known_s + self._rtt_s)
        self._recovered_until_s = max(self._recovered_until_s, known_s + self._rtt_s)
        if sent_s > self._reduced_s:
            self._reduced_s = known_s
            self.window = self._threshold = window_after_loss(self._growth, self.window)

    def _grow(self, flight: _Flight) -> None:
        """Grow the window if it was full, or in slow start if half of it was used."""
        if flight.known_s < self._recovered_until_s:
            return
        if self.window < self._threshold:
            if self._use.allows_slow_start(self.window):
                doubled = self.window + flight.packets
                self.window = min(doubled, max(self.window, self._threshold))
                if self._growth.uses_hystart and self.window * self._packet_s > self._rtt_s / 2:
                    self._threshold = self.window
        elif self._use.is_full:
            left = flight.packets
            while left > 0:
                self.window = self._growth.grown(
                    self.window, min(left, PACKETS_PER_ACK), flight.known_s, self._rtt_s
                )
                left -= PACKETS_PER_ACK

    def _track_use(self, now_s: float, *, full: bool) -> None:
        """Record the window's use, which is valid for a round trip."""
        self._use.record(full, self._in_flight, now_s, self._acks[-1].known_s if self._acks else now_s)

    def shift(self, seconds: float) -> None:
        """Move the time origin forward by this many seconds."""
        self._acks = deque(_Flight(own.known_s - seconds, own.packets) for own in self._acks)
        for loss in {*self._losses, *self._awaited}:
            loss.sent_s -= seconds
            loss.known_s -= seconds
        self._retransmitted = [known_s - seconds for known_s in self._retransmitted]
        self._delayed_ack_s -= seconds
        self._line_free_s -= seconds
        self._reduced_s -= seconds
        self._recovered_until_s -= seconds
        self._use.shift(seconds)
        self._requested_s -= seconds
        self._sent_s -= seconds
        self._growth.shift(seconds)

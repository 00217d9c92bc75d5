"""Congestion control per connection: the interface, loss-based windows, HyStart, and delivery rate sampling."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from testbed.net.paths.congestion import Growth
from testbed.net.paths.congestion.linux_tcp import INITIAL_WINDOW_PACKETS, WindowUse, window_after_loss

PACE_SHARE = 1024  # the NIC may queue 1/1024 s of a connection's data at its pacing rate (`sk_pacing_shift`)


@dataclass(slots=True)
class AckSample:
    """The content of an acknowledgement, in packets and seconds; the object is reused for the next one.

    Attributes:
        now_s: Current time.
        delivered: Number of newly delivered packets.
        advanced: Whether the cumulative acknowledgement advanced.
        lost: Number of newly lost packets.
        in_flight: Number of packets in flight now.
        before: Number of packets in flight before this acknowledgement.
        recovering: Whether losses are being repaired.
        latest_s: Round-trip time of the packet sent last; negative if unknown.
        least_s: Minimum round-trip time.
        departs_s: When the next packet may leave.
        sent: Number of packets transmitted so far, including retransmissions.
    """

    now_s: float = 0.0
    delivered: int = 0
    advanced: bool = False
    lost: int = 0
    in_flight: int = 0
    before: int = 0
    recovering: bool = False
    latest_s: float = -1.0
    least_s: float = 0.0
    departs_s: float = 0.0
    sent: int = 0


class Control(ABC):
    """The congestion control of one connection; `window` is in packets."""

    paces: ClassVar[bool] = False
    """Whether packets are paced at its rate, and stamped for rate samples."""

    window: float = float(INITIAL_WINDOW_PACKETS)

    @abstractmethod
    def pace(self, packet_bytes: int, out: int, smoothed_s: float) -> float:
        """Return the pacing rate in bytes per second, from `out` unacknowledged packets and the smoothed round trip."""

    def stamp(self, now_s: float, first: bool) -> Stamp | None:
        """Return the stamp of a sent packet if rates are measured; `first` is true if nothing else is in flight."""
        return None

    def on_delivered(self, sent_s: float, number: int, stamp: Stamp) -> None:  # noqa: B027 - most measure nothing
        """Record a delivered packet."""

    def on_app_limited(self, in_flight: int) -> None:  # noqa: B027 - most do not mind
        """Record that the application limits sending."""

    def on_restart(self, now_s: float, idle_s: float) -> None:  # noqa: B027 - most do not mind
        """Restart after nothing was in flight for `idle_s`."""

    def on_window_use(self, full: bool, out: int, unacknowledged: int, next_byte: int) -> None:  # noqa: B027
        """Record that all permitted data has been sent; `full` is true if the window limits sending."""

    def on_rtt_sample(  # noqa: B027 - most use it only with the rest
        self, now_s: float, latest_s: float, unacknowledged: int, next_byte: int, pace: Callable[[], float]
    ) -> None:
        """Record a round-trip sample; `pace` returns Linux's pacing rate."""

    @abstractmethod
    def on_ack(self, ack: AckSample) -> None:
        """Process an acknowledgement."""

    @abstractmethod
    def enter_recovery(self, sent: int, *, after_timeout: bool) -> None:
        """Start recovery; `sent` counts transmitted packets, `after_timeout` is set for losses sent after a timeout."""

    def exit_recovery(self) -> None:  # noqa: B027 - most end it themselves
        """End recovery."""

    @abstractmethod
    def on_probe_repair(self) -> None:
        """React to a loss that a tail loss probe has repaired."""

    @abstractmethod
    def on_timeout(self, in_flight: int, *, is_new_episode: bool) -> None:
        """React to a retransmission timeout; `is_new_episode` is true if it starts a new loss episode."""

    def undo(self) -> None:  # noqa: B027 - most do not need it
        """Undo the last timeout, which was spurious."""

    @abstractmethod
    def shift(self, seconds: float) -> None:
        """Move recorded times `seconds` back."""


class LossBasedControl(Control):
    """A window that grows by a `Growth` until packets are lost; during recovery it follows RFC 6937 (PRR)."""

    def __init__(self, growth: type[Growth]) -> None:
        self.window = float(INITIAL_WINDOW_PACKETS)
        self._growth = growth()
        self._hystart = HyStart() if growth.uses_hystart else None
        self._threshold = math.inf
        self._least_s = math.inf  # minimum round trip of data, excluding the handshake
        self._undo_state = self.window, self._threshold  # the state before the last timeout
        # PRR: window before recovery, packets delivered since, packets transmitted when it began
        self._prior = self._delivered_since = self._transmitted_before = 0
        self._use = WindowUse()

    def pace(self, packet_bytes: int, out: int, smoothed_s: float) -> float:
        """Return the rate that Linux computes although nothing is paced by it (`tcp_update_pacing_rate`)."""
        window = self.window
        gain = 2.0 if window < self._threshold / 2 else 1.2
        return gain * packet_bytes * (window if window >= out else out) / smoothed_s

    def on_restart(self, now_s: float, idle_s: float) -> None:
        """Stop the growth's clock for the idle time."""
        self._growth.idle(idle_s)

    def on_window_use(self, full: bool, out: int, unacknowledged: int, next_byte: int) -> None:
        """Record how the window is used in a round trip."""
        self._use.record(full, out, unacknowledged, next_byte)

    def on_rtt_sample(
        self, now_s: float, latest_s: float, unacknowledged: int, next_byte: int, pace: Callable[[], float]
    ) -> None:
        """Let HyStart end slow start."""
        self._least_s = min(self._least_s, latest_s)
        if self._hystart and self.window < self._threshold:
            window = int(self.window)
            if self._hystart.should_exit(now_s, unacknowledged, next_byte, latest_s, window, pace()):
                self._threshold = float(window)

    def on_ack(self, ack: AckSample) -> None:
        """Reduce the window in recovery, else grow it."""
        if ack.recovering:
            self._reduce(ack, advance_only=ack.advanced and not ack.lost)
        elif ack.advanced:
            self._grow(ack.delivered, ack.now_s)

    def _reduce(self, ack: AckSample, *, advance_only: bool) -> None:
        """Apply proportional rate reduction (`tcp_cwnd_reduction`)."""
        delivered, in_flight, taken = ack.delivered, ack.in_flight, ack.sent - self._transmitted_before
        if not delivered:
            return
        self._delivered_since += delivered
        threshold = int(self._threshold)
        room = threshold - in_flight
        if room < 0:
            sample = -(-threshold * self._delivered_since // self._prior) - taken
        else:
            sample = min(room, max(self._delivered_since - taken, delivered) + advance_only)
        self.window = float(in_flight + max(sample, 0 if taken else 1))

    def _grow(self, delivered: int, now_s: float) -> None:
        window = self.window
        if window < self._threshold:
            if not self._use.allows_slow_start(window):
                return
            self.window = min(window + delivered, self._threshold)
            delivered -= int(self.window - window)
        if delivered > 0 and self._use.is_full and self.window >= self._threshold:
            # the kernel's minimum is 0 until it has a sample, such as after the loss of a whole window
            least_s = self._least_s if self._least_s < math.inf else 0.0
            self.window = self._growth.grown(self.window, delivered, now_s, least_s)

    def enter_recovery(self, sent: int, *, after_timeout: bool) -> None:
        """Start proportional rate reduction."""
        self._prior, self._transmitted_before = int(self.window), sent
        self._delivered_since = 0
        if not after_timeout:
            self._threshold = window_after_loss(self._growth, self.window)

    def exit_recovery(self) -> None:
        """Set the window to the threshold."""
        self.window = self._threshold

    def on_probe_repair(self) -> None:
        """Reduce the window as for any loss."""
        self._threshold = window_after_loss(self._growth, self.window)
        self.window = self._threshold

    def on_timeout(self, in_flight: int, *, is_new_episode: bool) -> None:
        """Reduce the window to one packet and reset the growth (`tcp_enter_loss`)."""
        if is_new_episode:
            self._undo_state = self.window, self._threshold
            self._threshold = window_after_loss(self._growth, self.window)
            self._growth = type(self._growth)()
            if self._hystart:
                self._hystart.reset()
        self.window = float(in_flight + 1)

    def undo(self) -> None:
        """Restore window and threshold (`tcp_undo_cwnd_reduction`); the growth's state stays reset."""
        window, threshold = self._undo_state
        self.window, self._threshold = max(self.window, window), max(self._threshold, threshold)

    def shift(self, seconds: float) -> None:
        """Move recorded times `seconds` back."""
        self._growth.shift(seconds)
        if self._hystart:
            self._hystart.shift(seconds)


LEAST_WINDOW = 16  # packets
TRAIN_S = 2e-3  # maximum gap between acknowledgements of one train
SAMPLES = 8  # round-trip samples per round
# bounds of the delay threshold, which is an eighth of the minimum round trip
LEAST_DELAY_S, MOST_DELAY_S = 4e-3, 16e-3
# allowance for acknowledgements that segmentation offload delays
GSO_BYTES, MOST_BATCH_S = 1 << 16, 1e-3


class HyStart:
    """HyStart, which ends slow start before a loss, as in Linux's CUBIC (`hystart_update`)."""

    def __init__(self) -> None:
        self.is_done = False
        self._least_s = math.inf
        self._round_s = self._train_s = -math.inf
        self._end = -1
        self._samples, self._current_s = 0, math.inf

    def should_exit(
        self,
        now_s: float,
        unacknowledged: int,
        next_byte: int,
        round_trip_s: float,
        window: int,
        pace: float,
    ) -> bool:
        """Process an acknowledgement and return whether slow start should end.

        `unacknowledged` and `next_byte` are the first byte that is not acknowledged and the first that is not sent.
        `pace` is in bytes per second.
        """
        self._least_s = min(self._least_s, round_trip_s)
        if self.is_done or window < LEAST_WINDOW:
            return False
        if unacknowledged > self._end:
            self._round_s = self._train_s = now_s
            self._end = next_byte
            self._samples, self._current_s = 0, math.inf
        if now_s - self._train_s <= TRAIN_S:
            self._train_s = now_s
            batch_s = min(MOST_BATCH_S, 4 * GSO_BYTES / pace)
            if now_s - self._round_s > (self._least_s + batch_s) / 2:
                self.is_done = True
        self._current_s = min(self._current_s, round_trip_s)
        if self._samples < SAMPLES:
            self._samples += 1
        elif self._current_s > self._least_s + min(max(self._least_s / 8, LEAST_DELAY_S), MOST_DELAY_S):
            self.is_done = True
        return self.is_done

    def reset(self) -> None:
        """Reset after a timeout."""
        self.is_done = False
        self._end = -1

    def shift(self, seconds: float) -> None:
        """Move recorded times `seconds` back."""
        self._round_s -= seconds
        self._train_s -= seconds


Stamp = tuple[int, float, float, bool]
"""State when a packet was sent: packets delivered so far, when the last of those was delivered, when it was sent, and
whether the application limited sending.
"""


@dataclass(slots=True)
class Sample:
    """A rate sample of one acknowledgement: the packets delivered in `interval_s`; both are 0 if unknown."""

    round_trip_s: float
    acknowledged: int
    lost: int
    prior_in_flight: int
    packets: int = 0
    interval_s: float = 0.0
    prior_delivered: int = 0
    limited: bool = False


class DeliveryRate:
    """A sampler of one connection's delivery rate, as Linux does for congestion-control algorithms (`tcp_rate.c`)."""

    def __init__(self) -> None:
        self.delivered = 0
        self.delivered_s = self.first_sent_s = 0.0
        self.limited_until = 0
        # the delivered packet that was sent last: its send time and number
        self._newest_s, self._newest = -1.0, -1
        self._prior: Stamp | None = None
        self._sending_s = 0.0

    def sent(self, now_s: float, *, first: bool) -> Stamp:
        """Return the stamp of a packet that is being sent; `first` is true if nothing is in flight."""
        if first:
            self.first_sent_s = self.delivered_s = now_s
        return self.delivered, self.delivered_s, self.first_sent_s, bool(self.limited_until)

    def limit(self, in_flight: int) -> None:
        """Record that the application limits sending."""
        self.limited_until = (self.delivered + in_flight) or 1

    def on_delivered(self, sent_s: float, number: int, stamp: Stamp) -> None:
        """Record a delivered packet."""
        self.delivered += 1
        newest_s = self._newest_s
        if self._prior is None or sent_s > newest_s or (sent_s == newest_s and number > self._newest):
            self._newest_s, self._newest, self._prior = sent_s, number, stamp
            self.first_sent_s = sent_s
            self._sending_s = sent_s - stamp[2]

    def sample(self, now_s: float, least_s: float, sample: Sample) -> None:
        """Complete a sample with the packets delivered since the last one; `least_s` is the minimum round trip."""
        if self.limited_until and self.delivered > self.limited_until:
            self.limited_until = 0
        if sample.acknowledged:
            self.delivered_s = now_s
        prior, self._prior = self._prior, None
        if prior is None:
            return
        delivered, delivered_s, _, limited = prior
        sample.prior_delivered, sample.limited = delivered, limited
        interval_s = max(self._sending_s, now_s - delivered_s)
        if interval_s < least_s:
            return
        sample.packets, sample.interval_s = self.delivered - delivered, interval_s

    def shift(self, seconds: float) -> None:
        """Move recorded times `seconds` back."""
        self.delivered_s -= seconds
        self.first_sent_s -= seconds
        self._newest_s -= seconds

"""Congestion-control algorithms: how much a sender may have in flight, and how fast it may send. No sockets, no clock.

A window counts packets of one size, from their sending to the first feedback. Subclasses change `window_packets` and
`rate_bps` on feedback.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from testbed.comm.transport.datagram.recoveries.base import Feedback
from testbed.comm.transport.datagram.rtt_estimator import RttEstimator

# minimum of a constant window: TCP's initial window (RFC 6928)
MIN_WINDOW_PACKETS = 10.0
GROWTH = 1 / 8  # share of a window per round trip


@dataclass(frozen=True)
class Limits:
    """The parameters of a control.

    Attributes:
        packet_bytes: Size of a full packet, as links count it.
        window_bytes: Size of a constant window.
        line_bps: Rate of this rank's NIC.
        rate_scale: Ratio of emulated to real rates, for steps in bit/s.
        host_s: Time that hosts, not the network, may add to a round trip.
        min_window_packets: The smallest constant window.
        late_packets: How far a constant window may grow to hide host delays, while nothing is lost.
        path_bps: Rate of the path's narrowest link; 0 if unknown.
        round_trip_s: Round trip of the empty path; infinite if unknown.
    """

    packet_bytes: int
    window_bytes: float = math.inf
    line_bps: float = math.inf
    rate_scale: float = 1.0
    host_s: float = 0.0
    min_window_packets: float = MIN_WINDOW_PACKETS
    late_packets: float = 0.0
    path_bps: float = 0.0
    round_trip_s: float = math.inf


class Control:
    """The control of one pair in one direction; this base class limits nothing."""

    uses_ecn: ClassVar[bool] = False
    """Whether packets are ECN-capable, so that links mark them instead of dropping them."""

    uses_grants: ClassVar[bool] = False
    """Whether the receiver grants credits; see `credits`."""

    def __init__(self, limits: Limits, round_trips: RttEstimator) -> None:
        self.limits, self.round_trips = limits, round_trips
        self.window_packets = math.inf
        self.rate_bps = math.inf

    def on_feedback(self, feedback: Feedback, now_s: float) -> None:
        """Handle an acknowledgement or a timeout."""

    def on_sent(self, packets: int, now_s: float) -> None:
        """Handle packets that were sent."""

    def advance(self, now_s: float) -> float:
        """Advance timers to `now_s`; return when to call again even if nothing happens: infinite for never."""
        return math.inf


class Window(Control):
    """A constant window of the bandwidth-delay product, or the scenario's window; at least ten packets.

    If the NIC is faster than one window per round trip, packets are paced at that rate, because a burst would fill the
    queue of the narrowest link. To hide host delays, the window grows by an eighth each round trip, up to
    `late_packets`, until something is lost. Then half of the growth is undone, and the window never grows that far
    again.
    """

    def __init__(self, limits: Limits, round_trips: RttEstimator) -> None:
        super().__init__(limits, round_trips)
        self._own = max(limits.min_window_packets, limits.window_bytes / limits.packet_bytes)
        self._late, self._max_late = 0.0, limits.late_packets
        self.window_packets = self._own
        self._pace(round_trips.smoothed_s)

    def on_feedback(self, feedback: Feedback, now_s: float) -> None:
        """See Control."""
        if feedback.round_trip_s is not None:
            self._pace(self.round_trips.least_s)
        if feedback.holes or feedback.lost:
            self._late = self._max_late = self._late / 2
        else:
            self._late = min(self._late + feedback.acked * GROWTH, self._max_late)
        self.window_packets = self._own + self._late

    def _pace(self, round_trip_s: float) -> None:
        rate_bps = self._own * self.limits.packet_bytes * 8 / max(round_trip_s, 1e-9)
        rate_bps = max(rate_bps, self.limits.path_bps)  # late hosts inflate round trips
        self.rate_bps = rate_bps if rate_bps < self.limits.line_bps else math.inf

"""Additive increase, multiplicative decrease: TCP Reno's window (RFC 5681), with RFC 6928's initial window of 10."""

from __future__ import annotations

import math

from testbed.comm.transport.datagram.controls.base import Control, Limits
from testbed.comm.transport.datagram.recoveries.base import Feedback
from testbed.comm.transport.datagram.rtt_estimator import RttEstimator

FIRST_PACKETS = 10.0
MIN_WINDOW_PACKETS = 2.0
DECREASE = 0.5


class Aimd(Control):
    """Doubles each round trip until the first loss; then grows by one packet per round trip, and halves on a loss."""

    def __init__(self, limits: Limits, round_trips: RttEstimator) -> None:
        super().__init__(limits, round_trips)
        self.window_packets = FIRST_PACKETS
        self._threshold = math.inf
        self._last_cut_s = -math.inf  # time of the last reduction

    def on_feedback(self, feedback: Feedback, now_s: float) -> None:
        """See Control. Only the first loss of a round trip counts."""
        if feedback.timed_out:
            self._reduce_window(now_s)
            self.window_packets = MIN_WINDOW_PACKETS
        elif feedback.lost and now_s - self._last_cut_s > self.round_trips.smoothed_s:
            self._reduce_window(now_s)
        elif self.window_packets < self._threshold:
            self.window_packets += feedback.acked
        else:
            self.window_packets += feedback.acked / self.window_packets

    def _reduce_window(self, now_s: float) -> None:
        self._last_cut_s = now_s
        self.window_packets = self._threshold = max(MIN_WINDOW_PACKETS, self.window_packets * DECREASE)

"""Additive increase, multiplicative decrease: TCP Reno's window (RFC 5681), with RFC 6928's first window of 10."""

from __future__ import annotations

import math

from testbed.comm.transport.datagram.controls.base import Control, Limits
from testbed.comm.transport.datagram.recoveries.base import Feedback
from testbed.comm.transport.datagram.rtt_estimator import RttEstimator

FIRST_PACKETS = 10.0
MIN_WINDOW_PACKETS = 2.0
DECREASE = 0.5


class Aimd(Control):
    """Doubles each round trip until the first loss, then one packet more each round trip, half of it at a loss."""

    def __init__(self, limits: Limits, round_trips: RttEstimator) -> None:
        super().__init__(limits, round_trips)
        self.window_packets = FIRST_PACKETS
        self._threshold = math.inf
        self._cut_s = -math.inf  # when it was cut last

    def heard(self, news: Feedback, now_s: float) -> None:
        """See Control; of the losses of one round trip the first counts."""
        if news.late:
            self._cut(now_s)
            self.window_packets = MIN_WINDOW_PACKETS
        elif news.lost and now_s - self._cut_s > self.round_trips.smoothed_s:
            self._cut(now_s)
        elif self.window_packets < self._threshold:
            self.window_packets += news.acked
        else:
            self.window_packets += news.acked / self.window_packets

    def _cut(self, now_s: float) -> None:
        self._cut_s = now_s
        self.window_packets = self._threshold = max(MIN_WINDOW_PACKETS, self.window_packets * DECREASE)

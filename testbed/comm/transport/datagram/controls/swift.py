"""Swift (Kumar et al., SIGCOMM 2020, "Delay is Simple and Effective for Congestion Control in the Datacenter").

The window depends on the round trip alone. Below a target the window grows by `INCREASE` packets per round trip. Above
it the window shrinks, once per round trip, by the relative excess, at most by half. The target is the round trip of the
empty path plus a queueing delay that is longer for small windows. The empty round trip comes from the topology, instead
of the paper's base and hop times. If the path is unknown, the base is the shortest round trip seen. That is too long
for flows that start when queues are full, and unfair to other flows. Constants are those of htsim (swift.cpp), which
describes them as guesses at the paper's values.
"""

from __future__ import annotations

import math

from testbed.comm.transport.datagram.controls.base import Control, Limits
from testbed.comm.transport.datagram.recoveries.base import Feedback
from testbed.comm.transport.datagram.rtt_estimator import RttEstimator

INCREASE = 1.0
DECREASE = 0.8
MAX_DECREASE = 0.5
MIN_WINDOW_PACKETS, MAX_WINDOW_PACKETS = 0.1, math.inf
# flow scaling: between these windows the target grows by up to `RANGE_SHARE` of the queueing target
RANGE_SHARE = 5.0
RANGE_MIN_PACKETS, RANGE_MAX_PACKETS = 0.1, 100.0
QUEUE_S = 25e-6  # htsim has 20 us, with a share for each hop
QUEUE_PACKETS = 8.0  # the least queueing target, at line rate: emulated rates are lower than the paper's
FIRST_PACKETS = 10.0


class Swift(Control):
    """The control of a pair. A window below one packet becomes a rate: one packet, then a pause."""

    def __init__(self, limits: Limits, round_trips: RttEstimator) -> None:
        super().__init__(limits, round_trips)
        self.window_packets = FIRST_PACKETS
        self._last_cut_s = -math.inf
        # until the first delay above the target the window doubles: the paper's flows start at line rate
        self._slow_start = True
        packet_s = limits.packet_bytes * 8 / limits.line_bps
        self._queue_s = max(QUEUE_S, QUEUE_PACKETS * packet_s)
        low, high = 1 / math.sqrt(RANGE_MIN_PACKETS), 1 / math.sqrt(RANGE_MAX_PACKETS)
        self._scaling = RANGE_SHARE * self._queue_s / (low - high)
        self._offset = -self._scaling * high

    @property
    def target_s(self) -> float:
        """The target round trip, in seconds."""
        scaled_s = self._scaling / math.sqrt(max(self.window_packets, MIN_WINDOW_PACKETS)) + self._offset
        within_s = min(max(scaled_s, 0.0), RANGE_SHARE * self._queue_s)
        base_s = min(self.limits.round_trip_s, self.round_trips.least_s)
        return base_s + self.limits.host_s + self._queue_s + within_s

    def on_feedback(self, feedback: Feedback, now_s: float) -> None:
        """See Control."""
        may_cut = now_s - self._last_cut_s >= self.round_trips.smoothed_s
        before = self.window_packets
        if feedback.timed_out:
            self.window_packets *= 1 - MAX_DECREASE
        elif feedback.round_trip_s is not None and feedback.round_trip_s >= self.target_s:
            if may_cut:
                over = (feedback.round_trip_s - self.target_s) / feedback.round_trip_s
                self.window_packets *= max(1 - DECREASE * over, 1 - MAX_DECREASE)
        elif feedback.lost:
            if may_cut:
                self.window_packets *= 1 - MAX_DECREASE
        elif self._slow_start:
            self.window_packets += feedback.acked
        elif self.window_packets >= 1:
            self.window_packets += INCREASE * feedback.acked / self.window_packets
        else:
            self.window_packets += INCREASE * feedback.acked
        if self.window_packets < before:
            self._last_cut_s = now_s
            self._slow_start = False
        self.window_packets = max(self.window_packets, MIN_WINDOW_PACKETS)
        slow = self.window_packets < 1
        round_trip_s = max(self.round_trips.smoothed_s, 1e-9)
        bits = self.window_packets * self.limits.packet_bytes * 8
        self.rate_bps = bits / round_trip_s if slow else math.inf

"""Swift (Kumar et al., SIGCOMM 2020, "Delay is Simple and Effective for Congestion Control in the Datacenter").

By the round trip alone: below a target the window grows, by `INCREASE` packets a round trip, above it it shrinks, once
a round trip, by how far above it is, by half at most. The target is the round trip of the empty path, as the topology
has it, in place of the paper's base and hop times, and a queueing delay that is longer for small windows. Where nobody
knows the path it is the shortest seen, which is too long for who begins when queues stand, and unfair to the others.
Constants are those of htsim (swift.cpp), which calls them guesses at the paper's.
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
# of flow scaling: the target is longer by up to `RANGE_SHARE` of the queueing target, between these windows
RANGE_SHARE = 5.0
RANGE_MIN_PACKETS, RANGE_MAX_PACKETS = 0.1, 100.0
QUEUE_S = 25e-6  # htsim has 20 us, and a share of it for each hop
QUEUE_PACKETS = 8.0  # what it is at least, at line rate: emulated rates are lower than the paper's
FIRST_PACKETS = 10.0


class Swift(Control):
    """A window of less than one packet is one packet with a pause, as a rate."""

    def __init__(self, limits: Limits, round_trips: RttEstimator) -> None:
        super().__init__(limits, round_trips)
        self.window_packets = FIRST_PACKETS
        self._cut_s = -math.inf
        # no delay above the target yet: the window doubles, as the paper's flows start at line rate
        self._started = True
        packet_s = limits.packet_bytes * 8 / limits.line_bps
        self._queue_s = max(QUEUE_S, QUEUE_PACKETS * packet_s)
        low, high = 1 / math.sqrt(RANGE_MIN_PACKETS), 1 / math.sqrt(RANGE_MAX_PACKETS)
        self._scaling = RANGE_SHARE * self._queue_s / (low - high)
        self._offset = -self._scaling * high

    @property
    def target_s(self) -> float:
        """The round trip aimed for."""
        scaled_s = self._scaling / math.sqrt(max(self.window_packets, MIN_WINDOW_PACKETS)) + self._offset
        within_s = min(max(scaled_s, 0.0), RANGE_SHARE * self._queue_s)
        base_s = min(self.limits.round_trip_s, self.round_trips.least_s)
        return base_s + self.limits.host_s + self._queue_s + within_s

    def heard(self, news: Feedback, now_s: float) -> None:
        """See Control."""
        may_cut = now_s - self._cut_s >= self.round_trips.smoothed_s
        before = self.window_packets
        if news.late:
            self.window_packets *= 1 - MAX_DECREASE
        elif news.round_trip_s is not None and news.round_trip_s >= self.target_s:
            if may_cut:
                over = (news.round_trip_s - self.target_s) / news.round_trip_s
                self.window_packets *= max(1 - DECREASE * over, 1 - MAX_DECREASE)
        elif news.lost:
            if may_cut:
                self.window_packets *= 1 - MAX_DECREASE
        elif self._started:
            self.window_packets += news.acked
        elif self.window_packets >= 1:
            self.window_packets += INCREASE * news.acked / self.window_packets
        else:
            self.window_packets += INCREASE * news.acked
        if self.window_packets < before:
            self._cut_s = now_s
            self._started = False
        self.window_packets = max(self.window_packets, MIN_WINDOW_PACKETS)
        slow = self.window_packets < 1
        round_trip_s = max(self.round_trips.smoothed_s, 1e-9)
        bits = self.window_packets * self.limits.packet_bytes * 8
        self.rate_bps = bits / round_trip_s if slow else math.inf

"""DCQCN's sender (Zhu et al., SIGCOMM 2015, "Congestion Control for Large-Scale RDMA Deployments").

Constants are the paper's, as in htsim (dcqcn.cpp) and the authors' ns-3 (bobzhuyb/ns3-rdma). The lowest rate and the
hyper increase are ns-3's: the paper gives no step for hyper increase, and ns-3's is ten times the additive one. Marks
count at most once per 50 us, like the receiver's notifications in ns-3. Steps in bit/s and the byte counter scale with
the emulated rates.
"""

from __future__ import annotations

import math
from typing import ClassVar

from testbed.comm.transport.datagram.controls.base import Control, Limits
from testbed.comm.transport.datagram.recoveries.base import Feedback
from testbed.comm.transport.datagram.rtt_estimator import RttEstimator

GAIN = 1 / 256
TIMER_S = 55e-6
NOTICE_S = 50e-6
COUNTER_BYTES = 10e6
FAST_STEPS = 5
STEP_BPS = 40e6
HYPER_STEP_BPS = 10 * STEP_BPS
MIN_RATE_BPS = 100e6
TIMER_CHECKS_PER_PACKET = 4  # checks while a packet waits for its send time


class Dcqcn(Control):
    """A purely rate-based control. Timers catch up with the time on each event."""

    uses_ecn: ClassVar[bool] = True

    def __init__(self, limits: Limits, round_trips: RttEstimator) -> None:
        super().__init__(limits, round_trips)
        self.rate_bps = self.target_bps = limits.line_bps
        self.alpha = 1.0
        self._last_mark_s = -TIMER_S
        self._alpha_s = self._timer_s = 0.0
        self._timer_steps = self._counter_steps = 0
        self._counted_bytes = 0.0  # bytes since the last step of the counter
        self._congested = False  # whether there was a mark since the rate was last at line rate

    def on_feedback(self, feedback: Feedback, now_s: float) -> None:
        """See Control."""
        self._catch_up(now_s)
        if feedback.marked and now_s - self._last_mark_s >= NOTICE_S:
            self._last_mark_s = now_s
            self.target_bps = self.rate_bps
            self.rate_bps = max(MIN_RATE_BPS * self.limits.rate_scale, self.rate_bps * (1 - self.alpha / 2))
            self.alpha = (1 - GAIN) * self.alpha + GAIN
            self._alpha_s = self._timer_s = now_s
            self._timer_steps = self._counter_steps = 0
            self._counted_bytes = 0.0
            self._congested = True

    def on_sent(self, packets: int, now_s: float) -> None:
        """See Control."""
        self._catch_up(now_s)
        if not self._congested:
            return
        self._counted_bytes += packets * self.limits.packet_bytes
        unit = COUNTER_BYTES * self.limits.rate_scale
        while self._counted_bytes >= unit:
            self._counted_bytes -= unit
            self._counter_steps += 1
            self._increase()

    def advance(self, now_s: float) -> float:
        """See Control. If the timer steps more often than packets leave, it is checked a few times per packet."""
        self._catch_up(now_s)
        if not self._congested:
            return math.inf
        packet_s = self.limits.packet_bytes * 8 / self.rate_bps
        return max(self._timer_s + TIMER_S, now_s + packet_s / TIMER_CHECKS_PER_PACKET)

    def _catch_up(self, now_s: float) -> None:
        if not self._congested:
            return
        quiet = int((now_s - self._alpha_s) / TIMER_S)
        if quiet > 0:
            self.alpha *= (1 - GAIN) ** quiet
            self._alpha_s += quiet * TIMER_S
        while self._congested and now_s - self._timer_s >= TIMER_S:
            self._timer_s += TIMER_S
            self._timer_steps += 1
            self._increase()

    def _increase(self) -> None:
        steps = self._timer_steps, self._counter_steps
        if min(steps) > FAST_STEPS:
            self.target_bps += (min(steps) - FAST_STEPS) * HYPER_STEP_BPS * self.limits.rate_scale
        elif max(steps) > FAST_STEPS:
            self.target_bps += STEP_BPS * self.limits.rate_scale
        line_bps = self.limits.line_bps
        self.target_bps = min(self.target_bps, line_bps)
        self.rate_bps = (self.target_bps + self.rate_bps) / 2
        if self.rate_bps > 0.9999 * line_bps:
            self.rate_bps = self.target_bps = line_bps
            self._congested = False

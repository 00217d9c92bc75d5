"""A window that grows by a packet each round trip, and is halved when one is lost."""

from __future__ import annotations

import math

from testbed.paths.congestion.base import CONGESTION_CONTROLS, CongestionControl, Growth

MATHIS = math.sqrt(1.5)


class RenoGrowth(Growth):
    """RFC 5681: half after a loss, a packet more for each window."""

    def after_loss(self, window: float) -> float:
        """Half."""
        return window / 2

    def grown(self, window: float, acknowledged: int, now_s: float, rtt_s: float) -> float:
        """By one when all of it is acknowledged."""
        return window + acknowledged / window


@CONGESTION_CONTROLS.register("reno")
class Reno(CongestionControl):
    """Mathis et al. 1997, "The macroscopic behavior of the TCP congestion avoidance algorithm"."""

    window = RenoGrowth

    @staticmethod
    def window_packets(loss: float, rtt_s: float) -> float:
        """The square root of 3/2 over the share that is lost."""
        return MATHIS / math.sqrt(loss)

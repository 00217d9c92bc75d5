"""A window that grows by a packet each round trip, and is halved when one is lost."""

from __future__ import annotations

import math

from testbed.net.paths.congestion.base import CONGESTION_CONTROLS, CongestionControl, WholeGrowth

MATHIS = math.sqrt(1.5)


class RenoGrowth(WholeGrowth):
    """RFC 5681: half after a loss, a packet more for each window."""

    def left(self, window: int) -> int:
        """Half."""
        return window >> 1

    def each(self, window: int, acknowledged: int, now_s: float, rtt_s: float) -> int:
        """All of the window."""
        return window


@CONGESTION_CONTROLS.register("reno")
class Reno(CongestionControl):
    """Mathis et al. 1997, "The macroscopic behavior of the TCP congestion avoidance algorithm"."""

    window = RenoGrowth

    @staticmethod
    def window_packets(loss: float, rtt_s: float) -> float:
        """The square root of 3/2 over the share that is lost."""
        return MATHIS / math.sqrt(loss)

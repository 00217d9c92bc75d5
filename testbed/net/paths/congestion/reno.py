"""Reno: a window that grows by one packet per round trip and is halved on a loss."""

from __future__ import annotations

import math

from testbed.net.paths.congestion.base import CONGESTION_CONTROLS, CongestionControl, WholeGrowth

RESPONSE_FACTOR = math.sqrt(1.5)  # Mathis et al. 1997


class RenoGrowth(WholeGrowth):
    """Reno's growth (RFC 5681)."""

    def reduced(self, window: int) -> int:
        """Return half of the window."""
        return window >> 1

    def acks_per_increment(self, window: int, acknowledged: int, now_s: float, rtt_s: float) -> int:
        """Return the window: one more packet per acknowledged window."""
        return window


@CONGESTION_CONTROLS.register("reno")
class Reno(CongestionControl):
    """Reno, with the response function of Mathis et al. 1997.

    "The macroscopic behavior of the TCP congestion avoidance algorithm".
    """

    window = RenoGrowth

    @staticmethod
    def window_packets(loss: float, rtt_s: float) -> float:
        """Return sqrt(3 / (2 * loss))."""
        return RESPONSE_FACTOR / math.sqrt(loss)

"""A window that grows by a packet each round trip, and is halved when one is lost."""

from __future__ import annotations

import math

from testbed.paths.congestion.base import CONGESTION_CONTROLS, CongestionControl

MATHIS = math.sqrt(1.5)


@CONGESTION_CONTROLS.register("reno")
class Reno(CongestionControl):
    """Mathis et al. 1997, "The macroscopic behavior of the TCP congestion avoidance algorithm"."""

    @staticmethod
    def window_packets(loss: float, rtt_s: float) -> float:
        """The square root of 3/2 over the share that is lost."""
        return MATHIS / math.sqrt(loss)

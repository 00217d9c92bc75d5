"""A window that grows with the cube of the time since a loss, and as Reno's where that is more."""

from __future__ import annotations

from testbed.paths.congestion.base import CONGESTION_CONTROLS, CongestionControl
from testbed.paths.congestion.reno import Reno

CUBIC, CUBIC_POWER = 1.054, 0.75


@CONGESTION_CONTROLS.register("cubic")
class Cubic(CongestionControl):
    """RFC 9438, section 5.1, with the round trip in seconds."""

    kept = 0.7
    growth = 3 * (1 - kept) / (1 + kept)  # as Reno's on average, which is more than its own on short paths

    @staticmethod
    def window_packets(loss: float, rtt_s: float) -> float:
        """Its own, or Reno's on short paths."""
        own: float = CUBIC * (rtt_s / loss) ** CUBIC_POWER
        return max(Reno.window_packets(loss, rtt_s), own)

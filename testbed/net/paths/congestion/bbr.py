"""BBR: a window from the measured bottleneck rate and minimum round trip."""

from __future__ import annotations

import math

from testbed.net.paths.congestion.base import CONGESTION_CONTROLS, CongestionControl


@CONGESTION_CONTROLS.register("bbr")
class Bbr(CongestionControl):
    """BBR version 1, which does not react to losses."""

    goes_by_losses = False
    paces = True
    startup = 2 / math.log(2) * 10  # `bbr_high_gain` times the initial window of RFC 6928

    @staticmethod
    def window_packets(loss: float, rtt_s: float) -> float:
        """Return infinity: losses do not limit the window."""
        return math.inf

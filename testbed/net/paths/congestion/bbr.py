"""A window by the bottleneck's rate and the least round trip that were measured."""

from __future__ import annotations

import math

from testbed.net.paths.congestion.base import CONGESTION_CONTROLS, CongestionControl


@CONGESTION_CONTROLS.register("bbr")
class Bbr(CongestionControl):
    """Its first version, which does not go by losses."""

    goes_by_losses = False
    paces = True
    startup = 2 / math.log(2) * 10  # `bbr_high_gain` times a first window of RFC 6928

    @staticmethod
    def window_packets(loss: float, rtt_s: float) -> float:
        """No bound."""
        return math.inf

"""BBR: a window from the measured bottleneck rate and minimum round trip."""

from __future__ import annotations

import math

from testbed.net.paths.congestion.base import CONGESTION_CONTROLS, CongestionControl
from testbed.net.paths.congestion.linux_tcp import INITIAL_WINDOW_PACKETS

HIGH_GAIN = 2 / math.log(2)  # gain of pacing and window while the rate doubles


@CONGESTION_CONTROLS.register("bbr")
class Bbr(CongestionControl):
    """BBR version 1, which does not react to losses."""

    goes_by_losses = False
    paces = True
    startup = HIGH_GAIN * INITIAL_WINDOW_PACKETS

    @staticmethod
    def window_packets(loss: float, rtt_s: float) -> float:
        """Return infinity: losses do not limit the window."""
        return math.inf

"""A window that grows with the cube of the time since a loss, and as Reno's where that is more."""

from __future__ import annotations

import math

from testbed.paths.congestion.base import CONGESTION_CONTROLS, CongestionControl, Growth
from testbed.paths.congestion.reno import Reno

CUBIC, CUBIC_POWER = 1.054, 0.75
SCALE, LEFT = 0.4, 0.7  # of RFC 9438: packets per cubic second; of a window after a loss
AS_RENO = 15 / 8  # windows acknowledged for each packet by which Reno's would be larger (`beta_scale`)
STANDS_S = 1 / 32  # so long Linux keeps what it found while the window is the same (`bictcp_update`)
MOST_ACKNOWLEDGED, FIRST_ACKNOWLEDGED = 100, 20  # for one packet: windows; packets where no loss was met
LEAST_ACKNOWLEDGED = 2.0


class CubicGrowth(Growth):
    """RFC 9438, as Linux has it: towards the window that met a loss, slowly near it; at least as Reno would.

    How many acknowledgements a packet more takes is found anew when the window has changed, or after a while: on short
    paths windows stand still for many round trips after a loss.
    """

    leaves_by_trains = True

    def __init__(self) -> None:
        self._met = 0.0  # the window that met the last loss
        self._since_s: float | None = None
        self._aim = self._back_s = self._as_reno = self._acknowledged = 0.0
        self._each = LEAST_ACKNOWLEDGED
        self._found_for, self._found_s = 0, -math.inf

    def after_loss(self, window: float) -> float:
        """Seven tenths; who had not come back to the window before aims lower (fast convergence)."""
        self._met = window * (1 + LEFT) / 2 if window < self._met else window
        self._since_s = None
        return window * LEFT

    def grown(self, window: float, acknowledged: int, now_s: float, rtt_s: float) -> float:
        """Towards what the cubic says of a round trip later, no more than half a packet for each acknowledged."""
        left = float(acknowledged)
        while left > 0:
            whole = int(window)
            if whole != self._found_for or now_s - self._found_s > STANDS_S:
                self._find(whole, now_s, rtt_s)
            some = min(left, (whole + 1 - window) * self._each)
            self._acknowledged += some
            left -= some
            window = float(whole + 1) if left > 0 else window + some / self._each
        return window

    def _find(self, window: int, now_s: float, rtt_s: float) -> None:
        self._found_for, self._found_s = window, now_s
        if self._since_s is None:
            self._since_s, self._as_reno, self._acknowledged = now_s, window, 0.0
            self._aim = max(float(window), self._met)
            self._back_s = ((self._aim - window) / SCALE) ** (1 / 3)
        aim = self._aim + SCALE * (now_s - self._since_s + rtt_s - self._back_s) ** 3
        each = window / (aim - window) if aim > window else MOST_ACKNOWLEDGED * window
        if not self._met:
            each = min(each, FIRST_ACKNOWLEDGED)
        more = int(self._acknowledged / (AS_RENO * window))
        self._acknowledged -= more * AS_RENO * window
        self._as_reno += more
        if self._as_reno > window:
            each = min(each, window / (self._as_reno - window))
        self._each = max(each, LEAST_ACKNOWLEDGED)

    def waited(self, seconds: float) -> None:
        """Its clock stands meanwhile (`cubictcp_cwnd_event`), but not the one of what it found."""
        if self._since_s is not None:
            self._since_s += seconds

    def shift(self, seconds: float) -> None:
        """All of its times."""
        self._found_s -= seconds
        if self._since_s is not None:
            self._since_s -= seconds


@CONGESTION_CONTROLS.register("cubic")
class Cubic(CongestionControl):
    """RFC 9438, section 5.1, with the round trip in seconds."""

    window = CubicGrowth

    @staticmethod
    def window_packets(loss: float, rtt_s: float) -> float:
        """Its own, or Reno's on short paths."""
        own: float = CUBIC * (rtt_s / loss) ** CUBIC_POWER
        return max(Reno.window_packets(loss, rtt_s), own)

"""A window that grows with the cube of the time since a loss, and as Reno's where that is more."""

from __future__ import annotations

import math

from testbed.clock import KERNEL_TICK_HZ, KERNEL_TICK_S
from testbed.net.paths.congestion.base import CONGESTION_CONTROLS, CongestionControl, WholeGrowth
from testbed.net.paths.congestion.reno import Reno

CUBIC, CUBIC_POWER = 1.054, 0.75
LEFT, WHOLE = 717, 1024  # of a window after a loss: RFC 9438's 0.7
TICKS_S = 1024  # a second has, of the cubic's time
SCALE = 410  # RFC 9438's 0.4 packets per cubic second, `bic_scale` times ten
CUBED = 40  # binary places of the cubic's figures
# eighths of a window that are acknowledged for each packet by which Reno's would be larger (`beta_scale`)
AS_RENO = 15
STANDS = KERNEL_TICK_HZ // 32  # jiffies that Linux keeps what it found while the window is the same
MOST_ACKNOWLEDGED, FIRST_ACKNOWLEDGED = 100, 20  # for one packet: windows; packets where no loss was met
LEAST_ACKNOWLEDGED = 2


class CubicGrowth(WholeGrowth):
    """RFC 9438, as Linux has it, in whole numbers (`bictcp_update`).

    Towards the window that met a loss, slowly near it; at least as Reno would. How many acknowledgements a packet more
    takes is found anew when the window has changed, or after a while: on short paths windows stand still for many round
    trips after a loss.
    """

    leaves_by_trains = True

    def __init__(self) -> None:
        super().__init__()
        self._met = 0  # the window that met the last loss
        self._since_s: float | None = None
        self._aim = self._back = self._as_reno = self._acknowledged = 0
        self._each = LEAST_ACKNOWLEDGED
        self._found_for, self._found_s = 0, -math.inf

    def left(self, window: int) -> int:
        """Seven tenths; who had not come back to the window before aims lower (fast convergence)."""
        self._met = window * (WHOLE + LEFT) // (2 * WHOLE) if window < self._met else window
        self._since_s = None
        return window * LEFT // WHOLE

    def each(self, window: int, acknowledged: int, now_s: float, rtt_s: float) -> int:
        """Towards what the cubic says of a round trip later, no more than half a packet for each acknowledged."""
        self._acknowledged += acknowledged
        waited = now_s // KERNEL_TICK_S - self._found_s // KERNEL_TICK_S
        if window == self._found_for and waited <= STANDS:
            return self._each
        if self._since_s is None or waited:
            self._find(window, acknowledged, now_s, rtt_s)
        self._be_as_reno(window)
        return self._each

    def _find(self, window: int, acknowledged: int, now_s: float, rtt_s: float) -> None:
        self._found_for, self._found_s = window, now_s
        if self._since_s is None:
            self._since_s, self._as_reno, self._acknowledged = now_s, window, acknowledged
            self._aim = max(window, self._met)
            self._back = round(((self._aim - window << CUBED) / SCALE) ** (1 / 3))
        later_s = math.ceil(rtt_s / KERNEL_TICK_S) * KERNEL_TICK_S
        off = int((now_s - self._since_s + later_s) * TICKS_S) - self._back
        further = SCALE * abs(off) ** 3 >> CUBED
        aim = self._aim + (further if off > 0 else -further)
        self._each = window // (aim - window) if aim > window else MOST_ACKNOWLEDGED * window
        if not self._met:
            self._each = min(self._each, FIRST_ACKNOWLEDGED)

    def _be_as_reno(self, window: int) -> None:
        more, self._acknowledged = divmod(self._acknowledged, max(1, window * AS_RENO >> 3))
        self._as_reno += more
        if self._as_reno > window:
            self._each = min(self._each, window // (self._as_reno - window))
        self._each = max(self._each, LEAST_ACKNOWLEDGED)

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

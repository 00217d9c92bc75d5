"""CUBIC: a window that grows with the cube of the time since a loss, but at least as fast as Reno's."""

from __future__ import annotations

import math

from testbed.clock import KERNEL_TICK_HZ, KERNEL_TICK_S
from testbed.net.paths.congestion.base import CONGESTION_CONTROLS, CongestionControl, WholeGrowth
from testbed.net.paths.congestion.reno import Reno

RESPONSE_FACTOR, RESPONSE_POWER = 1.054, 0.75
BETA, BETA_SCALE = 717, 1024  # the window's factor after a loss: RFC 9438's 0.7
TIME_UNITS_PER_S = 1024  # 1 << Linux's BICTCP_HZ
CUBE_RTT_SCALE = 410  # RFC 9438's 0.4 packets per cubic second, `bic_scale` times ten
CUBE_SHIFT = 40  # fractional bits of the cubic function
# Acknowledged eighths of a window per packet of the Reno-equivalent window's growth (`beta_scale`).
RENO_ACKS_SCALED = 15
REUSE_JIFFIES = KERNEL_TICK_HZ // 32  # Linux reuses its result this long while the window is unchanged
# Bounds of the acknowledgements per increment: in windows, and in packets before the first loss.
MAX_ACKS_WINDOWS, MAX_ACKS_BEFORE_LOSS = 100, 20
MIN_ACKS = 2


class CubicGrowth(WholeGrowth):
    """CUBIC's growth (RFC 9438) in Linux's integer arithmetic (`bictcp_update`).

    The window approaches the one at the last loss, slowly near it, and grows at least as fast as Reno's. The
    acknowledgements per increment are recomputed when the window has changed, or after a while. So on short paths the
    window stays constant for many round trips after a loss.
    """

    uses_hystart = True

    def __init__(self) -> None:
        super().__init__()
        self._last_max = 0  # the window at the last loss
        self._epoch_s: float | None = None
        self._origin = self._k = self._reno_window = self._acknowledged = 0
        self._acks = MIN_ACKS
        self._updated_window, self._updated_s = 0, -math.inf

    def reduced(self, window: int) -> int:
        """Return 0.7 of the window; remember less if it had not regained the previous one (fast convergence)."""
        self._last_max = (
            window * (BETA_SCALE + BETA) // (2 * BETA_SCALE) if window < self._last_max else window
        )
        self._epoch_s = None
        return window * BETA // BETA_SCALE

    def acks_per_increment(self, window: int, acknowledged: int, now_s: float, rtt_s: float) -> int:
        """Follow the cubic function of one round trip ahead, by at most half a packet per acknowledged one."""
        self._acknowledged += acknowledged
        elapsed_jiffies = now_s // KERNEL_TICK_S - self._updated_s // KERNEL_TICK_S
        if window == self._updated_window and elapsed_jiffies <= REUSE_JIFFIES:
            return self._acks
        if self._epoch_s is None or elapsed_jiffies:
            self._update(window, acknowledged, now_s, rtt_s)
        self._keep_up_with_reno(window)
        return self._acks

    def _update(self, window: int, acknowledged: int, now_s: float, rtt_s: float) -> None:
        self._updated_window, self._updated_s = window, now_s
        if self._epoch_s is None:
            self._epoch_s, self._reno_window, self._acknowledged = now_s, window, acknowledged
            self._origin = max(window, self._last_max)
            self._k = round(((self._origin - window << CUBE_SHIFT) / CUBE_RTT_SCALE) ** (1 / 3))
        ahead_s = math.ceil(rtt_s / KERNEL_TICK_S) * KERNEL_TICK_S
        offset = int((now_s - self._epoch_s + ahead_s) * TIME_UNITS_PER_S) - self._k
        delta = CUBE_RTT_SCALE * abs(offset) ** 3 >> CUBE_SHIFT
        target = self._origin + (delta if offset > 0 else -delta)
        self._acks = window // (target - window) if target > window else MAX_ACKS_WINDOWS * window
        if not self._last_max:
            self._acks = min(self._acks, MAX_ACKS_BEFORE_LOSS)

    def _keep_up_with_reno(self, window: int) -> None:
        increments, self._acknowledged = divmod(self._acknowledged, max(1, window * RENO_ACKS_SCALED >> 3))
        self._reno_window += increments
        if self._reno_window > window:
            self._acks = min(self._acks, window // (self._reno_window - window))
        self._acks = max(self._acks, MIN_ACKS)

    def idle(self, seconds: float) -> None:
        """Stop the cubic function's clock for idle time (`cubictcp_cwnd_event`), but not that of the last update."""
        if self._epoch_s is not None:
            self._epoch_s += seconds

    def shift(self, seconds: float) -> None:
        """Move the time origin forward by this many seconds."""
        self._updated_s -= seconds
        if self._epoch_s is not None:
            self._epoch_s -= seconds


@CONGESTION_CONTROLS.register("cubic")
class Cubic(CongestionControl):
    """CUBIC, with the response function of RFC 9438, section 5.1."""

    window = CubicGrowth

    @staticmethod
    def window_packets(loss: float, rtt_s: float) -> float:
        """Return CUBIC's average window, or Reno's on short paths, where it is larger."""
        own: float = RESPONSE_FACTOR * (rtt_s / loss) ** RESPONSE_POWER
        return max(Reno.window_packets(loss, rtt_s), own)

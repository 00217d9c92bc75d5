"""Linux TCP's initial window, acknowledgements and response to losses under any congestion control."""

from __future__ import annotations

import math

from testbed.net.fabric.plan import LINUX_RTO_MIN_MS
from testbed.net.paths.congestion.base import Growth

INITIAL_WINDOW_PACKETS = 10  # RFC 6928
MIN_WINDOW_PACKETS = 2.0
DUP_THRESHOLD = 3  # packets after a lost one that reveal the loss at once
REORDERING = 0.25  # RFC 8985's reordering window, in round trips
# packets per acknowledgement, and the delayed acknowledgement's timer (`TCP_DELACK_MIN`)
PACKETS_PER_ACK, DELAYED_ACK_S = 2, 0.04
MIN_RTO_S = LINUX_RTO_MIN_MS / 1000  # added to the round trip


def window_after_loss(growth: Growth, window: float) -> float:
    """Return the window after a loss in packets; the kernel's windows are integers."""
    return max(MIN_WINDOW_PACKETS, float(int(growth.after_loss(float(int(window))))))


class WindowUse:
    """How a connection uses its window, recorded for a round trip (`tcp_cwnd_validate`).

    is_full: whether the window limited sending.
    """

    __slots__ = ("_most", "_until", "is_full")

    def __init__(self) -> None:
        self.is_full, self._most, self._until = False, 0, -math.inf

    def record(self, full: bool, in_flight: int, now: float, until: float) -> None:
        """Record packets in flight. now, until: this moment and the end of the round trip, in any unit."""
        if full or now >= self._until or (not self.is_full and in_flight > self._most):
            self.is_full, self._most, self._until = full, in_flight, until

    def allows_slow_start(self, window: float) -> bool:
        """Return whether a window in slow start may grow: it was full, or more than half used."""
        return self.is_full or window < 2 * self._most

    def shift(self, seconds: float) -> None:
        """Move recorded times back by `seconds`."""
        self._until -= seconds

"""Round-trip time estimation and retransmission timeout: RFC 6298 with Linux's minimum margin."""

from __future__ import annotations

from collections.abc import Iterable

from testbed.net.paths.congestion.linux_tcp import MIN_RTO_S
from testbed.prediction.packets.links import Entrance
from testbed.prediction.packets.receiver import ACKNOWLEDGEMENT_BYTES

LEAST_ROUND_TRIP_S = 1e-6  # the kernel's resolution, for paths without latency


def handshake_s(hops: Iterable[Entrance]) -> float:
    """Return the round-trip time that the handshake measures over these queues, in both directions."""
    return max(LEAST_ROUND_TRIP_S, sum(hop.empty_s(ACKNOWLEDGEMENT_BYTES) for hop in hops))


class RttEstimator:
    """The smoothed round-trip time and its deviation.

    `smoothed_s` is the smoothed round-trip time. It is the handshake's until the first data sample replaces it.
    `doublings` is the number of timeouts since the last sample.
    """

    __slots__ = ("_deviation_s", "doublings", "smoothed_s", "timed")

    def __init__(self, smoothed_s: float) -> None:
        self.smoothed_s, self._deviation_s = smoothed_s, smoothed_s / 2
        self.timed = False
        self.doublings = 0

    def add(self, sample_s: float) -> None:
        """Add a sample."""
        self.doublings = 0
        if self.timed:
            self._deviation_s += (abs(sample_s - self.smoothed_s) - self._deviation_s) / 4
            self.smoothed_s += (sample_s - self.smoothed_s) / 8
        else:
            self.timed, self.smoothed_s, self._deviation_s = True, sample_s, sample_s / 2

    @property
    def timeout_s(self) -> float:
        """The retransmission timeout."""
        margin_s = 4 * self._deviation_s
        return (self.smoothed_s + (margin_s if margin_s > MIN_RTO_S else MIN_RTO_S)) * (1 << self.doublings)

"""How long a sender takes a round trip to be, and when it waits no more: RFC 6298, with Linux' least margin."""

from __future__ import annotations

from collections.abc import Iterable

from testbed.net.paths.losses import MIN_RTO_S
from testbed.prediction.packets.links import Entrance
from testbed.prediction.packets.receiver import ACKNOWLEDGEMENT_BYTES

LEAST_ROUND_TRIP_S = 1e-6  # that the kernel can tell: cards without latency, of any rate, have none


def handshake_s(hops: Iterable[Entrance]) -> float:
    """As the handshake finds it, there and back over these."""
    return max(LEAST_ROUND_TRIP_S, sum(hop.empty_s(ACKNOWLEDGEMENT_BYTES) for hop in hops))


class RttEstimator:
    """usual_s: smoothed; of the handshake, until that of data was timed, which alone counts then.

    doublings: timeouts since an acknowledgement was timed.
    """

    __slots__ = ("_deviation_s", "doublings", "timed", "usual_s")

    def __init__(self, usual_s: float) -> None:
        self.usual_s, self._deviation_s = usual_s, usual_s / 2
        self.timed = False
        self.doublings = 0

    def add(self, sample_s: float) -> None:
        """One was timed."""
        self.doublings = 0
        if self.timed:
            self._deviation_s += (abs(sample_s - self.usual_s) - self._deviation_s) / 4
            self.usual_s += (sample_s - self.usual_s) / 8
        else:
            self.timed, self.usual_s, self._deviation_s = True, sample_s, sample_s / 2

    @property
    def timeout_s(self) -> float:
        """After so long without an acknowledgement all is taken to be lost."""
        margin_s = 4 * self._deviation_s
        return (self.usual_s + (margin_s if margin_s > MIN_RTO_S else MIN_RTO_S)) * (1 << self.doublings)

"""What a sender knows of its round trip, and after what time a packet that nothing is heard of counts as lost."""

from __future__ import annotations

from dataclasses import dataclass

RTO_ROUND_TRIPS = 3.0  # as SDR-RDMA's evaluation has it (arXiv:2505.05366)
MIN_RTO_S = 1e-4
# by the real clock a peer may not get a processor for so long
REAL_TIME_MIN_RTO_S = 50e-3
_MAX_BACKOFFS = 6
_SHARE, _VARIATION_SHARE = 1 / 8, 1 / 4  # of the newest sample, as in RFC 6298


@dataclass
class RttEstimator:
    """smoothed_s: before the first sample a guess. least_s: the shortest of all samples. least_rto_s: of time-outs."""

    smoothed_s: float
    least_rto_s: float = MIN_RTO_S
    variation_s: float = 0.0
    least_s: float = 0.0
    samples: int = 0
    doublings: int = 0  # time-outs since something new was last heard

    def add(self, sample_s: float) -> None:
        """One more round trip has been measured."""
        if self.samples == 0:
            self.smoothed_s, self.variation_s, self.least_s = sample_s, sample_s / 2, sample_s
        else:
            self.variation_s += _VARIATION_SHARE * (abs(sample_s - self.smoothed_s) - self.variation_s)
            self.smoothed_s += _SHARE * (sample_s - self.smoothed_s)
            self.least_s = min(self.least_s, sample_s)
        self.samples += 1

    @property
    def rto_s(self) -> float:
        """Three round trips, or what RFC 6298 says where they vary more; doubled by each time-out in a row."""
        once_s = max(
            RTO_ROUND_TRIPS * self.smoothed_s, self.smoothed_s + 4 * self.variation_s, self.least_rto_s
        )
        return once_s * (1 << min(self.doublings, _MAX_BACKOFFS))

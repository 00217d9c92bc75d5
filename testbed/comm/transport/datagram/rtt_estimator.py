"""Round-trip estimate of a sender, and the retransmission timeout that follows from it."""

from __future__ import annotations

from dataclasses import dataclass

RTO_ROUND_TRIPS = 3.0  # as in SDR-RDMA's evaluation (arXiv:2505.05366)
MIN_RTO_S = 1e-4
# in real time, a peer may wait this long for a CPU
REAL_TIME_MIN_RTO_S = 50e-3
_MAX_BACKOFFS = 6
_SHARE, _VARIATION_SHARE = 1 / 8, 1 / 4  # weights of a new sample, as in RFC 6298


@dataclass
class RttEstimator:
    """A smoothed round trip, as in RFC 6298.

    Attributes:
        smoothed_s: The estimate; before the first sample, a guess.
        least_rto_s: The smallest timeout.
        variation_s: The mean deviation.
        least_s: The shortest sample.
        samples: The number of samples.
        doublings: Timeouts since the last progress.
    """

    smoothed_s: float
    least_rto_s: float = MIN_RTO_S
    variation_s: float = 0.0
    least_s: float = 0.0
    samples: int = 0
    doublings: int = 0  # timeouts since the last progress

    def add(self, sample_s: float) -> None:
        """Add a sample, in seconds."""
        if self.samples == 0:
            self.smoothed_s, self.variation_s, self.least_s = sample_s, sample_s / 2, sample_s
        else:
            self.variation_s += _VARIATION_SHARE * (abs(sample_s - self.smoothed_s) - self.variation_s)
            self.smoothed_s += _SHARE * (sample_s - self.smoothed_s)
            self.least_s = min(self.least_s, sample_s)
        self.samples += 1

    @property
    def rto_s(self) -> float:
        """Three round trips, or RFC 6298's timeout if it is longer; doubled by each consecutive timeout."""
        once_s = max(
            RTO_ROUND_TRIPS * self.smoothed_s, self.smoothed_s + 4 * self.variation_s, self.least_rto_s
        )
        return once_s * (1 << min(self.doublings, _MAX_BACKOFFS))

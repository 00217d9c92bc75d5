"""Which connections of a congestion control that paces are paced by the link: those that have left its startup.

BBR starts with a pace of 2.89 of its first windows a round trip. It comes down to what it measures once it has found
the link full, after three round trips in which there was always something to send. Of a connection that always runs
out before, samples tell nothing (`is_app_limited`): it stays as it began, and what it sends, it sends at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FULL_ROUNDS = 3  # `bbr_full_bw_cnt`


@dataclass(eq=False)
class Startup:
    """Of a connection. pace: bytes per second at which it begins. rounds: in which it did not run out, up to now."""

    pace: float
    round_trip_s: float
    rounds: int = 0
    since_s: float = 0.0
    until_s: float = -math.inf
    counted: int = 0

    @property
    def over(self) -> bool:
        """Whether it paces by what it measured."""
        return self.rounds >= FULL_ROUNDS

    def send(self, now_s: float, size_bytes: float) -> None:
        """So much more is to leave."""
        if self.until_s < now_s:
            self.since_s, self.until_s, self.counted = now_s, now_s, 0
        self.until_s += size_bytes / self.pace
        passed = int((self.until_s - self.since_s) / self.round_trip_s)
        self.rounds += passed - self.counted
        self.counted = passed

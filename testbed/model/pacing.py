"""Which connections of a congestion control that paces are paced by the link: those that have left its startup.

Until then a pace is a gain of what was delivered in a round trip at the most, which is little on a long path for who
has little to send: a message takes a third of a round trip to leave, whatever its size.

BBR starts with a pace of 2.89 of its first windows a round trip. It comes down to what it measures once it has found
the link full, after three round trips in which there was always something to send. Of a connection that always runs
out before, samples tell nothing (`is_app_limited`): it stays as it began, and what it sends, it sends at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from testbed.paths.lossy_windows import FIRST_PACKETS

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


@dataclass(eq=False)
class Opening:
    """Of a connection whose first pace is less than its path's rate, both in packets per second. gain: see above.

    packets: that were delivered in a round trip at the most.
    """

    gain: float
    round_trip_s: float
    rate: float
    packets: float = FIRST_PACKETS
    until_s: float = -math.inf
    since_s: float = -math.inf
    counted: float = 0.0

    def left_s(self, packets: float, now_s: float) -> float:
        """When so many more have left. What leaves in one round trip is measured, and the next has a pace by that."""
        at_s = max(now_s, self.until_s)
        while packets > 0:
            pace = self.gain * self.packets / self.round_trip_s
            if pace >= self.rate:
                at_s += packets / self.rate
                break
            if at_s >= self.since_s + self.round_trip_s:
                self.since_s, self.counted = at_s, 0.0
            some = min(packets, pace * (self.since_s + self.round_trip_s - at_s))
            at_s += some / pace
            self.counted += some
            self.packets = max(self.packets, self.counted)
            packets -= some
        self.until_s = at_s
        return at_s

"""The first pace of congestion controls that pace: a gain of what was delivered in a round trip at the most.

That is little on a long path for who has little to send: a message takes a third of a round trip to leave, whatever its
size. BBR starts with a pace of 2.89 of its first windows a round trip.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from testbed.net.paths.losses import FIRST_PACKETS


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

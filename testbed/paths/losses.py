"""What losses do to one connection: how quick it can be at most, and how much later its messages end.

A window that grows until a packet is lost is sqrt(3/2 / p) packets on average (Mathis et al. 1997, "The macroscopic
behavior of the TCP congestion avoidance algorithm"), CUBIC's 1.054 (RTT / p)^(3/4) where that is more (RFC 9438,
section 5.1, with RTT in seconds); BBR's does not go by losses. What is lost among a message's last packets is known of
round trips later, what is lost before them meanwhile. Factors to both come from calibration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MATHIS = math.sqrt(1.5)
CUBIC, CUBIC_POWER = 1.054, 0.75
TAIL_PACKETS = 10  # a first window of RFC 6928
INDIFFERENT = ("bbr",)  # whose rate losses do not lower


@dataclass(frozen=True)
class LossResponse:
    """Of one congestion control. window: factor to the textbook's; recovery: round trips until a loss is mended."""

    window: float = 1.0
    recovery: float = 1.0


@dataclass(frozen=True)
class Lossy:
    """A connection over a path that loses packets.

    loss: share, 0 to 1; path_rate: bytes per second of the path; packet_bytes: payload of a full packet.
    """

    congestion_control: str
    loss: float
    rtt_s: float
    path_rate: float
    packet_bytes: float
    response: LossResponse

    @property
    def window_bytes(self) -> float:
        """What is under way on average; infinite where losses do not matter."""
        if self.congestion_control in INDIFFERENT:
            return math.inf
        packets = MATHIS / math.sqrt(self.loss)
        if self.congestion_control == "cubic":
            packets = max(packets, CUBIC * (self.rtt_s / self.loss) ** CUBIC_POWER)
        return self.response.window * packets * self.packet_bytes

    @property
    def mended_s(self) -> float:
        """Until what was lost has come after all."""
        return self.response.recovery * self.rtt_s

    def least_s(self, size_bytes: float) -> float:
        """What a message takes to leave with nothing else on the path: a window at once, the rest by round trips."""
        at_once = min(size_bytes, self.window_bytes)
        rest_s = (size_bytes - at_once) / self.window_bytes * self.rtt_s
        return max(size_bytes / self.path_rate, at_once / self.path_rate + rest_s)

    def late_chance(self, size_bytes: float) -> float:
        """That a message ends later by `mended_s`: nothing comes behind its last packets that tells of a loss."""
        packets = min(math.ceil(size_bytes / self.packet_bytes), TAIL_PACKETS)
        return 1 - (1 - self.loss) ** packets

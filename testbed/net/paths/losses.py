"""What losses do to one connection: how quick it can be at most, and how much later its messages end.

How large a window losses leave is the congestion control's to say (`congestion`). What is lost among a message's last
packets is known of round trips later, what is lost before them meanwhile. Factors to both come from calibration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from random import Random

from testbed.net.paths.congestion import CONGESTION_CONTROLS, CongestionControl, LossResponse
from testbed.net.paths.loss_simulation import LossyWindow
from testbed.plugins import OWN_FILE

TAIL_PACKETS = 10  # a first window of RFC 6928
USUAL = "reno"  # stands for congestion controls that the model does not know, and says so


def is_known(name: str) -> bool:
    """Whether the model has this congestion control, or it is in a file."""
    return name in CONGESTION_CONTROLS or OWN_FILE.fullmatch(name) is not None


def control_of(name: str) -> type[CongestionControl]:
    """By name, or of a file as FILE.py:NAME; the usual one for a name that the model does not know. PluginError."""
    return CONGESTION_CONTROLS.find(name if is_known(name) else USUAL)


@dataclass(frozen=True)
class Lossy:
    """A connection over a path that loses packets.

    congestion_control: what the model knows it by, a name or FILE.py:NAME. loss: share, 0 to 1; path_rate: bytes per
    second of the path; packet_bytes: payload of a full packet. How long a pair still sends before a message,
    `busy_s`, makes no difference here: windows are what they are on average.
    """

    congestion_control: str
    loss: float
    rtt_s: float
    path_rate: float
    packet_bytes: float
    response: LossResponse

    @cached_property
    def window_bytes(self) -> float:
        """What is under way on average; infinite where losses do not matter."""
        packets = control_of(self.congestion_control).window_packets(self.loss, self.rtt_s)
        return self.response.window * packets * self.packet_bytes

    @property
    def begins(self) -> bool:
        """Whether its window is known from its first packet on, not only on average."""
        return control_of(self.congestion_control).window is not None

    def begun(self, one_way_s: float, draw: Random) -> LossyWindow:
        """A connection from its first packet on; one_way_s: until a packet is there."""
        growth = control_of(self.congestion_control).window
        assert growth is not None
        return LossyWindow(
            growth(), self.loss, self.rtt_s, one_way_s, self.packet_bytes / self.path_rate, draw
        )

    @property
    def mended_s(self) -> float:
        """Until what was lost has come after all."""
        return self.response.recovery * self.rtt_s

    def least_s(self, size_bytes: float, open_bytes: float = math.inf) -> float:
        """What a message takes to leave with nothing else on the path: a window at once, the rest by round trips.

        open_bytes: of the window, what is not taken by messages before; less than 0 where those wait, too.
        """
        open_bytes = min(open_bytes, self.window_bytes)
        at_once = max(0.0, min(size_bytes, open_bytes))
        rest_s = (
            0.0 if size_bytes <= open_bytes else (size_bytes - open_bytes) / self.window_bytes * self.rtt_s
        )
        return max(size_bytes / self.path_rate, at_once / self.path_rate + rest_s)

    def opened_bytes(self, open_bytes: float, seconds: float) -> float:
        """What is open of the window so much later: acknowledgements open all of it in a round trip."""
        if math.isinf(self.window_bytes):
            return math.inf
        return min(self.window_bytes, open_bytes + self.window_bytes * seconds / self.rtt_s)

    def late_chance(self, size_bytes: float, busy_s: float = 0.0) -> float:
        """That a message ends later by `mended_s`: nothing comes behind its last packets that tells of a loss."""
        packets = min(math.ceil(size_bytes / self.packet_bytes), TAIL_PACKETS)
        return 1 - (1 - self.loss) ** packets

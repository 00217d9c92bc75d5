"""How much a sender may have under way, and how quickly it may send. No sockets, no clock of its own.

A window counts packets, of one size, between their sending and the first word of them. Deriving classes change
`window_packets` and `rate_bps` as they hear how packets fare.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from testbed.comm.transport.datagram.recoveries.base import Feedback
from testbed.comm.transport.datagram.rtt_estimator import RttEstimator

# of a window that does not change: as TCP's first one (RFC 6928)
MIN_WINDOW_PACKETS = 10.0
GROWTH = 1 / 8  # of a window, each round trip


@dataclass(frozen=True)
class Limits:
    """What a control starts from. packet_bytes: of a full packet, as links count it.

    window_bytes: of a window that does not change. line_bps: of this rank's card. rate_scale: emulated rates over real
    ones, for steps in bit/s. host_s: what hosts, not the network, may add to a round trip. least_packets: of a window
    of one size; late_packets: what it may grow by, for hosts that are late, as long as nothing is lost. path_bps,
    round_trip_s: what the narrowest link and the empty path are known to have; 0, infinite: not known.
    """

    packet_bytes: int
    window_bytes: float = math.inf
    line_bps: float = math.inf
    rate_scale: float = 1.0
    host_s: float = 0.0
    least_packets: float = MIN_WINDOW_PACKETS
    late_packets: float = 0.0
    path_bps: float = 0.0
    round_trip_s: float = math.inf


class Control:
    """One pair's, one direction's; this one limits nothing."""

    marks: ClassVar[bool] = False
    """Whether its packets say that links may mark them in place of dropping them."""

    grants: ClassVar[bool] = False
    """Whether the receiver grants what may be sent; see `credits`."""

    def __init__(self, limits: Limits, round_trips: RttEstimator) -> None:
        self.limits, self.round_trips = limits, round_trips
        self.window_packets = math.inf
        self.rate_bps = math.inf

    def heard(self, news: Feedback, now_s: float) -> None:
        """An acknowledgement has come, or a time-out has passed."""

    def sent(self, packets: int, now_s: float) -> None:
        """So many packets have left."""

    def passed(self, now_s: float) -> float:
        """Time has passed; when it is to be told again, though nothing happens: infinite for never."""
        return math.inf


class Window(Control):
    """A window of one size: the product of rate and delay, or what the scenario says; ten packets at least.

    Where the card is quicker than a window in a round trip, it leaves at that rate: all at once it would fill the queue
    where the path is narrow. For hosts that are late it grows by an eighth each round trip, as far as `late_packets`
    and until something is lost: then half of that goes, and it never grows as far again.
    """

    def __init__(self, limits: Limits, round_trips: RttEstimator) -> None:
        super().__init__(limits, round_trips)
        self._own = max(limits.least_packets, limits.window_bytes / limits.packet_bytes)
        self._late, self._most_late = 0.0, limits.late_packets
        self.window_packets = self._own
        self._pace(round_trips.smoothed_s)

    def heard(self, news: Feedback, now_s: float) -> None:
        """See Control."""
        if news.round_trip_s is not None:
            self._pace(self.round_trips.least_s)
        if news.holes or news.lost:
            self._late = self._most_late = self._late / 2
        else:
            self._late = min(self._late + news.acked * GROWTH, self._most_late)
        self.window_packets = self._own + self._late

    def _pace(self, round_trip_s: float) -> None:
        rate_bps = self._own * self.limits.packet_bytes * 8 / max(round_trip_s, 1e-9)
        rate_bps = max(rate_bps, self.limits.path_bps)  # round trips are longer where hosts are late
        self.rate_bps = rate_bps if rate_bps < self.limits.line_bps else math.inf

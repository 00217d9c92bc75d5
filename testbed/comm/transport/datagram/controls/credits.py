"""Credits: a receiver grants its senders what they may send, in total at the rate of its own port.

After ExpressPass (Cho et al., SIGCOMM 2017), Homa (Montazeri et al., SIGCOMM 2018) and pHost (Gao et al., CoNEXT
2015): a sender requests credits, and the receiver grants them round-robin, at the rate at which the granted packets
fill its port. Incast builds no queue there, however many senders there are. A message takes one more round trip at its
start.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import ClassVar

from testbed.comm.transport.datagram.controls.base import Control, Limits
from testbed.comm.transport.datagram.rtt_estimator import RttEstimator

UNIT_PACKETS = 4  # maximum per grant
LOAD = 0.99  # share of the port's rate, so that queues from jitter drain


class Credits(Control):
    """The sender's side.

    `granted`: the total number of packets that it may send; `used`: the number that it has sent.
    """

    uses_grants: ClassVar[bool] = True

    def __init__(self, limits: Limits, round_trips: RttEstimator) -> None:
        super().__init__(limits, round_trips)
        self.granted = 0
        self.used = 0

    @property
    def left(self) -> int:
        """The number of packets that the sender may still send."""
        return max(0, self.granted - self.used)

    def grant(self, total: int) -> None:
        """Handle a grant of `total` packets since the start. An outdated grant has no effect."""
        self.granted = max(self.granted, total)

    def on_sent(self, packets: int, now_s: float) -> None:
        """See Control."""
        self.used += packets


class Granter:
    """The receiver's side, for all senders to one rank. rate_bps: the port's. packet_bytes: a full packet's."""

    def __init__(self, rate_bps: float, packet_bytes: int) -> None:
        self._rate_bps = rate_bps
        self.packet_bytes = packet_bytes
        self._granted: dict[Hashable, int] = {}
        # senders that want more, in round-robin order
        self._requested: OrderedDict[Hashable, int] = OrderedDict()
        self._next_s = 0.0  # when the port has room for the next grant

    @property
    def packet_s(self) -> float:
        """The time of a full packet at the port."""
        return self.packet_bytes * 8 / (self._rate_bps * LOAD) if math.isfinite(self._rate_bps) else 0.0

    def request(self, sender: Hashable, total: int) -> None:
        """Handle a sender's request for a total of `total` packets since the start."""
        if total > self._granted.get(sender, 0):
            self._requested[sender] = max(total, self._requested.get(sender, 0))

    def forget(self, sender: Hashable) -> None:
        """Drop a sender."""
        self._requested.pop(sender, None)
        self._granted.pop(sender, None)

    def granted(self, sender: Hashable) -> int:
        """Return how many packets the sender may have sent since the start."""
        return self._granted.get(sender, 0)

    @property
    def due_s(self) -> float:
        """The time at which `pop_grants` has grants; infinite if there are no requests."""
        return self._next_s if self._requested else math.inf

    def pop_grants(self, now_s: float) -> list[tuple[Hashable, int]]:
        """Return the senders that get grants now, each with its total since the start."""
        grants: dict[Hashable, int] = {}
        while self._requested and self._next_s <= now_s:
            sender, wanted = self._requested.popitem(last=False)
            before = self._granted.get(sender, 0)
            unit = min(UNIT_PACKETS, wanted - before)
            grants[sender] = self._granted[sender] = before + unit
            if before + unit < wanted:
                self._requested[sender] = wanted  # to the back of the queue
            # a late timer may catch up a little, but idle time is not saved up
            self._next_s = max(self._next_s, now_s - UNIT_PACKETS * self.packet_s) + unit * self.packet_s
        return list(grants.items())

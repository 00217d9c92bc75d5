"""Credits: a receiver grants what its senders may send, all together at the rate of its own port.

After ExpressPass (Cho et al., SIGCOMM 2017), Homa (Montazeri et al., SIGCOMM 2018) and pHost (Gao et al., CoNEXT 2015):
who wants to send says so, the receiver deals out grants in turn, as quickly as what they bring fills its port. Incast
builds no queue there, whatever the number of senders; a message costs a round trip more at its beginning.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import ClassVar

from testbed.comm.transport.datagram.controls.base import Control, Limits
from testbed.comm.transport.datagram.rtt_estimator import RttEstimator

UNIT_PACKETS = 4  # of one grant, at most
LOAD = 0.99  # of the port, so that what jitter has queued drains


class Credits(Control):
    """The sender's side. granted: packets that it may have sent in all; used: that it has."""

    grants: ClassVar[bool] = True

    def __init__(self, limits: Limits, round_trips: RttEstimator) -> None:
        super().__init__(limits, round_trips)
        self.granted = 0
        self.used = 0

    @property
    def left(self) -> int:
        """Packets that it may still send."""
        return max(0, self.granted - self.used)

    def grant(self, total: int) -> None:
        """The receiver has granted so many in all; what is told late says nothing."""
        self.granted = max(self.granted, total)

    def sent(self, packets: int, now_s: float) -> None:
        """See Control."""
        self.used += packets


class Granter:
    """The receiver's side, for all senders of one rank. rate_bps: of its port. packet_bytes: of a full packet."""

    def __init__(self, rate_bps: float, packet_bytes: int) -> None:
        self._rate_bps = rate_bps
        self.packet_bytes = packet_bytes
        self._granted: dict[Hashable, int] = {}
        # of those that want more, whose turn it is first
        self._wanted: OrderedDict[Hashable, int] = OrderedDict()
        self._next_s = 0.0  # when the port has room for what is granted next

    @property
    def packet_s(self) -> float:
        """What a full packet takes of the port."""
        return self.packet_bytes * 8 / (self._rate_bps * LOAD) if math.isfinite(self._rate_bps) else 0.0

    def want(self, sender: Hashable, total: int) -> None:
        """A sender wants to have sent so many packets in all."""
        if total > self._granted.get(sender, 0):
            self._wanted[sender] = max(total, self._wanted.get(sender, 0))

    def forget(self, sender: Hashable) -> None:
        """It has gone."""
        self._wanted.pop(sender, None)
        self._granted.pop(sender, None)

    def granted(self, sender: Hashable) -> int:
        """What it may have sent in all."""
        return self._granted.get(sender, 0)

    @property
    def due_s(self) -> float:
        """When `grants` has something to say; infinite where nobody wants anything."""
        return self._next_s if self._wanted else math.inf

    def grants(self, now_s: float) -> list[tuple[Hashable, int]]:
        """Who may have sent how many packets in all from now on."""
        found: dict[Hashable, int] = {}
        while self._wanted and self._next_s <= now_s:
            sender, wanted = self._wanted.popitem(last=False)
            before = self._granted.get(sender, 0)
            unit = min(UNIT_PACKETS, wanted - before)
            found[sender] = self._granted[sender] = before + unit
            if before + unit < wanted:
                self._wanted[sender] = wanted  # its next turn is after all others'
            # a late timer may catch up a little, but nothing is saved up while nobody wants anything
            self._next_s = max(self._next_s, now_s - UNIT_PACKETS * self.packet_s) + unit * self.packet_s
        return list(found.items())

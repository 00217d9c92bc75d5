"""One MPTCP connection per pair of ranks and class of traffic, which the kernel spreads over subflows."""

from __future__ import annotations

from testbed.comm.transport.kinds.base import TRANSPORTS
from testbed.comm.transport.kinds.tcp import Tcp


@TRANSPORTS.register("mptcp")
class Mptcp(Tcp):
    """As TCP to the ranks. What the kernel does not pass on to subflows is not asked of them."""

    config_keys = ("subflows",)
    socket_keys = ("congestion_control",)
    multipath = True
    takes_several_paths = True
    settles = False  # it shares out by what it remembers of its subflows

    def channels(self, distance: str) -> int:
        """The first subflow, and those that the kernel adds."""
        return int(self.options["subflows"])

    @property
    def added_subflows(self) -> int:
        """All but the first."""
        return int(self.options["subflows"]) - 1

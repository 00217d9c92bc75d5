"""The kind `mptcp`: one MPTCP connection per pair of ranks and class, which the kernel spreads over subflows."""

from __future__ import annotations

from testbed.comm.transport.kinds.base import TRANSPORTS
from testbed.comm.transport.kinds.tcp import Tcp


@TRANSPORTS.register("mptcp")
class Mptcp(Tcp):
    """MPTCP connections, which look like TCP to the ranks.

    Only socket settings that the kernel passes to subflows are allowed.
    """

    config_keys = ("subflows",)
    socket_keys = ("congestion_control",)
    multipath = True
    takes_several_paths = True
    settles = False  # the kernel distributes data by its history of subflows

    def channels(self, distance: str) -> int:
        """Return the number of subflows: the first, and those that the kernel adds."""
        return int(self.options["subflows"])

    @property
    def added_subflows(self) -> int:
        """The number of subflows without the first."""
        return int(self.options["subflows"]) - 1

"""The kinds `tcp` and `mptcp`: one connection per pair of ranks and class of traffic."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.comm.transport.kinds import TRANSPORTS, TransportKind
from testbed.comm.transport.sockets import MeshSettings
from testbed.comm.transport.tcp import TcpTransport


@TRANSPORTS.register("tcp")
class Tcp(TransportKind):
    """One connection per pair, made on first use."""

    modelled = True

    def make(
        self,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        settings: MeshSettings,
        distances: Sequence[str],
    ) -> TcpTransport:
        """See TransportKind."""
        return TcpTransport(rank, addresses, settings)


@TRANSPORTS.register("mptcp")
class Mptcp(Tcp):
    """MPTCP connections, which look like TCP to the ranks.

    Only socket settings that the kernel passes to subflows are allowed.
    """

    config_keys = ("subflows",)
    socket_keys = ("congestion_control",)
    multipath = True
    takes_several_paths = True
    settles = False  # the kernel distributes data according to the history of subflows

    def channels(self, distance: str) -> int:
        """Return the number of subflows: the first, and those that the kernel adds."""
        return int(self.options["subflows"])

    @property
    def added_subflows(self) -> int:
        """The number of subflows without the first."""
        return int(self.options["subflows"]) - 1

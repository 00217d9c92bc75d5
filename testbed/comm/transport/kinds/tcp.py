"""The kind `tcp`: one TCP connection per pair of ranks and class of traffic."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.comm.transport.kinds.base import TRANSPORTS, TransportKind
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

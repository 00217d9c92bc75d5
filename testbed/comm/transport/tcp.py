"""Non-blocking TCP between ranks: one connection per pair and class of traffic.

A connection is made when either side first uses it, or for all peers at once with `connect`.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from testbed.comm.transport.base import BEST_EFFORT, MAX_TAG, TrafficClass
from testbed.comm.transport.connection import Connection
from testbed.comm.transport.mesh import Mesh
from testbed.comm.transport.sockets import MeshSettings
from testbed.comm.transport.wire import ConnectionKey


class TcpTransport(Mesh):
    """One rank's TCP (or MPTCP) connections; see Transport for the messages, MeshSettings for `settings`.

    rank: this rank. addresses: (IPv4 address, port) of every rank, in rank order. eager: connect to all peers at once.
    listener: a bound socket to listen on in place of this rank's address.

    Raises TransportError when a setting does not take, TransportTimeout when `eager` and a peer does not appear.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        settings: MeshSettings,
        *,
        eager: bool = False,
        listener: socket.socket | None = None,
    ) -> None:
        self._connections: dict[TrafficClass, dict[int, Connection]] = {BEST_EFFORT: {}}
        self._usual = self._connections[BEST_EFFORT]
        super().__init__(rank, addresses, settings, listener, eager)

    def _connections_to(self, peer: int, tag: int, traffic: TrafficClass) -> Connection:
        """The connection with a peer, begun if need be."""
        connections = self._usual if traffic is BEST_EFFORT else self._connections.get(traffic, {})
        connection = connections.get(peer)
        if connection is None or not 0 <= tag <= MAX_TAG:
            self._check_address(peer, tag)
        if connection is None or (connection.sock is None and connection.lost is None):
            stream = self._stream(peer, ConnectionKey(traffic))
            assert isinstance(stream, Connection)
            return stream
        return connection

    def _make_stream(self, peer: int, key: ConnectionKey) -> Connection:
        if key.channel or key.channels:
            raise ValueError(f"channel: got {key.channel} of {key.channels}, expected none")
        made = Connection(self.rank, peer, self.settings.max_staged_bytes, self._counters[peer], self.exposed)
        self._connections.setdefault(key.traffic, {})[peer] = made
        return made

    def _drop(self, peer: int) -> None:
        for connections in self._connections.values():
            if peer in connections and connections[peer].lost is not None:
                del connections[peer]

    def _keys(self, peer: int) -> list[ConnectionKey]:
        return [ConnectionKey()]

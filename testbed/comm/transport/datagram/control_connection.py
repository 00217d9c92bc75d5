"""The TCP connection of a pair of datagram sockets: it exchanges their ports, and detects a lost peer.

This is the out-of-band setup of queue pairs, for UDP. The dialling side sends the ports of its paths, the listening
side confirms that its sockets are open. Notes and goodbyes also go over it, messages do not.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from testbed.comm.transport.base import PeerCounters, TransportError
from testbed.comm.transport.datagram.packets import MAX_PATHS
from testbed.comm.transport.onesided import ExposedWindows
from testbed.comm.transport.tcp import Connection
from testbed.comm.transport.wire import GOODBYE_TAG, HEADER, NOTE_TAG

PORTS_TAG = 2**64 - 4
_SECRET = struct.Struct("<I")
_PORT = struct.Struct("<H")

OnPorts = Callable[[int, list[int]], None]


class ControlConnection(Connection):
    """The control connection of one pair.

    Args:
        rank: This rank.
        peer: The peer.
        counters: The peer's counters.
        exposed: Windows for puts.
        on_attach: Called when the connection is open.
        on_ports: Called with the secret and the ports that the peer sent.
        on_end: Called with the reason when the peer is lost.
        extra_info: Returns more fields for `info`.
    """

    def __init__(
        self,
        rank: int,
        peer: int,
        counters: PeerCounters,
        exposed: ExposedWindows,
        on_attach: Callable[[], None],
        on_ports: OnPorts,
        on_end: Callable[[TransportError], None],
        extra_info: Callable[[], dict[str, Any]],
    ) -> None:
        super().__init__(rank, peer, 0, counters, exposed)
        self._on_attach, self._on_ports, self._on_end, self._extra_info = (
            on_attach,
            on_ports,
            on_end,
            extra_info,
        )
        self._ports: bytearray | None = None  # the peer's ports, while being received

    def attach(self, sock: Any, watch: Any) -> None:
        """Attach the socket (see Stream), and start the exchange of ports."""
        super().attach(sock, watch)
        if self.lost is None:
            self._on_attach()

    def send_ports(self, secret: int, ports: list[int]) -> None:
        """Send the ports of this end's paths; no ports: confirm that its sockets are open."""
        payload = _SECRET.pack(secret) + b"".join(map(_PORT.pack, ports))
        self.queue(HEADER.pack(PORTS_TAG, len(payload)), memoryview(payload), None)

    def info(self) -> dict[str, Any] | None:
        """See Stream; with statistics of the datagrams."""
        info = super().info()
        return None if info is None else {**info, **self._extra_info()}

    def _begin_payload(self, stage: bytearray, start: int) -> bool:
        tag, length = HEADER.unpack_from(stage, start)
        if tag in {GOODBYE_TAG, NOTE_TAG}:
            return super()._begin_payload(stage, start)
        limit = _SECRET.size + MAX_PATHS * _PORT.size
        if tag != PORTS_TAG or not _SECRET.size <= length <= limit or length % _PORT.size:
            self.fail(f"it sent a message of {length} bytes where only ports, notes and goodbyes belong")
            return False
        self._ports = bytearray(length)
        self._target = memoryview(self._ports)
        return True

    def _on_payload(self) -> None:
        if self._ports is None:
            super()._on_payload()
            return
        ports, self._ports = self._ports, None
        (secret,) = _SECRET.unpack_from(ports)
        self._on_ports(secret, [port for (port,) in _PORT.iter_unpack(ports[_SECRET.size :])])

    def _on_lost(self, error: TransportError) -> None:
        super()._on_lost(error)
        self._on_end(error)

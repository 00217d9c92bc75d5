"""The TCP connection beside a pair's datagrams: it introduces the two ends, and tells when one has gone.

As queue pairs are set up out of band. The dialler says which ports its paths have, the listener that its sockets stand.
Notes and goodbyes take it, too; messages do not.
"""

from __future__ import annotations

import secrets
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
    """on_ports: told the secret and the ports that the peer said. on_end: why the peer is lost. more: for `info`."""

    def __init__(
        self,
        rank: int,
        peer: int,
        counters: PeerCounters,
        exposed: ExposedWindows,
        on_attach: Callable[[], None],
        on_ports: OnPorts,
        on_end: Callable[[TransportError], None],
        more: Callable[[], dict[str, Any]],
    ) -> None:
        super().__init__(rank, peer, 0, counters, exposed)
        self._on_attach, self._on_ports, self._on_end, self._more = on_attach, on_ports, on_end, more
        self._ports: bytearray | None = None  # what the peer says of its ports, which is coming in

    def attach(self, sock: Any, watch: Any) -> None:
        """See Stream; then there are addresses."""
        super().attach(sock, watch)
        if self.lost is None:
            self._on_attach()

    def say_ports(self, secret: int, ports: list[int]) -> None:
        """Tell the peer where this end's paths begin; no ports: that they stand."""
        words = _SECRET.pack(secret) + b"".join(map(_PORT.pack, ports))
        self.queue(HEADER.pack(PORTS_TAG, len(words)), memoryview(words), None)

    def info(self) -> dict[str, Any] | None:
        """See Stream; and the datagrams'."""
        found = super().info()
        return None if found is None else {**found, **self._more()}

    def _begin(self, stage: bytearray, start: int) -> bool:
        tag, length = HEADER.unpack_from(stage, start)
        if tag in {GOODBYE_TAG, NOTE_TAG}:
            return super()._begin(stage, start)
        most = _SECRET.size + MAX_PATHS * _PORT.size
        if tag != PORTS_TAG or not _SECRET.size <= length <= most or length % _PORT.size:
            self.fail(f"it sent a message of {length} bytes where only ports, notes and goodbyes belong")
            return False
        self._ports = bytearray(length)
        self._target = memoryview(self._ports)
        return True

    def _arrived(self) -> None:
        if self._ports is None:
            super()._arrived()
            return
        ports, self._ports = self._ports, None
        (secret,) = _SECRET.unpack_from(ports)
        self._on_ports(secret, [port for (port,) in _PORT.iter_unpack(ports[_SECRET.size :])])

    def _lost(self, error: TransportError) -> None:
        super()._lost(error)
        self._on_end(error)


def new_secret() -> int:
    """What strangers do not know."""
    return secrets.randbits(32)

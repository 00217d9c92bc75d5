"""The TCP connection of an RDMA pair: it exchanges the addresses of queue pairs, and the goodbyes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from testbed.comm.transport.base import TransportError
from testbed.comm.transport.tcp import Connection
from testbed.comm.transport.wire import HEADER

ENDPOINTS_TAG, READY_TAG = 2**64 - 4, 2**64 - 5  # above all message tags
MAX_BYTES = 64 * 1024


class ControlConnection(Connection):
    """The control connection of one pair.

    Attributes:
        on_attach: Called when the connection is open.
        on_endpoints: Called with the peer's queue pairs.
        on_ready: Called when these are connected to this rank's.
        on_end: Called when the peer is lost.
        busy: Whether this rank's card waits for the peer's. The peer's card stays until its goodbye is answered, so
            call `resume_reading` when `busy` becomes false.
    """

    on_endpoints: Callable[[dict[str, Any]], None]
    on_ready: Callable[[], None]
    on_end: Callable[[TransportError], None]
    on_attach: Callable[[], None]
    busy: Callable[[], bool]
    _incoming: tuple[int, bytearray] | None = None

    def attach(self, sock: Any, watch: Any) -> None:
        """Attach the socket (see Stream), and start the exchange of queue pairs."""
        super().attach(sock, watch)
        if self.lost is None:
            self.on_attach()

    def send_endpoints(self, endpoints: dict[str, Any]) -> None:
        """Send the addresses of this rank's queue pairs."""
        data = json.dumps(endpoints).encode()
        self.queue(HEADER.pack(ENDPOINTS_TAG, len(data)), memoryview(data), None)

    def send_ready(self) -> None:
        """Confirm that they are connected to the peer's."""
        self.queue(HEADER.pack(READY_TAG, 0), memoryview(b""), None)

    def _begin_payload(self, stage: bytearray, start: int) -> bool:
        tag, length = HEADER.unpack_from(stage, start)
        if tag not in (ENDPOINTS_TAG, READY_TAG):
            return super()._begin_payload(stage, start)
        if length > MAX_BYTES:
            self.fail(f"it announces {length} bytes of queue pair addresses")
            return False
        self._incoming = tag, bytearray(length)
        self._target = memoryview(self._incoming[1])
        return True

    def _on_payload(self) -> None:
        if self._incoming is None:
            super()._on_payload()
            return
        (tag, data), self._incoming = self._incoming, None
        if tag == READY_TAG:
            self.on_ready()
            return
        try:
            endpoints = json.loads(data)
            if not isinstance(endpoints, dict):
                raise ValueError
        except ValueError:
            self.fail("its queue pair addresses are not a JSON object")
            return
        self.on_endpoints(endpoints)

    def _on_goodbye(self, reason: str, orderly: bool = False) -> None:
        if orderly and self.busy():
            self._pause()
        else:
            super()._on_goodbye(reason, orderly)

    def _on_lost(self, error: TransportError) -> None:
        super()._on_lost(error)
        self.on_end(error)

"""A pair's TCP connection: over it both ends tell where their queue pairs are, and say goodbye."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from testbed.comm.transport.base import TransportError
from testbed.comm.transport.tcp import Connection
from testbed.comm.transport.wire import HEADER

ENDPOINTS_TAG, READY_TAG = 2**64 - 4, 2**64 - 5  # above all tags of messages
MAX_BYTES = 64 * 1024


class ControlConnection(Connection):
    """on_join: called when it stands. on_where: with the peer's queue pairs. on_ready: when these are connected to this
    rank's. on_end: when the peer is lost. busy: whether this rank's card waits for the peer's, which stays as long as
    its goodbye is not answered: `go_on` once it does no longer.
    """

    on_where: Callable[[dict[str, Any]], None]
    on_ready: Callable[[], None]
    on_end: Callable[[TransportError], None]
    on_join: Callable[[], None]
    busy: Callable[[], bool]
    _said: tuple[int, bytearray] | None = None

    def attach(self, sock: Any, watch: Any) -> None:
        """See Stream; then the peer can be told."""
        super().attach(sock, watch)
        if self.lost is None:
            self.on_join()

    def tell_where(self, where: dict[str, Any]) -> None:
        """Where this rank's queue pairs are."""
        data = json.dumps(where).encode()
        self.queue(HEADER.pack(ENDPOINTS_TAG, len(data)), memoryview(data), None)

    def tell_ready(self) -> None:
        """They are connected to the peer's."""
        self.queue(HEADER.pack(READY_TAG, 0), memoryview(b""), None)

    def _begin(self, stage: bytearray, start: int) -> bool:
        tag, length = HEADER.unpack_from(stage, start)
        if tag not in (ENDPOINTS_TAG, READY_TAG):
            return super()._begin(stage, start)
        if length > MAX_BYTES:
            self.fail(f"it announces {length} bytes on its queue pairs")
            return False
        self._said = tag, bytearray(length)
        self._target = memoryview(self._said[1])
        return True

    def _arrived(self) -> None:
        if self._said is None:
            super()._arrived()
            return
        (tag, data), self._said = self._said, None
        if tag == READY_TAG:
            self.on_ready()
            return
        try:
            where = json.loads(data)
            if not isinstance(where, dict):
                raise ValueError
        except ValueError:
            self.fail("what it says of its queue pairs is not JSON")
            return
        self.on_where(where)

    def _end(self, reason: str, orderly: bool = False) -> None:
        if orderly and self.busy():
            self._pause()
        else:
            super()._end(reason, orderly)

    def _lost(self, error: TransportError) -> None:
        super()._lost(error)
        self.on_end(error)

"""Readings of a rank's connections while it works: round trips, windows, retransmissions, as TCP_INFO has them."""

from __future__ import annotations

import threading
import time
from typing import Any

from testbed.comm.transport.socket_view import Observed

# what grows as a connection does something
_DONE = ("bytes_acked", "retransmits", "went_back", "out_of_sequence")


class SocketSampler:
    """Reads all connections every `interval_s`, in a thread of its own, and keeps what changed. A context manager."""

    def __init__(self, rank: int, sockets: Observed, interval_s: float) -> None:
        self.records: list[dict[str, Any]] = []
        self._rank = rank
        self._sockets = sockets
        self._interval_s = interval_s
        self._seen: dict[tuple[Any, ...], int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="socket-sampler", daemon=True)

    def __enter__(self) -> SocketSampler:
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._stop.set()
        self._thread.join()
        self.sample()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.sample()

    def sample(self) -> None:
        """One reading of every connection that has done something since the last."""
        time_s = time.monotonic()
        for peer, key, figures in self._sockets.glances():
            connection = peer, key
            done = sum(figures.get(name, 0) for name in _DONE)
            if self._seen.get(connection) != done:
                self._seen[connection] = int(done)
                marks = {"dscp": key.traffic.dscp, "channel": key.channel}
                self.records.append({"time_s": time_s, "rank": self._rank, "peer": peer, **marks, **figures})

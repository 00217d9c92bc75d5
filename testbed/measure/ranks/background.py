"""Background traffic: a host of another job sends all that TCP takes to that job's hosts in other buildings."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

from testbed.comm.transport import SocketSettings, TrafficClass, TransportError
from testbed.workload.job.endpoints import BackgroundHost

BACKGROUND_PORT = 29_600
DIAL_TIMEOUT_S, DIAL_AGAIN_S = 5.0, 0.01
PIECE_BYTES = 256 * 1024


class _Ended(Exception):
    """SIGTERM has come."""


class BackgroundTraffic:
    """One host's share: `run` sends and receives until SIGTERM; returns what it received, ready for JSON."""

    def __init__(self, endpoint: BackgroundHost) -> None:
        self.endpoint = endpoint
        self.settings = SocketSettings(endpoint.congestion_control)
        self.received = 0
        self._selector = selectors.DefaultSelector()
        self._piece = memoryview(bytes(PIECE_BYTES))
        self._sink = memoryview(bytearray(PIECE_BYTES))

    def run(self) -> dict[str, Any]:
        """Until SIGTERM. Returns job, host, `received_bytes` and `time_s`. Raises OSError, TransportError."""
        signal.signal(signal.SIGTERM, _end)
        began_s = time.monotonic()
        with contextlib.suppress(_Ended):
            self._listen()
            for number, target in enumerate(self.endpoint.targets * self.endpoint.connections):
                self._selector.register(self._dial(target, number), selectors.EVENT_WRITE, self._send)
            while True:
                for key, _ in self._selector.select():
                    key.data(key.fileobj)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return {
            "job": self.endpoint.job,
            "host": self.endpoint.host,
            "received_bytes": self.received,
            "time_s": time.monotonic() - began_s,
        }

    def _listen(self) -> None:
        listener = self.settings.make()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self.endpoint.ip, BACKGROUND_PORT))
        listener.listen(512)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def _accept(self, listener: socket.socket) -> None:
        sock, _ = listener.accept()
        self.settings.apply(sock, TrafficClass(self.endpoint.dscp))
        self._selector.register(sock, selectors.EVENT_READ, self._receive)

    def _dial(self, target: str, number: int) -> socket.socket:
        """A connection, once the other end listens."""
        deadline_s = time.monotonic() + DIAL_TIMEOUT_S
        while True:
            sock = self.settings.make()
            self.settings.apply(sock, TrafficClass(self.endpoint.dscp))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self.endpoint.ip, self.endpoint.source_port + number))
            sock.settimeout(DIAL_TIMEOUT_S)
            try:
                sock.connect((target, BACKGROUND_PORT))
            except OSError as error:
                sock.close()
                if time.monotonic() > deadline_s:
                    raise TransportError(f"no connection with {target}: {error}") from None
                time.sleep(DIAL_AGAIN_S)
                continue
            sock.setblocking(False)
            return sock

    def _send(self, sock: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            sock.send(self._piece)

    def _receive(self, sock: socket.socket) -> None:
        count = sock.recv_into(self._sink)
        self.received += count
        if not count:
            self._selector.unregister(sock)
            sock.close()


def _end(number: int, frame: FrameType | None) -> None:
    raise _Ended


def end(pids: Sequence[int]) -> None:
    """End the background traffic of these processes: SIGTERM. One that has ended already is passed over."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)

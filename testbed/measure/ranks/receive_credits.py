"""Receivers tell senders that they wait for a message, at once and beside the network.

Where messages may not leave before they are waited for, as between accelerators whose receives are kernels in a queue:
there the telling takes microseconds, and so here it takes nothing. Datagrams between processes of one machine, on
sockets that their common parent makes before they are forked.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Sequence

_NOTE = struct.Struct("!II")
CreditSockets = Sequence[tuple[socket.socket, socket.socket]]
"""By rank: where it receives grants, and where others send theirs."""


def credit_sockets(ranks: int) -> CreditSockets:
    """To be made before the ranks' processes are."""
    return [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(ranks)]


class ReceiveCredits:
    """What receivers allow one rank to send. `on_grant` is called, in a thread of its own, for each message more."""

    def __init__(self, sockets: CreditSockets, rank: int, on_grant: Callable[[], None]) -> None:
        self._sockets, self._rank, self._on_grant = sockets, rank, on_grant
        self._notes: Counter[tuple[int, int]] = Counter()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def grant(self, sender: int, tag: int) -> None:
        """This rank waits for that message of that rank."""
        self._sockets[sender][1].send(_NOTE.pack(self._rank, tag))

    def take(self, receiver: int, tag: int) -> bool:
        """Whether a receiver waits for that message; each grant allows one."""
        with self._lock:
            if not self._notes[receiver, tag]:
                return False
            self._notes[receiver, tag] -= 1
            return True

    def _listen(self) -> None:
        while note := self._sockets[self._rank][0].recv(_NOTE.size):
            with self._lock:
                self._notes[_NOTE.unpack(note)] += 1
            self._on_grant()

    def close(self) -> None:
        """Stop listening."""
        self._sockets[self._rank][1].send(b"")
        self._thread.join(timeout=1.0)

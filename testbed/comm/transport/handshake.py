"""The first words on a new connection, until both ends know whom they talk to."""

from __future__ import annotations

import os
import select
import socket

from testbed.comm.transport.sockets import IPPROTO_MPTCP, subflows
from testbed.comm.transport.wire import HELLO_BYTES, ConnectionKey, Hello, make_hello, read_hello


class Handshake:
    """A socket that has not proven yet to belong to a rank of this job.

    peer, key: the rank that was dialled and for which connection; None on one that was accepted. incarnation: of this
    rank.
    """

    def __init__(
        self,
        sock: socket.socket,
        rank: int,
        size: int,
        token: str,
        peer: int | None,
        key: ConnectionKey | None,
        incarnation: int = 0,
    ) -> None:
        self.sock = sock
        self.peer = peer
        self.key = key
        self._rank = rank
        self._size = size
        self._token = token
        self._incarnation = incarnation
        self._spoken = False
        self._heard = b""

    @property
    def events(self) -> int:
        """The epoll events that it waits for."""
        return select.EPOLLIN if self.peer is None or self._spoken else select.EPOLLOUT

    def on_event(self) -> Hello | None:
        """Go on; what the peer said once it has.

        Raises OSError or ValueError saying why there will be none.
        """
        if self.peer is not None and self.key is not None and not self._spoken:
            number = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if number:
                raise OSError(number, os.strerror(number))
            self.speak(self.peer, self.key)
            return None
        try:
            # no more than the hello: what follows belongs to the connection
            data = self.sock.recv(HELLO_BYTES - len(self._heard))
        except BlockingIOError:
            return None
        if not data:
            raise ValueError(f"it closed after {len(self._heard)} of {HELLO_BYTES} bytes of its hello")
        self._heard += data
        if len(self._heard) < HELLO_BYTES:
            return None
        hello = read_hello(self._heard, self._rank, self._size, self._token)
        if self.peer is not None and (hello.sender, hello.key) != (self.peer, self.key):
            got = f"rank {hello.sender}, {hello.key}"
            raise ValueError(f"sender: got {got}, expected rank {self.peer}, {self.key}")
        return hello

    def speak(self, peer: int, key: ConnectionKey) -> None:
        """Say hello to this rank, for this connection. Raises OSError, or ValueError for MPTCP that is none."""
        if self.sock.proto == IPPROTO_MPTCP:
            subflows(self.sock)
        self._spoken = True
        # the first bytes of a connection: there is room for them
        self.sock.send(make_hello(self._rank, peer, self._size, self._token, key, self._incarnation))

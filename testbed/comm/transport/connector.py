"""Connection setup of a mesh: lower ranks listen, higher ranks dial and retry until a deadline.

A handshake is the first exchange on a new connection, until both ends know that the other is a rank of this job.
"""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from testbed.comm.transport.base import TransportError, TransportTimeout
from testbed.comm.transport.event_loop import EventLoop, ignore_events
from testbed.comm.transport.sockets import IPPROTO_MPTCP, MeshSettings, subflows
from testbed.comm.transport.stream import Stream
from testbed.comm.transport.wire import HELLO_BYTES, ConnectionKey, Hello, make_hello, read_hello

_FIRST_RETRY_S = 0.01
_LAST_RETRY_S = 0.2
_HELLO_TIMEOUT_S = 5.0
_MAX_UNKNOWN_CALLERS = 256
_IP_BIND_ADDRESS_NO_PORT = 24  # from linux/in.h


StreamKey = tuple[int, ConnectionKey]
"""A peer and the key of one connection with it."""


@dataclass
class _Handshake:
    """A socket that is not yet known to belong to a rank of this job.

    Attributes:
        sock: The socket, non-blocking.
        deadline_s: When the socket is closed if the handshake is incomplete.
        dialled: The connection that this rank dialled; None for an accepted one.
        hello_sent: Whether this rank has sent its hello.
        received: The bytes of the peer's hello so far.
    """

    sock: socket.socket
    deadline_s: float
    dialled: StreamKey | None = None
    hello_sent: bool = False
    received: bytes = b""

    @property
    def events(self) -> int:
        """The epoll events to wait for."""
        return select.EPOLLIN if self.dialled is None or self.hello_sent else select.EPOLLOUT


class Connector:
    """Connections that are being set up.

    Args:
        rank: This rank.
        addresses: (IPv4 address, port) of every rank, in rank order.
        settings: Sockets and timeouts.
        loop: The event loop.
        stream_at: Returns the stream of a connection, creating it if needed.
        on_hello: Called with a peer and its incarnation when its hello arrives. ValueError refuses the connection.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        settings: MeshSettings,
        loop: EventLoop,
        stream_at: Callable[[StreamKey], Stream],
        on_hello: Callable[[int, int], None],
    ) -> None:
        self.refused = 0  # connections that are not from this job
        self._rank = rank
        self._size = len(addresses)
        self._addresses = addresses
        self._settings = settings
        self._sockets = settings.sockets
        self._loop = loop
        self._stream_at = stream_at
        self._on_hello = on_hello
        self._deadlines_s: dict[StreamKey, float] = {}  # connections that this rank dials
        self._attempts: dict[StreamKey, tuple[float, str]] = {}  # when to retry, and why
        self._pauses_s: dict[StreamKey, float] = {}  # backoff
        self._handshakes: dict[int, _Handshake] = {}  # by file descriptor
        self._due_s = 0.0  # the earliest deadline of these
        self._listener: socket.socket | None = None

    @property
    def is_busy(self) -> bool:
        """Whether connections are being set up, so that `advance` has to be called."""
        return bool(self._deadlines_s or self._handshakes)

    def close(self) -> None:
        """Close the listener and all sockets that are still in their handshake."""
        for handshake in self._handshakes.values():
            handshake.sock.close()
        if self._listener is not None:
            self._listener.close()

    def dial(self, stream_key: StreamKey) -> None:
        """Start dialling a peer, unless the peer is the one that dials, or this is in progress."""
        if stream_key[0] < self._rank and stream_key not in self._deadlines_s:
            self._deadlines_s[stream_key] = time.monotonic() + self._settings.bootstrap_timeout_s
            self._attempts[stream_key] = (0.0, "not tried yet")
            self._due_s = 0.0

    def forget(self, peer: int) -> None:
        """Stop dialling a peer, and close connections with it that are being set up."""
        for handshake in list(self._handshakes.values()):
            if handshake.dialled is not None and handshake.dialled[0] == peer:
                self._fail_handshake(handshake, "given up")
        for by_key in (self._deadlines_s, self._attempts, self._pauses_s):
            for stream_key in [stream_key for stream_key in by_key if stream_key[0] == peer]:
                del by_key[stream_key]

    def listen(self, listener: socket.socket | None) -> None:
        """Accept connections on this rank's address, or on a socket that is bound already. Raises TransportError."""
        if self._rank == self._size - 1:
            self._listener = listener  # nobody dials the highest rank
            return
        if listener is None:
            listener = self._sockets.make()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            address = self._addresses[self._rank]
            try:
                listener.bind(address)
            except OSError as error:
                listener.close()
                raise TransportError(
                    f"rank {self._rank}: cannot listen on {address[0]}:{address[1]}: {error.strerror}"
                ) from None
        self._sockets.apply(listener)
        listener.listen(self._size + _MAX_UNKNOWN_CALLERS)
        self._loop.watch(listener, select.EPOLLIN, self._on_accept)
        self._listener = listener

    def advance(self, timeout_s: float | None) -> float | None:
        """Dial connections that are due and time out late ones.

        Return how long to block until the next deadline, in seconds.
        """
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = self._advance_all(now_s)
        left_s = max(0.0, self._due_s - now_s)
        return left_s if timeout_s is None else min(timeout_s, left_s)

    def _advance_all(self, now_s: float) -> float:
        self._due_s = due_s = math.inf
        for stream_key, deadline_s in list(self._deadlines_s.items()):
            if now_s >= deadline_s:
                self._time_out(stream_key)
                due_s = now_s  # do not block: requests have failed
                continue
            due_s = min(due_s, deadline_s)
            if stream_key in self._attempts:
                if now_s >= self._attempts[stream_key][0]:
                    self._dial(stream_key)
                if stream_key in self._attempts:
                    due_s = min(due_s, self._attempts[stream_key][0])
        for handshake in list(self._handshakes.values()):
            if now_s >= handshake.deadline_s:
                self._fail_handshake(handshake, f"no hello within {_HELLO_TIMEOUT_S:g} s")
            else:
                due_s = min(due_s, handshake.deadline_s)
        return min(due_s, self._due_s)  # dialling may have failed at once, and another attempt be due

    def _time_out(self, stream_key: StreamKey) -> None:
        for handshake in list(self._handshakes.values()):
            if handshake.dialled == stream_key:
                self._fail_handshake(handshake, "connected, but no hello came back")
        del self._deadlines_s[stream_key]
        _, reason = self._attempts.pop(stream_key)
        peer = stream_key[0]
        ip, port = self._addresses[peer]
        what = f"no connection ({ip}:{port}: {reason}) with"
        bound_s = self._settings.bootstrap_timeout_s
        self._stream_at(stream_key).fail(TransportTimeout(self._rank, [peer], what, bound_s))

    def _dial(self, stream_key: StreamKey) -> None:
        peer, key = stream_key
        sock = self._sockets.make()
        handshake = _Handshake(sock, self._deadlines_s[stream_key], stream_key)
        try:
            self._settings.settings_of(self._rank, *stream_key).apply(sock, key.traffic)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port = self._settings.local_port(self._rank, *stream_key)
            if not port:  # a port that is free towards this peer; ports free towards all peers would run out
                sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
            sock.bind((self._addresses[self._rank][0], port))
            number = sock.connect_ex(self._addresses[peer])
            if number not in {0, errno.EINPROGRESS}:
                raise OSError(number, os.strerror(number))
        except OSError as error:
            self._fail_handshake(handshake, str(error.strerror))
            return
        del self._attempts[stream_key]
        self._begin_handshake(handshake)

    def _on_accept(self, mask: int) -> None:
        """Accept one connection. epoll is level-triggered, so it reports further ones again."""
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:  # already closed
            return
        # room for all ranks and some unknown callers; dialled connections count, too
        if len(self._handshakes) >= 2 * self._size + _MAX_UNKNOWN_CALLERS:
            self.refused += 1
            sock.close()
            return
        handshake = _Handshake(sock, time.monotonic() + _HELLO_TIMEOUT_S)
        try:
            self._sockets.apply(sock)
        except OSError as error:  # reset meanwhile
            self._fail_handshake(handshake, str(error))
            return
        self._begin_handshake(handshake)

    def _begin_handshake(self, handshake: _Handshake) -> None:
        self._handshakes[handshake.sock.fileno()] = handshake
        self._due_s = min(self._due_s, handshake.deadline_s)
        self._loop.watch(handshake.sock, handshake.events, lambda mask: self._on_handshake(handshake))

    def _on_handshake(self, handshake: _Handshake) -> None:
        sock = handshake.sock
        try:
            hello = self._advance_handshake(handshake)
            if hello is None:
                self._loop.watch(sock, handshake.events, self._loop.handler_of(sock))
                return
            peer, key = stream_key = hello.sender, hello.key
            self._on_hello(peer, hello.incarnation)
            if handshake.dialled is None:
                if peer < self._rank:
                    raise ValueError(f"sender: got rank {peer}, expected a higher rank: lower ranks listen")
                stream = self._stream_at(stream_key)
                if stream.sock is not None or stream.lost is not None:
                    raise ValueError(f"sender: rank {peer} is connected already")
                self._settings.settings_of(self._rank, *stream_key).apply(sock, key.traffic)
                self._send_hello(handshake, stream_key)
            stream = self._stream_at(stream_key)
        except (OSError, ValueError) as error:
            self._fail_handshake(handshake, getattr(error, "strerror", None) or str(error))
            return
        self._deadlines_s.pop(stream_key, None)
        del self._handshakes[sock.fileno()]
        self._loop.watch(sock, 0, stream.on_event)
        priority = key.traffic.priority
        stream.attach(sock, lambda mask: self._loop.watch(sock, mask, stream.on_event, priority))

    def _fail_handshake(self, handshake: _Handshake, reason: str) -> None:
        """Close the socket. Schedule another attempt if this rank dialled."""
        sock = handshake.sock
        self._handshakes.pop(sock.fileno(), None)
        self._loop.watch(sock, 0, ignore_events)
        sock.close()
        if handshake.dialled is None:
            self.refused += 1
        else:
            stream_key = handshake.dialled
            pause_s = self._pauses_s.get(stream_key, _FIRST_RETRY_S)
            self._pauses_s[stream_key] = min(2 * pause_s, _LAST_RETRY_S)
            again_s = time.monotonic() + pause_s
            self._attempts[stream_key] = (again_s, reason)
            self._due_s = min(self._due_s, again_s)

    def _advance_handshake(self, handshake: _Handshake) -> Hello | None:
        """Continue a handshake; return the peer's hello, None until it is complete.

        Raises OSError or ValueError, with the reason, if it fails.
        """
        sock = handshake.sock
        if handshake.dialled is not None and not handshake.hello_sent:
            number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if number:
                raise OSError(number, os.strerror(number))
            self._send_hello(handshake, handshake.dialled)
            return None
        try:
            # read no more than the hello: the rest belongs to the connection
            data = sock.recv(HELLO_BYTES - len(handshake.received))
        except BlockingIOError:
            return None
        if not data:
            got = len(handshake.received)
            raise ValueError(f"it closed after {got} of {HELLO_BYTES} bytes of its hello")
        handshake.received += data
        if len(handshake.received) < HELLO_BYTES:
            return None
        hello = read_hello(handshake.received, self._rank, self._size, self._settings.token)
        if handshake.dialled is not None and (hello.sender, hello.key) != handshake.dialled:
            peer, key = handshake.dialled
            raise ValueError(f"sender: got rank {hello.sender}, {hello.key}, expected rank {peer}, {key}")
        return hello

    def _send_hello(self, handshake: _Handshake, to: StreamKey) -> None:
        """Send the hello for this connection. Raises OSError, or ValueError if MPTCP fell back to TCP."""
        if handshake.sock.proto == IPPROTO_MPTCP:
            subflows(handshake.sock)
        handshake.hello_sent = True
        settings = self._settings
        # the first bytes of a connection always fit the send buffer
        handshake.sock.send(
            make_hello(self._rank, to[0], self._size, settings.token, to[1], settings.incarnation)
        )

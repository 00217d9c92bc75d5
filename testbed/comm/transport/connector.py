"""Getting the connections of a mesh: lower ranks listen, higher ones dial, again and again until it is too late."""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import time
from collections.abc import Callable, Sequence

from testbed.comm.transport.base import TransportError, TransportTimeout
from testbed.comm.transport.event_loop import EventLoop
from testbed.comm.transport.sockets import IPPROTO_MPTCP, MeshSettings, subflows
from testbed.comm.transport.stream import Stream
from testbed.comm.transport.wire import HELLO_BYTES, ConnectionKey, Hello, make_hello, read_hello

_FIRST_RETRY_S = 0.01
_LAST_RETRY_S = 0.2
_HELLO_TIMEOUT_S = 5.0
_MAX_UNKNOWN_CALLERS = 256
_IP_BIND_ADDRESS_NO_PORT = 24  # of linux/in.h


StreamKey = tuple[int, ConnectionKey]
"""A peer, and which of the connections with it."""


class Connector:
    """What is under way until connections stand.

    stream_at: gives the stream of a which, begun if need be. came: is told a peer and its incarnation, as it said.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        settings: MeshSettings,
        loop: EventLoop,
        stream_at: Callable[[StreamKey], Stream],
        came: Callable[[int, int], None],
    ) -> None:
        self.refused = 0  # connections from elsewhere
        self._rank = rank
        self._size = len(addresses)
        self._addresses = addresses
        self._settings = settings
        self._sockets = settings.sockets
        self._loop = loop
        self._stream_at = stream_at
        self._came = came
        self._deadlines_s: dict[StreamKey, float] = {}  # of those that this rank dials
        self._attempts: dict[StreamKey, tuple[float, str]] = {}  # when to try again, and why
        self._pauses_s: dict[StreamKey, float] = {}  # for how long, if it fails again
        self._handshakes: dict[int, tuple[Handshake, float]] = {}  # per file descriptor, with its deadline
        self._due_s = 0.0  # when the first of these wants something
        self._listener: socket.socket | None = None

    @property
    def busy(self) -> bool:
        """Whether `tend` has something to do."""
        return bool(self._deadlines_s or self._handshakes)

    def close(self) -> None:
        """Give back what the kernel keeps for connections that do not stand."""
        for handshake, _ in self._handshakes.values():
            handshake.sock.close()
        if self._listener is not None:
            self._listener.close()

    def want(self, which: StreamKey) -> None:
        """Have this peer dialled, unless it is its own turn to dial, or that is under way."""
        if which[0] < self._rank and which not in self._deadlines_s:
            self._deadlines_s[which] = time.monotonic() + self._settings.bootstrap_timeout_s
            self._attempts[which] = (0.0, "not tried yet")
            self._due_s = 0.0

    def forget(self, peer: int) -> None:
        """Dial this peer no longer, let go of what is under way with it."""
        for handshake, _ in list(self._handshakes.values()):
            if handshake.peer == peer:
                self._fail_handshake(handshake, "given up")
        for found in (self._deadlines_s, self._attempts, self._pauses_s):
            for which in [which for which in found if which[0] == peer]:
                del found[which]

    def listen(self, listener: socket.socket | None) -> None:
        """Take calls on this rank's address, or on this socket, bound already. TransportError."""
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
        self._loop.watch(listener, select.EPOLLIN, self._on_caller)
        self._listener = listener

    def tend(self, timeout_s: float | None) -> float | None:
        """Dial where it is time, give up where it is too late; how long to wait until the next such thing."""
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = self._tend_all(now_s)
        left_s = max(0.0, self._due_s - now_s)
        return left_s if timeout_s is None else min(timeout_s, left_s)

    def _tend_all(self, now_s: float) -> float:
        """Look through all that is under way; when the next thing is due."""
        self._due_s = due_s = math.inf
        for which, deadline_s in list(self._deadlines_s.items()):
            if now_s >= deadline_s:
                self._give_up(which)
                due_s = now_s  # requests have ended: no waiting
                continue
            due_s = min(due_s, deadline_s)
            if which in self._attempts:
                if now_s >= self._attempts[which][0]:
                    self._dial(which)
                if which in self._attempts:
                    due_s = min(due_s, self._attempts[which][0])
        for handshake, deadline_s in list(self._handshakes.values()):
            if now_s >= deadline_s:
                self._fail_handshake(handshake, f"no hello within {_HELLO_TIMEOUT_S:g} s")
            else:
                due_s = min(due_s, deadline_s)
        return min(due_s, self._due_s)  # dialling may have failed at once, and be due again

    def _give_up(self, which: StreamKey) -> None:
        for handshake, _ in list(self._handshakes.values()):
            if (handshake.peer, handshake.key) == which:
                self._fail_handshake(handshake, "connected, but no hello came back")
        del self._deadlines_s[which]
        _, reason = self._attempts.pop(which)
        peer = which[0]
        ip, port = self._addresses[peer]
        what = f"no connection ({ip}:{port}: {reason}) with"
        bound_s = self._settings.bootstrap_timeout_s
        self._stream_at(which).fail(TransportTimeout(self._rank, [peer], what, bound_s))

    def _dial(self, which: StreamKey) -> None:
        peer, key = which
        sock = self._sockets.make()
        handshake = self._handshake(sock, peer, key)
        try:
            self._settings.settings_of(self._rank, *which).apply(sock, key.traffic)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port = self._settings.local_port(self._rank, *which)
            if not port:  # one that is free towards this peer, not towards all: there are enough of these
                sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
            sock.bind((self._addresses[self._rank][0], port))
            number = sock.connect_ex(self._addresses[peer])
            if number not in {0, errno.EINPROGRESS}:
                raise OSError(number, os.strerror(number))
        except OSError as error:
            self._fail_handshake(handshake, str(error.strerror))
            return
        self._begin_handshake(handshake, self._deadlines_s[which])

    def _on_caller(self, mask: int) -> None:
        """Accept one connection; epoll tells again of more."""
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:  # it has gone already
            return
        # as many as there are ranks may come at once, and some strangers; those that this rank dials count too
        if len(self._handshakes) >= 2 * self._size + _MAX_UNKNOWN_CALLERS:
            self.refused += 1
            sock.close()
            return
        handshake = self._handshake(sock, None, None)
        try:
            self._sockets.apply(sock)
        except OSError as error:  # reset in the meantime
            self._fail_handshake(handshake, str(error))
            return
        self._begin_handshake(handshake, time.monotonic() + _HELLO_TIMEOUT_S)

    def _handshake(self, sock: socket.socket, peer: int | None, key: ConnectionKey | None) -> Handshake:
        settings = self._settings
        return Handshake(sock, self._rank, self._size, settings.token, peer, key, settings.incarnation)

    def _begin_handshake(self, handshake: Handshake, deadline_s: float) -> None:
        self._handshakes[handshake.sock.fileno()] = (handshake, deadline_s)
        self._due_s = min(self._due_s, deadline_s)
        if handshake.peer is not None and handshake.key is not None:
            self._attempts.pop((handshake.peer, handshake.key), None)
        self._loop.watch(handshake.sock, handshake.events, lambda mask: self._on_handshake(handshake))

    def _on_handshake(self, handshake: Handshake) -> None:
        sock = handshake.sock
        try:
            hello = handshake.on_event()
            if hello is None:
                self._loop.watch(sock, handshake.events, self._loop.handler_of(sock))
                return
            peer, key = which = hello.sender, hello.key
            self._came(peer, hello.incarnation)
            if handshake.peer is None:
                if peer < self._rank:
                    raise ValueError(f"sender: rank {peer} has no business to dial")
                stream = self._stream_at(which)
                if stream.sock is not None or stream.lost is not None:
                    raise ValueError(f"sender: rank {peer} dialled before")
                self._settings.settings_of(self._rank, *which).apply(sock, key.traffic)
                handshake.speak(peer, key)
            stream = self._stream_at(which)
        except (OSError, ValueError) as error:
            self._fail_handshake(handshake, getattr(error, "strerror", None) or str(error))
            return
        self._deadlines_s.pop(which, None)
        del self._handshakes[sock.fileno()]
        self._loop.watch(sock, 0, stream.on_event)
        priority = key.traffic.priority
        stream.attach(sock, lambda mask: self._loop.watch(sock, mask, stream.on_event, priority))

    def _fail_handshake(self, handshake: Handshake, reason: str) -> None:
        """Let the socket go; dial again later when it was ours."""
        sock = handshake.sock
        self._handshakes.pop(sock.fileno(), None)
        self._loop.watch(sock, 0, _ignore)
        sock.close()
        if handshake.peer is None or handshake.key is None:
            self.refused += 1
        else:
            which = (handshake.peer, handshake.key)
            pause_s = self._pauses_s.get(which, _FIRST_RETRY_S)
            self._pauses_s[which] = min(2 * pause_s, _LAST_RETRY_S)
            again_s = time.monotonic() + pause_s
            self._attempts[which] = (again_s, reason)
            self._due_s = min(self._due_s, again_s)


def _ignore(mask: int) -> None:
    """The handler of what is no longer watched."""


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

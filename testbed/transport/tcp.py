"""Non-blocking TCP between ranks: one connection per pair, one thread, one epoll instance.

Of two ranks the lower listens and the higher dials. A connection is made when either side first uses it, or for all
peers at once with `connect`.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.transport.base import (
    MAX_TAG,
    PeerCounters,
    Request,
    TransportError,
    TransportTimeout,
    address_error,
    check_writable,
)
from testbed.transport.connection import Connection
from testbed.transport.handshake import Handshake
from testbed.transport.sockets import SocketSettings
from testbed.virtual import clock_here

_FIRST_RETRY_S = 0.01
_LAST_RETRY_S = 0.2
_HELLO_TIMEOUT_S = 5.0
_MAX_STRANGERS = 256
# epoll counts milliseconds and may add a thousandth of the time asked for; select is exact but slower
_EXACT_BELOW_S = 0.003


class TcpTransport:
    """One rank's TCP connections; see Transport for the messages.

    rank: this rank. addresses: (IPv4 address, port) of every rank, in rank order.
    token: the same for all ranks of a job; connections from any other job are refused.
    congestion_control: set on every socket and read back; None leaves the kernel's default.
    source_port: (rank, peer) -> local port of the connection that `rank` dials, for hashing that can be repeated.
    bootstrap_timeout_s: for dialling a peer, which may start later than this rank, until both have said hello.
    close_timeout_s: bound of `close`. max_staged_bytes: per peer, for messages that come before their receive; a peer
    that sends more has to wait. send_buffer_bytes, receive_buffer_bytes: of each socket; None: sized by the kernel.
    eager: connect to all peers at once. listener: a bound socket to listen on in place of this rank's address.

    Raises TransportError when a setting does not take, TransportTimeout when `eager` and a peer does not appear.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        *,
        token: str,
        congestion_control: str | None = None,
        source_port: Callable[[int, int], int] | None = None,
        bootstrap_timeout_s: float = 30.0,
        close_timeout_s: float = 2.0,
        max_staged_bytes: int = 256 * 1024**2,
        send_buffer_bytes: int | None = None,
        receive_buffer_bytes: int | None = None,
        eager: bool = False,
        listener: socket.socket | None = None,
    ) -> None:
        if not 0 <= rank < len(addresses):
            raise ValueError(f"rank: got {rank}, expected 0 to {len(addresses) - 1}, as there are addresses")
        self.rank = rank
        self.size = len(addresses)
        self.now_s = time.monotonic()
        self.refused = 0  # connections from elsewhere
        self._addresses = list(addresses)
        self._token = token
        self._settings = SocketSettings(congestion_control, send_buffer_bytes, receive_buffer_bytes)
        self._source_port = source_port
        self._bootstrap_timeout_s = bootstrap_timeout_s
        self._close_timeout_s = close_timeout_s
        self._closed = False
        self._connections = {
            peer: Connection(rank, peer, max_staged_bytes) for peer in range(self.size) if peer != rank
        }
        self._counters = {peer: connection.counters for peer, connection in self._connections.items()}
        _sharpen_timers()
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._masks: dict[int, int] = {}
        # what is under way until a connection stands
        self._deadlines_s: dict[int, float] = {}  # per peer that this rank dials
        self._attempts: dict[int, tuple[float, str]] = {}  # per such peer: when to try again, and why
        self._pauses_s: dict[int, float] = {}  # per such peer: for how long, if it fails again
        self._handshakes: dict[int, tuple[Handshake, float]] = {}  # per file descriptor, with its deadline
        self._listener: socket.socket | None = None
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
                self._settings.apply(trial)
            self._listener = self._listen(listener)
            if eager:
                self.connect()
        except BaseException:
            self._close_timeout_s = 0.0
            self.close()
            raise

    @property
    def counters(self) -> Mapping[int, PeerCounters]:
        """See Transport."""
        return self._counters

    def isend(self, peer: int, tag: int, view: memoryview) -> Request:
        """See Transport."""
        request = Request("send", peer, tag, view)
        self._connection(peer, tag).send(request)
        return request

    def irecv(self, peer: int, tag: int, view: memoryview) -> Request:
        """See Transport."""
        check_writable(view)
        request = Request("recv", peer, tag, view)
        self._connection(peer, tag).receive(request)
        return request

    def progress(self, timeout_s: float | None = 0.0) -> None:
        """See Transport."""
        if self._epoll.closed:
            self.now_s = time.monotonic()
            return
        if self._deadlines_s or self._handshakes:
            timeout_s = self._tend(timeout_s)
        handlers = self._handlers
        events = self._poll(timeout_s)
        self.now_s = time.monotonic()
        for descriptor, mask in events:
            handler = handlers.get(descriptor)
            if handler is not None:
                handler(mask)

    def connect(self, peers: Iterable[int] | None = None) -> None:
        """Connect to these peers (all by default), which must do likewise, within the bootstrap timeout.

        Raises TransportTimeout naming the peers that did not appear, or the error that a connection ended with.
        """
        wanted = sorted(self._connections if peers is None else peers)
        deadline_s = time.monotonic() + self._bootstrap_timeout_s
        while True:
            connections = [self._connection(peer, 0) for peer in wanted]
            for connection in connections:
                if connection.lost is not None:
                    raise connection.lost
            missing = [connection.peer for connection in connections if connection.sock is None]
            left_s = deadline_s - time.monotonic()
            if not missing:
                return
            if left_s <= 0:
                raise TransportTimeout(
                    self.rank, missing, "waiting to connect with", self._bootstrap_timeout_s
                )
            self.progress(left_s)

    def socket_info(self) -> list[dict[str, Any]]:
        """Per connection, open or past: `peer`, and what `Connection.info` tells. Ready for JSON."""
        infos = [(peer, connection.info()) for peer, connection in self._connections.items()]
        return [{"peer": peer, **info} for peer, info in infos if info is not None]

    def close(self) -> None:
        """See Transport. Takes a round trip to the peers, at most `close_timeout_s`."""
        if self._closed:
            return
        self._closed = True
        deadline_s = time.monotonic() + self._close_timeout_s
        connections = self._connections.values()
        for connection in connections:
            connection.say_goodbye()
        while not all(connection.settled for connection in connections):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                break
            self.progress(left_s)
        for connection in connections:
            connection.fail("this rank has closed its transport")
        for handshake, _ in self._handshakes.values():
            handshake.sock.close()
        if self._listener is not None:
            self._listener.close()
        self._epoll.close()

    # ---- the event loop

    def _poll(self, timeout_s: float | None) -> list[tuple[int, int]]:
        if timeout_s is None:
            return self._epoll.poll()
        if timeout_s > _EXACT_BELOW_S:
            # wakes up too early rather than too late; the caller comes again for the rest
            return self._epoll.poll((math.floor(timeout_s * 995.0 - 1.0) - 0.5) / 1000.0)  # rounded up
        if timeout_s > 0:
            readable, _, _ = select.select((self._epoll,), (), (), timeout_s)
            if not readable:
                return []
        return self._epoll.poll(0)

    def _watch(self, sock: socket.socket, mask: int, handler: Callable[[int], None]) -> None:
        """Have `handler` called for these events of the socket; 0 for no longer."""
        descriptor = sock.fileno()
        before = self._masks.get(descriptor, 0)
        if not mask:
            if before:
                self._epoll.unregister(descriptor)
                del self._masks[descriptor], self._handlers[descriptor]
            return
        if mask != before:
            if before:
                self._epoll.modify(descriptor, mask)
            else:
                self._epoll.register(descriptor, mask)
            self._masks[descriptor] = mask
        self._handlers[descriptor] = handler

    # ---- getting connected

    def _connection(self, peer: int, tag: int) -> Connection:
        """The connection with a peer, begun if need be."""
        connection = self._connections.get(peer)
        if connection is None or not 0 <= tag <= MAX_TAG:
            raise address_error(self, peer, tag)
        if connection.sock is None and connection.lost is None:
            self._want(peer)
        return connection

    def _want(self, peer: int) -> None:
        """Have this peer dialled, unless it is its own turn to dial, or that is under way."""
        if peer < self.rank and peer not in self._deadlines_s:
            self._deadlines_s[peer] = time.monotonic() + self._bootstrap_timeout_s
            self._attempts[peer] = (0.0, "not tried yet")

    def _listen(self, listener: socket.socket | None) -> socket.socket | None:
        if self.rank == self.size - 1:
            return listener  # nobody dials the highest rank
        if listener is None:
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            address = self._addresses[self.rank]
            try:
                listener.bind(address)
            except OSError as error:
                listener.close()
                raise TransportError(
                    f"rank {self.rank}: cannot listen on {address[0]}:{address[1]}: {error.strerror}"
                ) from None
        self._settings.apply(listener)
        listener.listen(self.size + _MAX_STRANGERS)
        self._watch(listener, select.EPOLLIN, self._on_caller)
        return listener

    def _tend(self, timeout_s: float | None) -> float | None:
        """Dial where it is time, give up where it is too late; how long to wait until the next such thing."""
        now_s = time.monotonic()
        due_s = math.inf
        for peer, deadline_s in list(self._deadlines_s.items()):
            if now_s >= deadline_s:
                self._give_up(peer)
                due_s = now_s  # requests have ended: no waiting
                continue
            due_s = min(due_s, deadline_s)
            if peer in self._attempts:
                if now_s >= self._attempts[peer][0]:
                    self._dial(peer)
                if peer in self._attempts:
                    due_s = min(due_s, self._attempts[peer][0])
        for handshake, deadline_s in list(self._handshakes.values()):
            if now_s >= deadline_s:
                self._fail_handshake(handshake, f"no hello within {_HELLO_TIMEOUT_S:g} s")
            else:
                due_s = min(due_s, deadline_s)
        left_s = max(0.0, due_s - now_s)
        return left_s if timeout_s is None else min(timeout_s, left_s)

    def _give_up(self, peer: int) -> None:
        for handshake, _ in list(self._handshakes.values()):
            if handshake.peer == peer:
                self._fail_handshake(handshake, "connected, but no hello came back")
        del self._deadlines_s[peer]
        _, reason = self._attempts.pop(peer)
        ip, port = self._addresses[peer]
        what = f"no connection ({ip}:{port}: {reason}) with"
        self._connections[peer].fail(TransportTimeout(self.rank, [peer], what, self._bootstrap_timeout_s))

    def _dial(self, peer: int) -> None:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        handshake = Handshake(sock, self.rank, self.size, self._token, peer)
        try:
            self._settings.apply(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port = self._source_port(self.rank, peer) if self._source_port else 0
            sock.bind((self._addresses[self.rank][0], port))
            number = sock.connect_ex(self._addresses[peer])
            if number not in {0, errno.EINPROGRESS}:
                raise OSError(number, os.strerror(number))
        except OSError as error:
            self._fail_handshake(handshake, str(error.strerror))
            return
        self._begin_handshake(handshake, self._deadlines_s[peer])

    def _on_caller(self, mask: int) -> None:
        """Accept one connection; epoll tells again of more."""
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:  # it has gone already
            return
        if len(self._handshakes) >= _MAX_STRANGERS:
            self.refused += 1
            sock.close()
            return
        handshake = Handshake(sock, self.rank, self.size, self._token, None)
        try:
            self._settings.apply(sock)
        except OSError as error:  # reset in the meantime
            self._fail_handshake(handshake, str(error))
            return
        self._begin_handshake(handshake, time.monotonic() + _HELLO_TIMEOUT_S)

    def _begin_handshake(self, handshake: Handshake, deadline_s: float) -> None:
        self._handshakes[handshake.sock.fileno()] = (handshake, deadline_s)
        if handshake.peer is not None:
            self._attempts.pop(handshake.peer, None)
        self._watch(handshake.sock, handshake.events, lambda mask: self._on_handshake(handshake))

    def _on_handshake(self, handshake: Handshake) -> None:
        try:
            peer = handshake.on_event()
            if peer is None:
                self._watch(handshake.sock, handshake.events, self._handlers[handshake.sock.fileno()])
                return
            connection = self._connections[peer]
            if handshake.peer is None:
                if peer < self.rank or connection.sock is not None or connection.lost is not None:
                    raise ValueError(f"sender: rank {peer} has no business to dial, or did before")
                handshake.speak(peer)
        except (OSError, ValueError) as error:
            self._fail_handshake(handshake, getattr(error, "strerror", None) or str(error))
            return
        self._deadlines_s.pop(peer, None)
        sock = handshake.sock
        del self._handshakes[sock.fileno()]
        self._watch(sock, 0, connection.on_event)
        connection.attach(sock, lambda mask: self._watch(sock, mask, connection.on_event))

    def _fail_handshake(self, handshake: Handshake, reason: str) -> None:
        """Let the socket go; dial again later when it was ours."""
        sock, peer = handshake.sock, handshake.peer
        self._handshakes.pop(sock.fileno(), None)
        self._watch(sock, 0, _ignore)
        sock.close()
        if peer is None:
            self.refused += 1
        else:
            pause_s = self._pauses_s.get(peer, _FIRST_RETRY_S)
            self._pauses_s[peer] = min(2 * pause_s, _LAST_RETRY_S)
            self._attempts[peer] = (time.monotonic() + pause_s, reason)


def _sharpen_timers() -> None:
    """Have the kernel wake this process when its time has come, not up to 50 us later as it does by default.

    Waiting for sockets it allows itself a thousandth of the time-out on top, save for real-time processes. Where
    computing takes no time, that class costs nobody anything.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text("1")
        if clock_here() == "free":
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def _ignore(mask: int) -> None:
    """The handler of what is no longer watched."""

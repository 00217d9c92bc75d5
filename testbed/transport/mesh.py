"""TCP sockets between all ranks that want them: one thread, one epoll instance, lower ranks listen, higher ones dial.

What goes over them is for those who derive from `Mesh`: `tcp`, `striped`.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from testbed.transport.base import (
    BEST_EFFORT,
    CONTROL_TAG,
    MAX_TAG,
    PeerCounters,
    Request,
    TrafficClass,
    TransportError,
    TransportTimeout,
    address_error,
    check_traffic_class,
    check_writable,
    reason_bytes,
)
from testbed.transport.handshake import Handshake
from testbed.transport.loop import EventLoop, sharpen_timers
from testbed.transport.sockets import MeshSettings
from testbed.transport.stream import Stream
from testbed.transport.wire import ConnectionKey

_FIRST_RETRY_S = 0.01
_LAST_RETRY_S = 0.2
_HELLO_TIMEOUT_S = 5.0
_MAX_STRANGERS = 256
_IP_BIND_ADDRESS_NO_PORT = 24  # of linux/in.h


class Way(Protocol):
    """A connection, or several, that messages take."""

    def send(self, request: Request) -> None:
        """Send now as far as the kernel takes it, the rest when it can."""

    def receive(self, request: Request) -> None:
        """Take the oldest message of the request's tag, or post the request for it."""


Place = tuple[int, ConnectionKey]  # a peer, and which of the connections with it


class Mesh:
    """One rank's sockets.

    addresses: (IPv4 address, port) of every rank, in rank order. listener: a bound socket to listen on in place of this
    rank's address. eager: connect to all peers at once. Raises TransportError when a setting does not take,
    TransportTimeout when `eager` and a peer does not appear.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        settings: MeshSettings,
        listener: socket.socket | None,
        eager: bool,
    ) -> None:
        if not 0 <= rank < len(addresses):
            raise ValueError(f"rank: got {rank}, expected 0 to {len(addresses) - 1}, as there are addresses")
        self.rank = rank
        self.size = len(addresses)
        self.now_s = time.monotonic()
        self.refused = 0  # connections from elsewhere
        self.settings = settings
        self._addresses = list(addresses)
        self._sockets = settings.sockets
        self._counters = {peer: PeerCounters() for peer in range(self.size) if peer != rank}
        self._streams: dict[Place, Stream] = {}
        self._ended: TransportError | None = None  # why streams made from now on are lost
        self._closed = False
        self._leftover: list[socket.socket] = []
        sharpen_timers()
        self._loop = EventLoop()
        # what is under way until a connection stands
        self._deadlines_s: dict[Place, float] = {}  # of those that this rank dials
        self._attempts: dict[Place, tuple[float, str]] = {}  # when to try again, and why
        self._pauses_s: dict[Place, float] = {}  # for how long, if it fails again
        self._handshakes: dict[int, tuple[Handshake, float]] = {}  # per file descriptor, with its deadline
        self._due_s = 0.0  # when the first of these wants something
        self._listener: socket.socket | None = None
        try:
            with self._sockets.make() as trial:
                self._sockets.apply(trial)
            self._listener = self._listen(listener)
            if eager:
                self.connect()
        except BaseException:
            self._closed = True
            self._end_all("this rank has closed its transport")
            self._give_back()
            raise

    # ---- for those who derive

    def _way(self, peer: int, tag: int, traffic: TrafficClass) -> Way:
        """What carries messages of this class to and from a peer, begun if need be. ValueError for bad addresses."""
        raise NotImplementedError

    def _make_stream(self, peer: int, key: ConnectionKey) -> Stream:
        """The stream for a connection that this rank or a peer wants. ValueError if there should be none."""
        raise NotImplementedError

    def _keys(self, peer: int) -> list[ConnectionKey]:
        """The connections with a peer that `connect` makes."""
        raise NotImplementedError

    # ---- the transport

    def isend(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """See Transport."""
        request = Request("send", peer, tag, view)
        self._way(peer, tag, traffic).send(request)
        return request

    def irecv(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """See Transport."""
        check_writable(view)
        request = Request("recv", peer, tag, view)
        self._way(peer, tag, traffic).receive(request)
        return request

    @property
    def counters(self) -> Mapping[int, PeerCounters]:
        """See Transport."""
        return self._counters

    def progress(self, timeout_s: float | None = 0.0) -> None:
        """See Transport."""
        if self._loop.closed:
            self.now_s = time.monotonic()
            return
        if self._deadlines_s or self._handshakes:
            timeout_s = self._tend(timeout_s)
        events = self._loop.poll(timeout_s)
        self.now_s = time.monotonic()
        self._loop.handle(events)

    def connect(self, peers: Iterable[int] | None = None) -> None:
        """Connect to these peers (all by default), which must do likewise, within the bootstrap timeout.

        Raises TransportTimeout naming the peers that did not appear, or the error that a connection ended with.
        """
        wanted = sorted(self._counters if peers is None else peers)
        bound_s = self.settings.bootstrap_timeout_s
        deadline_s = time.monotonic() + bound_s
        missing = [self._stream(peer, key) for peer in wanted for key in self._keys(peer)]
        while True:
            missing = [stream for stream in missing if stream.sock is None or stream.lost is not None]
            for stream in missing:
                if stream.lost is not None:
                    raise stream.lost
            if not missing:
                return
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                peers = sorted({stream.peer for stream in missing})
                raise TransportTimeout(self.rank, peers, "waiting to connect with", bound_s)
            self.progress(left_s)

    def socket_info(self) -> list[dict[str, Any]]:
        """Per connection, open or past: `peer`, class and lane where they are not 0, `Stream.info`. Ready for JSON."""
        entries = []
        for (peer, (traffic, lane, _)), stream in sorted(self._streams.items(), key=lambda item: item[0]):
            info = stream.info()
            if info is not None:
                marks = {"dscp": traffic.dscp, "priority": traffic.priority, "lane": lane}
                entries.append({"peer": peer, **{k: v for k, v in marks.items() if v}, **info})
        return entries

    def wake(self) -> None:
        """See Transport."""
        self._loop.wake()

    def abort(self, reason: str) -> None:
        """See Transport."""
        for stream in self._streams.values():
            sock = stream.farewell(reason_bytes(reason)) if stream.lost is None else None
            if sock is not None:
                self._leftover.append(sock)
        self._end_all("this rank has aborted")

    def close(self) -> None:
        """See Transport. Takes a round trip to the peers, at most `close_timeout_s`."""
        if self._closed:
            return
        self._closed = True
        deadline_s = time.monotonic() + self.settings.close_timeout_s
        self._before_goodbye(deadline_s)
        for stream in self._streams.values():
            stream.say_goodbye()
        while not all(stream.settled for stream in self._streams.values()):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                break
            self.progress(left_s)
        self._end_all("this rank has closed its transport")
        self._give_back()

    def _before_goodbye(self, deadline_s: float) -> None:
        """What has to be said before; nothing, unless one who derives knows something."""

    def _end_all(self, reason: str) -> None:
        for stream in list(self._streams.values()):
            stream.fail(reason)
        self._ended = TransportError(reason)

    def _give_back(self) -> None:
        """Everything that the kernel keeps for us."""
        for sock in self._leftover:
            # what the peers have sent is read, or closing would reset the connection before they heard why
            with contextlib.suppress(OSError):
                while sock.recv(1 << 20):
                    pass
            sock.close()
        for handshake, _ in self._handshakes.values():
            handshake.sock.close()
        if self._listener is not None:
            self._listener.close()
        self._loop.close()

    # ---- streams

    def _stream(self, peer: int, key: ConnectionKey) -> Stream:
        """The stream of one connection with a peer, begun if need be."""
        stream = self._streams.get((peer, key))
        if stream is None:
            stream = self._new_stream(peer, key)
        if stream.sock is None and stream.lost is None:
            self._want((peer, key))
        return stream

    def _new_stream(self, peer: int, key: ConnectionKey) -> Stream:
        check_traffic_class(key.traffic)
        stream = self._make_stream(peer, key)
        self._streams[peer, key] = stream
        if self._ended is not None:
            stream.fail(str(self._ended))
        return stream

    def _check_address(self, peer: int, tag: int) -> None:
        if peer not in self._counters or not (0 <= tag <= MAX_TAG or tag == CONTROL_TAG):
            raise address_error(self.rank, self.size, peer, tag)

    # ---- getting connected

    def _want(self, place: Place) -> None:
        """Have this peer dialled, unless it is its own turn to dial, or that is under way."""
        if place[0] < self.rank and place not in self._deadlines_s:
            self._deadlines_s[place] = time.monotonic() + self.settings.bootstrap_timeout_s
            self._attempts[place] = (0.0, "not tried yet")
            self._due_s = 0.0

    def _listen(self, listener: socket.socket | None) -> socket.socket | None:
        if self.rank == self.size - 1:
            return listener  # nobody dials the highest rank
        if listener is None:
            listener = self._sockets.make()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            address = self._addresses[self.rank]
            try:
                listener.bind(address)
            except OSError as error:
                listener.close()
                raise TransportError(
                    f"rank {self.rank}: cannot listen on {address[0]}:{address[1]}: {error.strerror}"
                ) from None
        self._sockets.apply(listener)
        listener.listen(self.size + _MAX_STRANGERS)
        self._loop.watch(listener, select.EPOLLIN, self._on_caller)
        return listener

    def _tend(self, timeout_s: float | None) -> float | None:
        """Dial where it is time, give up where it is too late; how long to wait until the next such thing."""
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = self._tend_all(now_s)
        left_s = max(0.0, self._due_s - now_s)
        return left_s if timeout_s is None else min(timeout_s, left_s)

    def _tend_all(self, now_s: float) -> float:
        """Look through all that is under way; when the next thing is due."""
        self._due_s = due_s = math.inf
        for place, deadline_s in list(self._deadlines_s.items()):
            if now_s >= deadline_s:
                self._give_up(place)
                due_s = now_s  # requests have ended: no waiting
                continue
            due_s = min(due_s, deadline_s)
            if place in self._attempts:
                if now_s >= self._attempts[place][0]:
                    self._dial(place)
                if place in self._attempts:
                    due_s = min(due_s, self._attempts[place][0])
        for handshake, deadline_s in list(self._handshakes.values()):
            if now_s >= deadline_s:
                self._fail_handshake(handshake, f"no hello within {_HELLO_TIMEOUT_S:g} s")
            else:
                due_s = min(due_s, deadline_s)
        return min(due_s, self._due_s)  # dialling may have failed at once, and be due again

    def _give_up(self, place: Place) -> None:
        for handshake, _ in list(self._handshakes.values()):
            if (handshake.peer, handshake.key) == place:
                self._fail_handshake(handshake, "connected, but no hello came back")
        del self._deadlines_s[place]
        _, reason = self._attempts.pop(place)
        peer = place[0]
        ip, port = self._addresses[peer]
        what = f"no connection ({ip}:{port}: {reason}) with"
        bound_s = self.settings.bootstrap_timeout_s
        self._streams[place].fail(TransportTimeout(self.rank, [peer], what, bound_s))

    def _dial(self, place: Place) -> None:
        peer, key = place
        sock = self._sockets.make()
        handshake = Handshake(sock, self.rank, self.size, self.settings.token, peer, key)
        try:
            self._sockets.apply(sock, key.traffic)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port = self._local_port(place)
            if not port:  # one that is free towards this peer, not towards all: there are enough of these
                sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
            sock.bind((self._addresses[self.rank][0], port))
            number = sock.connect_ex(self._addresses[peer])
            if number not in {0, errno.EINPROGRESS}:
                raise OSError(number, os.strerror(number))
        except OSError as error:
            self._fail_handshake(handshake, str(error.strerror))
            return
        self._begin_handshake(handshake, self._deadlines_s[place])

    def _local_port(self, place: Place) -> int:
        if self.settings.source_port is None:
            return 0
        return self.settings.source_port(self.rank, *place)

    def _on_caller(self, mask: int) -> None:
        """Accept one connection; epoll tells again of more."""
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:  # it has gone already
            return
        # as many as there are ranks may come at once, and some strangers; those that this rank dials count too
        if len(self._handshakes) >= 2 * self.size + _MAX_STRANGERS:
            self.refused += 1
            sock.close()
            return
        handshake = Handshake(sock, self.rank, self.size, self.settings.token, None, None)
        try:
            self._sockets.apply(sock)
        except OSError as error:  # reset in the meantime
            self._fail_handshake(handshake, str(error))
            return
        self._begin_handshake(handshake, time.monotonic() + _HELLO_TIMEOUT_S)

    def _begin_handshake(self, handshake: Handshake, deadline_s: float) -> None:
        self._handshakes[handshake.sock.fileno()] = (handshake, deadline_s)
        self._due_s = min(self._due_s, deadline_s)
        if handshake.peer is not None and handshake.key is not None:
            self._attempts.pop((handshake.peer, handshake.key), None)
        self._loop.watch(handshake.sock, handshake.events, lambda mask: self._on_handshake(handshake))

    def _on_handshake(self, handshake: Handshake) -> None:
        sock = handshake.sock
        try:
            place = handshake.on_event()
            if place is None:
                self._loop.watch(sock, handshake.events, self._loop.handler_of(sock))
                return
            peer, key = place
            if handshake.peer is None:
                if peer < self.rank:
                    raise ValueError(f"sender: rank {peer} has no business to dial")
                stream = self._streams.get(place) or self._new_stream(peer, key)
                if stream.sock is not None or stream.lost is not None:
                    raise ValueError(f"sender: rank {peer} dialled before")
                self._sockets.mark(sock, key.traffic)
                handshake.speak(peer, key)
            stream = self._streams[place]
        except (OSError, ValueError) as error:
            self._fail_handshake(handshake, getattr(error, "strerror", None) or str(error))
            return
        self._deadlines_s.pop(place, None)
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
            place = (handshake.peer, handshake.key)
            pause_s = self._pauses_s.get(place, _FIRST_RETRY_S)
            self._pauses_s[place] = min(2 * pause_s, _LAST_RETRY_S)
            again_s = time.monotonic() + pause_s
            self._attempts[place] = (again_s, reason)
            self._due_s = min(self._due_s, again_s)


def _ignore(mask: int) -> None:
    """The handler of what is no longer watched."""

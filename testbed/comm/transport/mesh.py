"""TCP sockets between the ranks of a job, in one thread on one epoll instance.

Lower ranks listen, higher ranks dial.

Subclasses of `Mesh` define what goes over the sockets: see `tcp` and `striped`.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from testbed.comm.transport.base import (
    BEST_EFFORT,
    CONTROL_TAG,
    MAX_TAG,
    OnNote,
    OnPeerLost,
    PeerCounterMap,
    PeerCounters,
    PeerLost,
    Request,
    TrafficClass,
    TransportError,
    TransportTimeout,
    address_error,
    check_traffic_class,
    check_writable,
    encode_reason,
)
from testbed.comm.transport.connector import Connector, StreamKey
from testbed.comm.transport.event_loop import EventLoop, set_timer_slack
from testbed.comm.transport.onesided import ExposedWindows, PeerEnd, is_one_sided, is_put
from testbed.comm.transport.socket_view import SocketView
from testbed.comm.transport.sockets import MeshSettings
from testbed.comm.transport.stream import Stream
from testbed.comm.transport.wire import ConnectionKey


class Pair(Protocol):
    """The connections to one peer for one class of traffic.

    Attributes:
        lost: Why nothing more will arrive from the peer.
    """

    lost: TransportError | None

    @property
    def is_connected(self) -> bool:
        """Whether all of its connections are open, or were."""

    @property
    def can_say_goodbye(self) -> bool:
        """Whether everything has been sent that must precede the goodbye."""

    def send(self, request: Request) -> None:
        """Send as much as the kernel accepts now, and the rest later."""

    def receive(self, request: Request) -> None:
        """Take the oldest message of the request's tag, or post the request."""


PairT = TypeVar("PairT", bound=Pair)


class Mesh(SocketView, Generic[PairT]):
    """One rank's sockets, and its pairs with the other ranks.

    Args:
        rank: This rank.
        addresses: (IPv4 address, port) of every rank, in rank order.
        settings: Sockets and timeouts.
        eager: Connect to all peers at once.
        listener: A bound socket to listen on instead of this rank's address.

    Raises:
        TransportError: If a setting does not take effect.
        TransportTimeout: If `eager` is set and a peer does not appear.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        settings: MeshSettings,
        *,
        eager: bool = False,
        listener: socket.socket | None = None,
    ) -> None:
        if not 0 <= rank < len(addresses):
            raise ValueError(
                f"rank: got {rank}, expected 0 to {len(addresses) - 1}, one below the number of addresses"
            )
        super().__init__()
        self.rank = rank
        self.size = len(addresses)
        self.now_s = time.monotonic()
        self.settings = settings
        self.exposed = ExposedWindows()
        self._counters = PeerCounterMap(rank, self.size)
        self._best_effort: dict[int, PairT] = {}  # pairs by peer
        self._pairs: dict[TrafficClass, dict[int, PairT]] = {BEST_EFFORT: self._best_effort}
        self._ended: TransportError | None = None  # why new streams fail at once
        self._closed = False
        self._aborted_sockets: list[socket.socket] = []
        set_timer_slack()
        self._loop = EventLoop()
        self.on_note: OnNote | None = None
        self.on_peer_lost: OnPeerLost | None = None
        self.incarnations: dict[int, int] = {}
        self._connector = Connector(rank, addresses, settings, self._loop, self._stream_at, self._on_hello)
        try:
            with settings.sockets.make() as trial:
                settings.sockets.apply(trial)
            self._connector.listen(listener)
            if eager:
                self.connect()
        except BaseException:
            self._closed = True
            self._end_all("this rank has closed its transport")
            self._release_sockets()
            raise

    # ---- for subclasses

    def _make_stream(self, peer: int, key: ConnectionKey) -> Stream:
        """Return a new stream for a connection that this rank or a peer wants, and make its pair if there is none.

        Raises ValueError if there should be no such connection.
        """
        raise NotImplementedError

    def _end(self, peer: int) -> PeerEnd:
        return PeerEnd(self.rank, peer, self._counters[peer], self.exposed, self.settings.max_staged_bytes)

    def _keys(self, peer: int, traffic: TrafficClass = BEST_EFFORT) -> list[ConnectionKey]:
        """Return the connections of a pair."""
        return [ConnectionKey(traffic)]

    def _drop_lost(self, peer: int) -> None:
        """Forget all lost pairs with a peer."""
        for pairs in self._pairs.values():
            if peer in pairs and pairs[peer].lost is not None:
                del pairs[peer]

    # ---- the transport

    def isend(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """See Transport."""
        request = Request("send", peer, tag, view)
        self._pair(peer, tag, traffic).send(request)
        return request

    def irecv(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """See Transport."""
        if is_put(tag):
            raise address_error(self.rank, self.size, peer, tag)
        check_writable(view)
        request = Request("recv", peer, tag, view)
        self._pair(peer, tag, traffic).receive(request)
        return request

    def _pair(self, peer: int, tag: int, traffic: TrafficClass) -> PairT:
        """Return the pair for messages of this class with a peer, creating it if needed. Raises ValueError."""
        pairs = self._best_effort if traffic is BEST_EFFORT else self._pairs.get(traffic, {})
        pair = pairs.get(peer)
        if pair is None or not 0 <= tag <= MAX_TAG:
            self._check_address(peer, tag)
        if pair is None or (pair.lost is None and not pair.is_connected):
            for key in self._keys(peer, traffic):
                self._stream(peer, key)
            pair = self._pairs[traffic][peer]
        return pair

    @property
    def connections(self) -> int:
        """The number of connections, including those that are being set up."""
        return len(self._streams)

    @property
    def refused(self) -> int:
        """The number of refused connections, which were not from this job."""
        return self._connector.refused

    @property
    def counters(self) -> Mapping[int, PeerCounters]:
        """See Transport."""
        return self._counters

    def progress(self, timeout_s: float | None = 0.0) -> None:
        """See Transport."""
        if self._loop.closed:
            self.now_s = time.monotonic()
            return
        if self._connector.is_busy:
            timeout_s = self._connector.advance(timeout_s)
        stall_detector = self.stall_detector
        if stall_detector is not None:
            timeout_s = stall_detector.wait_s if timeout_s is None else min(timeout_s, stall_detector.wait_s)
        events = self._loop.poll(timeout_s)
        before_s, self.now_s = self.now_s, time.monotonic()
        if stall_detector is not None and self.now_s - before_s > stall_detector.gap_s:
            stall_detector.gaps.append((before_s, self.now_s))
        self._loop.handle(events)

    def connect(self, peers: Iterable[int] | None = None) -> None:
        """Connect to these peers (default: all), which must do the same, within the bootstrap timeout.

        Raises:
            TransportTimeout: If peers do not appear; names them.
            TransportError: The error of a connection that failed.
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

    def wake(self) -> None:
        """See Transport."""
        self._loop.wake()

    def abort(self, reason: str) -> None:
        """See Transport."""
        for stream in self._streams.values():
            sock = stream.send_abort(encode_reason(reason)) if stream.lost is None else None
            if sock is not None:
                self._aborted_sockets.append(sock)
        self.on_peer_lost = None  # the caller knows
        self._end_all("this rank has aborted")

    def close(self) -> None:
        """See Transport. Takes a round trip to the peers, at most `close_timeout_s`."""
        if self._closed:
            return
        self._closed = True
        self.on_peer_lost = None
        deadline_s = time.monotonic() + self.settings.close_timeout_s
        self._before_goodbye(deadline_s)
        for stream in self._streams.values():
            stream.say_goodbye()
        self._progress_until(lambda: all(stream.can_close for stream in self._streams.values()), deadline_s)
        self._end_all("this rank has closed its transport")
        self._release_sockets()

    def send_note(self, peer: int, data: bytes) -> None:
        """See PeerEvents."""
        self._check_address(peer, 0)
        stream = self._stream(peer, self._keys(peer)[0])
        if stream.lost is None:
            stream.send_note(data)

    def forget(self, peer: int) -> None:
        """See PeerEvents."""
        self._check_address(peer, 0)
        self._connector.forget(peer)
        for stream_key, stream in list(self._streams.items()):
            if stream_key[0] == peer:
                stream.on_lost = None  # the caller knows
                stream.reset("this rank dropped it")
                del self._streams[stream_key]
        self._drop_lost(peer)

    def _on_hello(self, peer: int, incarnation: int) -> None:
        """Handle a peer's hello. Raises ValueError if a later incarnation of the peer is known."""
        known = self.incarnations.get(peer, 0)
        if incarnation < known:
            raise ValueError(f"incarnation: got {incarnation}, expected {known} or more")
        if incarnation == known:
            return
        self.incarnations[peer] = incarnation
        for stream_key, stream in list(self._streams.items()):
            if stream_key[0] == peer and (stream.sock is not None or stream.lost is not None):
                stream.reset(f"it came back as incarnation {incarnation}")
                del self._streams[stream_key]
        self._drop_lost(peer)

    def _on_stream_lost(self, error: TransportError) -> None:
        if isinstance(error, TransportTimeout):  # the peer never appeared
            error = PeerLost(self.rank, error.peers[0], str(error))
        if self.on_peer_lost is not None and isinstance(error, PeerLost) and not error.orderly:
            self.on_peer_lost(error)

    def _on_note(self, peer: int, data: bytes) -> None:
        if self.on_note is not None:
            self.on_note(peer, data)

    def _before_goodbye(self, deadline_s: float) -> None:
        """Wait until everything that must precede the goodbye is sent."""
        self._progress_until(
            lambda: all(pair.can_say_goodbye for pairs in self._pairs.values() for pair in pairs.values()),
            deadline_s,
        )

    def _progress_until(self, done: Callable[[], bool], deadline_s: float) -> None:
        while not done():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            self.progress(left_s)

    def _end_all(self, reason: str) -> None:
        for stream in list(self._streams.values()):
            stream.fail(reason)
        self._ended = TransportError(reason)

    def _release_sockets(self) -> None:
        for sock in self._aborted_sockets:
            # read what the peers have sent: otherwise close would reset the connection before they read the reason
            with contextlib.suppress(OSError):
                while sock.recv(1 << 20):
                    pass
            sock.close()
        self._connector.close()
        self._loop.close()

    # ---- streams

    def _stream(self, peer: int, key: ConnectionKey) -> Stream:
        """Return the stream of one connection with a peer, and dial it if needed."""
        stream = self._streams.get((peer, key))
        if stream is None:
            stream = self._new_stream(peer, key)
        if stream.sock is None and stream.lost is None:
            self._connector.dial((peer, key))
        return stream

    def _stream_at(self, stream_key: StreamKey) -> Stream:
        """Return the stream of a connection that a peer wants."""
        return self._streams.get(stream_key) or self._new_stream(*stream_key)

    def _new_stream(self, peer: int, key: ConnectionKey) -> Stream:
        check_traffic_class(key.traffic)
        stream = self._make_stream(peer, key)
        stream.on_lost, stream.on_note = self._on_stream_lost, self._on_note
        self._streams[peer, key] = stream
        if self._ended is not None:
            stream.fail(str(self._ended))
        return stream

    def _check_address(self, peer: int, tag: int) -> None:
        if peer not in self._counters or not (0 <= tag <= MAX_TAG or tag == CONTROL_TAG or is_one_sided(tag)):
            raise address_error(self.rank, self.size, peer, tag)

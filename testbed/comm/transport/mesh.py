"""TCP sockets between all ranks that want them: one thread, one epoll instance, lower ranks listen, higher ones dial.

What goes over them is for those who derive from `Mesh`: `tcp`, `striped`.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, Protocol

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
from testbed.comm.transport.event_loop import EventLoop, StallDetector, set_timer_slack
from testbed.comm.transport.onesided import ExposedWindows, is_one_sided, is_put
from testbed.comm.transport.sockets import (
    MeshSettings,
    SocketOptions,
    WireCounts,
    describe_socket_state,
    read_socket_options,
    read_wire_counts,
    snapshot_connection,
)
from testbed.comm.transport.stream import Stream
from testbed.comm.transport.wire import ConnectionKey


class PeerConnections(Protocol):
    """A connection, or several, that messages take."""

    def send(self, request: Request) -> None:
        """Send now as far as the kernel takes it, the rest when it can."""

    def receive(self, request: Request) -> None:
        """Take the oldest message of the request's tag, or post the request for it."""


class Mesh:
    """One rank's sockets.

    addresses: (IPv4 address, port) of every rank, in rank order. listener: a bound socket to listen on in place of this
    rank's address. eager: connect to all peers at once. Raises TransportError when a setting does not take,
    TransportTimeout when `eager` and a peer does not appear.
    """

    counts_payload = True  # whether `peer_counts` has the bytes of messages

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
        self.settings = settings
        self.stall_detector: StallDetector | None = None
        self.exposed = ExposedWindows()
        self._counters = PeerCounterMap(rank, self.size)
        self._streams: dict[StreamKey, Stream] = {}
        self._ended: TransportError | None = None  # why streams made from now on are lost
        self._closed = False
        self._leftover: list[socket.socket] = []
        set_timer_slack()
        self._loop = EventLoop()
        self.on_note: OnNote | None = None
        self.on_peer_lost: OnPeerLost | None = None
        self.incarnations: dict[int, int] = {}
        self._connecting = Connector(rank, addresses, settings, self._loop, self._stream_at, self._came)
        try:
            with settings.sockets.make() as trial:
                settings.sockets.apply(trial)
            self._connecting.listen(listener)
            if eager:
                self.connect()
        except BaseException:
            self._closed = True
            self._end_all("this rank has closed its transport")
            self._give_back()
            raise

    # ---- for those who derive

    def _connections_to(self, peer: int, tag: int, traffic: TrafficClass) -> PeerConnections:
        """What carries messages of this class to and from a peer, begun if need be. ValueError for bad addresses."""
        raise NotImplementedError

    def _make_stream(self, peer: int, key: ConnectionKey) -> Stream:
        """The stream for a connection that this rank or a peer wants. ValueError if there should be none."""
        raise NotImplementedError

    def _keys(self, peer: int) -> list[ConnectionKey]:
        """The connections with a peer that `connect` makes."""
        raise NotImplementedError

    def _drop(self, peer: int) -> None:
        """Forget all connections with a peer that are lost."""
        raise NotImplementedError

    # ---- the transport

    def isend(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """See Transport."""
        request = Request("send", peer, tag, view)
        self._connections_to(peer, tag, traffic).send(request)
        return request

    def irecv(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """See Transport."""
        if is_put(tag):
            raise address_error(self.rank, self.size, peer, tag)
        check_writable(view)
        request = Request("recv", peer, tag, view)
        self._connections_to(peer, tag, traffic).receive(request)
        return request

    @property
    def connections(self) -> int:
        """How many there are, or are begun."""
        return len(self._streams)

    @property
    def refused(self) -> int:
        """Connections from elsewhere that were turned away."""
        return self._connecting.refused

    @property
    def counters(self) -> Mapping[int, PeerCounters]:
        """See Transport."""
        return self._counters

    def progress(self, timeout_s: float | None = 0.0) -> None:
        """See Transport."""
        if self._loop.closed:
            self.now_s = time.monotonic()
            return
        if self._connecting.busy:
            timeout_s = self._connecting.tend(timeout_s)
        stall_detector = self.stall_detector
        if stall_detector is not None:
            timeout_s = stall_detector.wait_s if timeout_s is None else min(timeout_s, stall_detector.wait_s)
        events = self._loop.poll(timeout_s)
        before_s, self.now_s = self.now_s, time.monotonic()
        if stall_detector is not None and self.now_s - before_s > stall_detector.gap_s:
            stall_detector.gaps.append((before_s, self.now_s))
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
        """Per connection, open or past: `peer`, class and channel unless 0, `Stream.info`. Ready for JSON."""
        entries = []
        for (peer, (traffic, channel, _)), stream in sorted(self._streams.items(), key=lambda item: item[0]):
            info = stream.info()
            if info is not None:
                marks = {"dscp": traffic.dscp, "priority": traffic.priority, "channel": channel}
                entries.append({"peer": peer, **{k: v for k, v in marks.items() if v}, **info})
        return entries

    def glances(self) -> list[tuple[int, ConnectionKey, dict[str, float]]]:
        """Peer, which connection, `sockets.snapshot_connection` of all that are open. Any thread may ask."""
        found = []
        for (peer, key), stream in list(self._streams.items()):
            if (sock := stream.sock) is not None:
                with contextlib.suppress(OSError):  # it is closed at this moment
                    found.append((peer, key, snapshot_connection(sock)))
        return found

    def open_connections(self) -> frozenset[object]:
        """What stands for each that is open, for as long as it is."""
        return frozenset(stream for stream in self._streams.values() if stream.sock is not None)

    def peer_counts(self) -> dict[int, WireCounts] | None:
        """Return what the kernel has carried for the open connections with each peer; None where it does not tell."""
        found: dict[int, WireCounts] = {}
        try:
            for (peer, _), stream in self._streams.items():
                if stream.sock is not None:
                    found[peer] = found.get(peer, WireCounts()).plus(read_wire_counts(stream.sock))
        except OSError:
            return None
        return found

    def socket_options(self) -> dict[tuple[int, object], SocketOptions]:
        """Return the options of every open connection, by its peer and what stands for it in `open_connections`."""
        found: dict[tuple[int, object], SocketOptions] = {}
        for (peer, _), stream in self._streams.items():
            if stream.sock is not None:
                with contextlib.suppress(OSError):  # it is closed at this moment
                    found[peer, stream] = read_socket_options(stream.sock)
        return found

    def wire_counts(self, peers: Mapping[int, WireCounts]) -> WireCounts | None:
        """Return what was carried for all peers together; None where nothing tells. peers: as `peer_counts` has it."""
        return reduce(WireCounts.plus, peers.values(), WireCounts())

    def state_words(self, peers: Iterable[int]) -> str:
        """How the connections with these peers stand, for people who wonder why nothing comes."""
        wanted, found = set(peers), []
        for (peer, key), stream in sorted(self._streams.items(), key=lambda item: item[0]):
            if peer not in wanted:
                continue
            words = "none yet" if stream.lost is None else "lost"
            if (sock := stream.sock) is not None:
                with contextlib.suppress(OSError):
                    words = describe_socket_state(sock)
            which = f", channel {key.channel}" if key.channels else ""
            found.append(f"connection with rank {peer}{which}: {words}")
        return "; ".join(found)

    def wake(self) -> None:
        """See Transport."""
        self._loop.wake()

    def abort(self, reason: str) -> None:
        """See Transport."""
        for stream in self._streams.values():
            sock = stream.farewell(encode_reason(reason)) if stream.lost is None else None
            if sock is not None:
                self._leftover.append(sock)
        self.on_peer_lost = None  # it knows
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
        self._progress_until(lambda: all(stream.settled for stream in self._streams.values()), deadline_s)
        self._end_all("this rank has closed its transport")
        self._give_back()

    def tell(self, peer: int, data: bytes) -> None:
        """See TellsOfPeers."""
        self._check_address(peer, 0)
        stream = self._stream(peer, self._keys(peer)[0])
        if stream.lost is None:
            stream.tell(data)

    def forget(self, peer: int) -> None:
        """See TellsOfPeers."""
        self._check_address(peer, 0)
        self._connecting.forget(peer)
        for which, stream in list(self._streams.items()):
            if which[0] == peer:
                stream.on_lost = None  # whoever forgets it knows
                stream.give_up("it was given up")
                del self._streams[which]
        self._drop(peer)

    def _came(self, peer: int, incarnation: int) -> None:
        """A peer said hello. ValueError where a later incarnation of it has been heard of."""
        known = self.incarnations.get(peer, 0)
        if incarnation < known:
            raise ValueError(f"incarnation: got {incarnation}, expected {known} or more")
        if incarnation == known:
            return
        self.incarnations[peer] = incarnation
        for which, stream in list(self._streams.items()):
            if which[0] == peer and (stream.sock is not None or stream.lost is not None):
                stream.give_up(f"it came back, for the {incarnation}. time")
                del self._streams[which]
        self._drop(peer)

    def _on_stream_lost(self, error: TransportError) -> None:
        if isinstance(error, TransportTimeout):  # it never appeared
            error = PeerLost(self.rank, error.peers[0], str(error))
        if self.on_peer_lost is not None and isinstance(error, PeerLost) and not error.orderly:
            self.on_peer_lost(error)

    def _on_note(self, peer: int, data: bytes) -> None:
        if self.on_note is not None:
            self.on_note(peer, data)

    def _before_goodbye(self, deadline_s: float) -> None:
        """What has to be said before; nothing, unless one who derives knows something."""

    def _progress_until(self, done: Callable[[], bool], deadline_s: float) -> None:
        """Go on until that is so, or it is too late."""
        while not done():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            self.progress(left_s)

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
        self._connecting.close()
        self._loop.close()

    # ---- streams

    def _stream(self, peer: int, key: ConnectionKey) -> Stream:
        """The stream of one connection with a peer, begun if need be."""
        stream = self._streams.get((peer, key))
        if stream is None:
            stream = self._new_stream(peer, key)
        if stream.sock is None and stream.lost is None:
            self._connecting.want((peer, key))
        return stream

    def _stream_at(self, which: StreamKey) -> Stream:
        """The stream of a connection that a peer wants."""
        return self._streams.get(which) or self._new_stream(*which)

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

"""Non-blocking TCP between ranks: one connection per pair and class of traffic.

A connection is made when either side first uses it, or for all peers at once with `connect`.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from testbed.comm.transport.base import (
    BEST_EFFORT,
    MAX_NOTE_BYTES,
    MAX_REASON_BYTES,
    MAX_TAG,
    PeerCounters,
    Request,
    TrafficClass,
    TransportError,
    describe_abort,
)
from testbed.comm.transport.mailbox import Mailbox, Staged, wrong_length
from testbed.comm.transport.mesh import Mesh
from testbed.comm.transport.onesided import ExposedWindows, is_put
from testbed.comm.transport.sockets import MeshSettings
from testbed.comm.transport.stream import Stream
from testbed.comm.transport.wire import GOODBYE_TAG, HEADER, HEADER_BYTES, NOTE_TAG, ConnectionKey


class TcpTransport(Mesh):
    """One rank's TCP (or MPTCP) connections; see Transport for the messages, MeshSettings for `settings`.

    rank: this rank. addresses: (IPv4 address, port) of every rank, in rank order. eager: connect to all peers at once.
    listener: a bound socket to listen on in place of this rank's address.

    Raises TransportError when a setting does not take, TransportTimeout when `eager` and a peer does not appear.
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
        self._connections: dict[TrafficClass, dict[int, Connection]] = {BEST_EFFORT: {}}
        self._usual = self._connections[BEST_EFFORT]
        super().__init__(rank, addresses, settings, listener, eager)

    def _connections_to(self, peer: int, tag: int, traffic: TrafficClass) -> Connection:
        """The connection with a peer, begun if need be."""
        connections = self._usual if traffic is BEST_EFFORT else self._connections.get(traffic, {})
        connection = connections.get(peer)
        if connection is None or not 0 <= tag <= MAX_TAG:
            self._check_address(peer, tag)
        if connection is None or (connection.sock is None and connection.lost is None):
            stream = self._stream(peer, ConnectionKey(traffic))
            assert isinstance(stream, Connection)
            return stream
        return connection

    def _make_stream(self, peer: int, key: ConnectionKey) -> Connection:
        if key.channel or key.channels:
            raise ValueError(f"channel: got {key.channel} of {key.channels}, expected none")
        made = Connection(self.rank, peer, self.settings.max_staged_bytes, self._counters[peer], self.exposed)
        self._connections.setdefault(key.traffic, {})[peer] = made
        return made

    def _drop(self, peer: int) -> None:
        for connections in self._connections.values():
            if peer in connections and connections[peer].lost is not None:
                del connections[peer]

    def _keys(self, peer: int) -> list[ConnectionKey]:
        return [ConnectionKey()]


class Connection(Stream):
    """Sends and receives are accepted at any time; they wait for the socket, and fail once the peer is lost."""

    header_bytes = HEADER_BYTES

    def __init__(
        self, rank: int, peer: int, max_staged_bytes: int, counters: PeerCounters, exposed: ExposedWindows
    ) -> None:
        super().__init__(rank, peer)
        self.exposed = exposed
        self.counters = counters
        self._max_staged_bytes = max_staged_bytes
        self._mailbox = Mailbox()
        self._into: Request | Staged | None = None  # the message that is coming in
        self._farewell: bytearray | None = None  # the peer's, which is coming in
        self._told: bytearray | None = None  # a note of the peer's, which is coming in

    # ---- what the rank asks for

    def send(self, request: Request) -> None:
        """Send now as far as the kernel takes it, the rest when it can."""
        if self.lost is not None:
            request.fail(self.lost)
        else:
            self.queue(HEADER.pack(request.tag, len(request.view)), request.view, request)

    def receive(self, request: Request) -> None:
        """Take the oldest message of the request's tag, or post the request for it."""
        staged = self._mailbox.take_staged(request.tag)
        if staged is None:
            if self.lost is not None:
                request.fail(self.lost)
                return
            self._mailbox.post(request)
        elif len(staged.view) != len(request.view):
            request.fail(self._wrong_length(request, len(staged.view)))
        elif staged is self._into:
            # still coming in: what has come is copied, the rest goes to its place directly
            assert self._target is not None
            come = len(staged.view) - len(self._target)
            request.view[:come] = staged.view[:come]
            self.counters.bytes_copied += come
            self._target = request.view[come:]
            self._into = request
        else:
            if staged.view:
                request.view[:] = staged.view
                self.counters.bytes_copied += len(staged.view)
            request.complete()
        self.go_on()

    # ---- what the stream tells

    def _sent(self, what: Request, size_bytes: int) -> None:
        counters = self.counters
        counters.messages_sent += 1
        counters.bytes_sent += size_bytes
        counters.header_bytes_sent += HEADER_BYTES
        what.complete()

    def _goodbye(self, reason: bytes) -> bytes:
        return HEADER.pack(GOODBYE_TAG, len(reason))

    def _note(self, data: bytes) -> bytes:
        return HEADER.pack(NOTE_TAG, len(data))

    def _begin(self, stage: bytearray, start: int) -> bool:
        """Find the place for a message; False when it has none."""
        tag, length = HEADER.unpack_from(stage, start)
        into: Request | Staged
        if tag == GOODBYE_TAG:
            return self._begin_farewell(length)
        if tag == NOTE_TAG:
            return self._begin_note(length)
        if is_put(tag):
            return self._begin_put(tag, length)
        request = self._mailbox.take_posted(tag)
        if request is not None and len(request.view) == length:
            into = request
        elif request is not None:
            error = self._wrong_length(request, length)
            request.fail(error)
            if length > self._max_staged_bytes:
                self.fail(error)
                return False
            into = Staged(length)  # goes nowhere; what follows may still make sense
        elif self._mailbox.has_room(length, self._max_staged_bytes):
            into = self._mailbox.stage(tag, length)
        else:
            # the peer has to wait: its bytes stay in the kernel until a receive is posted
            self._pause()
            return False
        self._into = into
        self._target = into.view
        return True

    def _begin_note(self, length: int) -> bool:
        if length > MAX_NOTE_BYTES:
            self.fail(f"its note announces {length} bytes")
            return False
        self._told = bytearray(length)
        self._target = memoryview(self._told)
        return True

    def _begin_put(self, tag: int, length: int) -> bool:
        """It goes straight into a window of this rank's."""
        placed = self.exposed.place(self.peer, tag, length)
        if isinstance(placed, str):
            self.fail(placed)
            return False
        self._into, self._target = placed, placed.view
        return True

    def _begin_farewell(self, length: int) -> bool:
        """The peer gives its reason, if it has one, and nothing after that."""
        if length == 0:
            self._end("it closed its end", orderly=True)
            return False
        if length > MAX_REASON_BYTES:
            self._end(f"its goodbye announces {length} bytes")
            return False
        self._farewell = bytearray(length)
        self._target = memoryview(self._farewell)
        return True

    def _arrived(self) -> None:
        """The message that was coming in is whole."""
        if self._told is not None:
            told, self._told = bytes(self._told), None
            if self.on_note is not None:
                self.on_note(self.peer, told)
            return
        into = self._into
        self._into = None
        if into is None:
            assert self._farewell is not None
            self._end(describe_abort(self._farewell))
            return
        counters = self.counters
        counters.messages_received += 1
        counters.bytes_received += len(into.view)
        counters.header_bytes_received += HEADER_BYTES
        if isinstance(into, Request):
            into.complete()

    def fail(self, reason: TransportError | str) -> None:
        """The peer is lost: fail all that waits for it. Whole messages can still be received."""
        outgoing = [what for _, _, what in self._outgoing if what is not None] if self.lost is None else []
        super().fail(reason)
        assert self.lost is not None
        for request in outgoing:
            request.fail(self.lost)

    def _lost(self, error: TransportError) -> None:
        into, self._into = self._into, None
        if isinstance(into, Staged):
            self._mailbox.discard(into)
        elif into is not None:
            into.fail(error)
        self._mailbox.fail(error)

    def _wrong_length(self, request: Request, length: int) -> TransportError:
        return wrong_length(self.rank, self.peer, request.tag, length, len(request.view))

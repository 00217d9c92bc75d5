"""Non-blocking TCP between ranks: one connection per pair of ranks and class of traffic.

A connection is made when either side first uses it, or to all peers at once with `connect`. It carries whole messages,
one after another, which are received straight into the buffers of their receives.
"""

from __future__ import annotations

from testbed.comm.transport.base import (
    Request,
    TransportError,
)
from testbed.comm.transport.mailbox import Mailbox, Staged, wrong_length
from testbed.comm.transport.mesh import Mesh
from testbed.comm.transport.onesided import PeerEnd, is_put
from testbed.comm.transport.stream import Stream
from testbed.comm.transport.wire import GOODBYE_TAG, HEADER, HEADER_BYTES, NOTE_TAG, ConnectionKey


class TcpTransport(Mesh["Connection"]):
    """One rank's TCP or MPTCP connections; see Transport for the messages, Mesh for the arguments and errors."""

    def _make_stream(self, peer: int, key: ConnectionKey) -> Connection:
        if key.channel or key.channels:
            raise ValueError(f"channel: got {key.channel} of {key.channels}, expected none")
        made = self._pairs.setdefault(key.traffic, {})[peer] = Connection(self._end(peer))
        return made


class Connection(Stream):
    """A connection with one peer.

    Sends and receives are always accepted: they wait for the socket, and fail if the peer is lost.
    """

    header_bytes = HEADER_BYTES
    can_say_goodbye = True  # the goodbye is sent after all messages

    def __init__(self, end: PeerEnd) -> None:
        super().__init__(end.rank, end.peer)
        *_, self.counters, self.exposed, self._max_staged_bytes = end
        self._mailbox = Mailbox()
        self._into: Request | Staged | None = None  # the message being received

    # ---- called by the rank

    def send(self, request: Request) -> None:
        """Send as much as the kernel accepts now, and the rest later."""
        if self.lost is not None:
            request.fail(self.lost)
        else:
            self.queue(HEADER.pack(request.tag, len(request.view)), request.view, request)

    def receive(self, request: Request) -> None:
        """Take the oldest message of the request's tag, or post the request."""
        staged = self._mailbox.take_staged(request.tag)
        if staged is None:
            if self.lost is not None:
                request.fail(self.lost)
                return
            self._mailbox.posted.put(request.tag, request)
        elif len(staged.view) != len(request.view):
            request.fail(self._wrong_length(request, len(staged.view)))
        elif staged is self._into:
            # still being received: copy what has arrived, receive the rest in place
            assert self._target is not None
            received = len(staged.view) - len(self._target)
            request.view[:received] = staged.view[:received]
            self.counters.bytes_copied += received
            self._target = request.view[received:]
            self._into = request
        else:
            if staged.view:
                request.view[:] = staged.view
                self.counters.bytes_copied += len(staged.view)
            request.complete()
        self.resume_reading()

    # ---- called by the stream

    def _on_frame_sent(self, request: Request, size_bytes: int) -> None:
        counters = self.counters
        counters.messages_sent += 1
        counters.bytes_sent += size_bytes
        counters.header_bytes_sent += HEADER_BYTES
        request.complete()

    def _goodbye_header(self, reason: bytes) -> bytes:
        return HEADER.pack(GOODBYE_TAG, len(reason))

    def _note_header(self, data: bytes) -> bytes:
        return HEADER.pack(NOTE_TAG, len(data))

    def _begin_payload(self, stage: bytearray, start: int) -> bool:
        """Find the buffer for a message; False if there is no room for it."""
        tag, length = HEADER.unpack_from(stage, start)
        into: Request | Staged
        if tag == GOODBYE_TAG:
            return self._begin_goodbye(length)
        if tag == NOTE_TAG:
            return self._begin_note(length)
        if is_put(tag):
            return self._begin_put(tag, length)
        request = self._mailbox.posted.take(tag)
        if request is not None and len(request.view) == length:
            into = request
        elif request is not None:
            error = self._wrong_length(request, length)
            request.fail(error)
            if length > self._max_staged_bytes:
                self.fail(error)
                return False
            into = Staged(length)  # the message is dropped; later messages may still be valid
        elif self._mailbox.has_room(length, self._max_staged_bytes):
            into = self._mailbox.stage(tag, length)
        else:
            # flow control: its bytes stay in the kernel until a receive is posted
            self._pause()
            return False
        self._into = into
        self._target = into.view
        return True

    def _begin_put(self, tag: int, length: int) -> bool:
        placed = self.exposed.place(self.peer, tag, length)
        if isinstance(placed, str):
            self.fail(placed)
            return False
        self._into, self._target = placed, placed.view
        return True

    def _on_payload(self) -> None:
        if self._control is not None:
            super()._on_payload()
            return
        into, self._into = self._into, None
        assert into is not None
        counters = self.counters
        counters.messages_received += 1
        counters.bytes_received += len(into.view)
        counters.header_bytes_received += HEADER_BYTES
        if isinstance(into, Request):
            into.complete()

    def fail(self, reason: TransportError | str) -> None:
        """Mark the peer as lost and fail all requests for it. Whole messages can still be received."""
        outgoing = (
            [request for _, _, request in self._outgoing if request is not None] if self.lost is None else []
        )
        super().fail(reason)
        assert self.lost is not None
        for request in outgoing:
            request.fail(self.lost)

    def _on_lost(self, error: TransportError) -> None:
        into, self._into = self._into, None
        if isinstance(into, Staged):
            self._mailbox.discard(into)
        elif into is not None:
            into.fail(error)
        self._mailbox.fail(error)

    def _wrong_length(self, request: Request, length: int) -> TransportError:
        return wrong_length(self.rank, self.peer, request.tag, length, len(request.view))

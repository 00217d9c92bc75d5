"""One message over several connections: cut into segments, dealt out to channels that have room, put together again.

After NCCLX's dynamic queue-pair load balancing (DQPLB; arXiv:2510.20171, and the public code `CtranIbVc`): segments go
round the channels, one with too many of them unacknowledged is passed over, sequence numbers let the receiver put them
in order, the last segment of a message notifies, and small messages take a fast path over channel 0. Here a channel is
a TCP connection, its completions are acknowledgements of the receiver's, and data go to where the receive was posted.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from testbed.comm.transport.base import (
    MAX_NOTE_BYTES,
    MAX_REASON_BYTES,
    Request,
    TransportError,
    describe_abort,
)
from testbed.comm.transport.reassembly import IncomingMessage
from testbed.comm.transport.stream import NOTHING, Stream

FRAME = struct.Struct("<BBHIIIQQQ")
_SEGMENT, _ACK, _NOTIFY, _GOODBYE, _NOTE = 1, 2, 3, 4, 5
LAST, FAST = 1, 2
MIN_SEGMENT_BYTES = 256

MODES = ("dqplb", "spray")


@dataclass(frozen=True)
class StripeSettings:
    """How messages to a peer are cut and dealt out; both ends of a pair have the same.

    connections: how many channels. segment_bytes: of a segment at most. outstanding: segments of a channel without
    acknowledgement. together: those of all pairs with these settings; None: any number. mode: "dqplb" numbers segments
    through, and messages end in their order; in "spray" they carry no number, and each message's end is announced
    apart, on channel 0. fast_bytes: messages up to this size go on channel 0 at once, whole, uncounted. The defaults
    are those of NCCLX's public code within a zone, but for channels (16 there), which here cost connections, and for
    the fast path's bound.
    """

    connections: int = 4
    segment_bytes: int = 512 * 1024
    outstanding: int = 128
    together: int | None = None
    mode: Literal["dqplb", "spray"] = "dqplb"
    fast_bytes: int = 32 * 1024

    def __post_init__(self) -> None:
        bounds = {
            "connections": (1, 255),
            "segment_bytes": (MIN_SEGMENT_BYTES, 1 << 30),
            "outstanding": (1, 1 << 16),
        }
        for name, (least, most) in bounds.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"{name}: got {value}, expected {least} to {most}")
        if self.together is not None and self.together < 1:
            raise ValueError(f"together: got {self.together}, expected at least 1")
        if self.mode not in MODES:
            raise ValueError(f"mode: got {self.mode!r}, expected {' or '.join(MODES)}")


class _Frame(NamedTuple):
    """A header. segments: acknowledged. offset: in the message; of a notice, how many segments there were."""

    kind: int
    flags: int
    segments: int
    sequence: int
    message: int
    length: int
    tag: int
    offset: int
    total: int


class OutgoingMessage:
    """A message that is being cut: how much is cut off, how much the kernel does not have yet."""

    __slots__ = ("cut", "left", "number", "request", "segments")

    def __init__(self, request: Request, number: int) -> None:
        self.request = request
        self.number = number
        self.cut = 0
        self.segments = 0
        self.left = len(request.view)


class ChannelOwner(Protocol):
    """What a channel tells its pair of; see `striped`."""

    rank: int
    peer: int

    def pump(self) -> None:
        """There is room, or a channel more."""

    def on_acknowledged(self, count: int) -> None:
        """So many segments have come."""

    def on_sent(self, out: OutgoingMessage, size_bytes: int) -> None:
        """The kernel has another part of a message."""

    def incoming(
        self, channel: Channel, number: int, tag: int, total: int, fast: bool
    ) -> IncomingMessage | None:
        """The message of this number; None when it has to wait, or the peer breaks the rules."""

    def on_segment(
        self, channel: Channel, into: IncomingMessage, offset: int, length: int, flags: int, sequence: int
    ) -> None:
        """Another part of a message is there."""

    def on_progress(self, into: IncomingMessage) -> None:
        """It is known of how many segments a message is made."""

    def on_channel_lost(self, channel: Channel, error: TransportError) -> None:
        """The channel is gone."""


class Channel(Stream):
    """One connection of a pair."""

    header_bytes = FRAME.size

    def __init__(self, pair: ChannelOwner, number: int) -> None:
        super().__init__(pair.rank, pair.peer)
        self.pair = pair
        self.number = number
        self.outstanding = 0
        self.left_well = False
        # the segment coming in: its message, offset, length, flags and sequence number
        self.current: tuple[IncomingMessage, int, int, int, int] | None = None
        self._farewell: bytearray | None = None
        self._told: bytearray | None = None

    def attach(self, sock: Any, watch: Any) -> None:
        """See Stream; then there is a channel more."""
        super().attach(sock, watch)
        self.pair.pump()

    def segment(self, out: OutgoingMessage, flags: int, sequence: int, start: int, end: int) -> None:
        """Send a part of a message."""
        request = out.request
        total = len(request.view)
        header = FRAME.pack(_SEGMENT, flags, 0, sequence, out.number, end - start, request.tag, start, total)
        self.queue(header, request.view[start:end], out)

    def notify(self, out: OutgoingMessage) -> None:
        """Say of how many segments a message was made."""
        request = out.request
        total = len(request.view)
        self.queue(
            FRAME.pack(_NOTIFY, 0, 0, 0, out.number, 0, request.tag, out.segments, total), NOTHING, None
        )

    def repoint(self, into: IncomingMessage, view: memoryview) -> int:
        """What is coming in for this message goes on in other memory; the bytes that had to be copied."""
        if self.current is None or self.current[0] is not into or self._target is None:
            return 0
        _, offset, length, _, _ = self.current
        come = length - len(self._target)
        view[offset : offset + come] = into.view[offset : offset + come]
        self._target = view[offset + come : offset + length]
        return come

    # ---- what the stream tells

    def _sent(self, what: OutgoingMessage, size_bytes: int) -> None:
        self.pair.on_sent(what, size_bytes)

    def _goodbye(self, reason: bytes) -> bytes:
        return FRAME.pack(_GOODBYE, 0, 0, 0, 0, len(reason), 0, 0, 0)

    def _note(self, data: bytes) -> bytes:
        return FRAME.pack(_NOTE, 0, 0, 0, 0, len(data), 0, 0, 0)

    def _begin(self, stage: bytearray, start: int) -> bool:
        frame = _Frame._make(FRAME.unpack_from(stage, start))
        self.current = None
        self._farewell = None
        self._target = NOTHING
        if frame.kind == _SEGMENT:
            return self._begin_segment(frame)
        if frame.kind == _ACK:
            return self._acknowledged(frame.segments)
        if frame.kind == _NOTIFY:
            return self._announced(frame)
        if frame.kind == _GOODBYE and frame.length <= MAX_REASON_BYTES:
            return self._begin_farewell(frame.length)
        if frame.kind == _NOTE and frame.length <= MAX_NOTE_BYTES:
            self._told = bytearray(frame.length)
            self._target = memoryview(self._told)
            return True
        return self._refuse(f"it sent a frame of kind {frame.kind}, {frame.length} bytes")

    def _begin_segment(self, frame: _Frame) -> bool:
        offset, length, total = frame.offset, frame.length, frame.total
        if offset + length > total or (length == 0) != (total == 0):
            return self._refuse(f"it sent {length} bytes at {offset} of a message of {total}")
        into = self.pair.incoming(self, frame.message, frame.tag, total, fast=bool(frame.flags & FAST))
        if into is None:
            self._wait()
            return False
        many = len(into.segments) > total // MIN_SEGMENT_BYTES
        if into.received + length > total or into.ended or many:
            words = f"it sent more than the {total} bytes of message {frame.message}, or too many segments"
            return self._refuse(words)
        self.current = (into, offset, length, frame.flags, frame.sequence)
        self._target = into.view[offset : offset + length]
        return True

    def _acknowledged(self, count: int) -> bool:
        if not 0 < count <= self.outstanding:
            return self._refuse(f"it acknowledged {count} segments of {self.outstanding}")
        self.outstanding -= count
        self.pair.on_acknowledged(count)
        return self.lost is None

    def _announced(self, frame: _Frame) -> bool:
        into = self.pair.incoming(self, frame.message, frame.tag, frame.total, fast=False)
        if into is None:
            self._wait()
            return False
        into.announced = frame.offset
        self.pair.on_progress(into)
        return self.lost is None

    def _begin_farewell(self, length: int) -> bool:
        if length:
            self._farewell = bytearray(length)
            self._target = memoryview(self._farewell)
            return True
        self.left_well = True
        self._end("it closed its end", orderly=True)
        return False

    def _wait(self) -> None:
        """There is no room: the rest stays in the kernel."""
        if self.lost is None:
            self._target = None
            self._pause()

    def _refuse(self, reason: str) -> bool:
        self.fail(reason)
        return False

    def _arrived(self) -> None:
        if self._farewell is not None:
            self._end(describe_abort(self._farewell))
            return
        if self._told is not None:
            told, self._told = bytes(self._told), None
            if self.on_note is not None:
                self.on_note(self.peer, told)
            return
        if self.current is None:
            return
        into, offset, length, flags, sequence = self.current
        self.current = None
        if not flags & FAST:
            self.queue(FRAME.pack(_ACK, 0, 1, 0, 0, 0, 0, 0, 0), NOTHING, None, first=True)
        self.pair.on_segment(self, into, offset, length, flags, sequence)

    def _lost(self, error: TransportError) -> None:
        self.current = None
        self.pair.on_channel_lost(self, error)

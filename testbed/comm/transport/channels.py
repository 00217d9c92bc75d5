"""Channels of a striped pair: a message is cut into segments, which are spread over several connections.

After NCCLX's dynamic queue-pair load balancing (DQPLB; arXiv:2510.20171, and the public code `CtranIbVc`): segments are
dealt to the channels round-robin, and a channel with too many unacknowledged segments is skipped. Sequence numbers let
the receiver put segments in order, the last segment of a message notifies the receiver, and small messages take a fast
path over channel 0. Here a channel is a TCP connection, its completions are acknowledgements by the receiver, and data
goes straight into the buffer of the posted receive.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from testbed.comm.transport.base import Request, TransportError
from testbed.comm.transport.reassembly import IncomingMessage
from testbed.comm.transport.stream import NOTHING, Stream

FRAME = struct.Struct("<BBHIIIQQQ")
_SEGMENT, _ACK, _NOTIFY, _GOODBYE, _NOTE = 1, 2, 3, 4, 5
LAST, FAST = 1, 2
MIN_SEGMENT_BYTES = 256

MODES = ("dqplb", "spray")


@dataclass(frozen=True)
class StripeSettings:
    """Settings for striping the messages to a peer; both ends of a pair must have the same.

    The defaults are those of NCCLX's public code within a zone, except for the number of channels (16 there), which
    cost connections here, and the limit of the fast path.

    Attributes:
        connections: The number of channels.
        segment_bytes: The largest segment.
        outstanding: The maximum number of unacknowledged segments per channel.
        together: The maximum over all pairs with these settings; None: unlimited.
        mode: "dqplb" numbers segments, and messages complete in order. In "spray" segments have no number, and the end
            of each message is announced separately, on channel 0.
        fast_bytes: Messages up to this size go on channel 0 at once, in one piece, and do not count against any window.
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
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name}: got {value}, expected {low} to {high}")
        if self.together is not None and self.together < 1:
            raise ValueError(f"together: got {self.together}, expected at least 1")
        if self.mode not in MODES:
            raise ValueError(f"mode: got {self.mode!r}, expected {' or '.join(MODES)}")


class _Frame(NamedTuple):
    """A frame header. `segments`: number acknowledged. `offset`: in the message; in NOTIFY, its number of segments."""

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
    """A message that is being sent: how much is cut into segments, and how much the kernel has not accepted yet."""

    __slots__ = ("cut", "left", "number", "request", "segments")

    def __init__(self, request: Request, number: int) -> None:
        self.request = request
        self.number = number
        self.cut = 0
        self.segments = 0
        self.left = len(request.view)


class ChannelOwner(Protocol):
    """The callbacks of a channel into its pair; see `striped`."""

    rank: int
    peer: int

    def pump(self) -> None:
        """Send more, because there is room or a new channel."""

    def on_acknowledged(self, count: int) -> None:
        """Handle the acknowledgement of `count` segments."""

    def on_sent(self, out: OutgoingMessage, size_bytes: int) -> None:
        """Count `size_bytes` more bytes of a message as accepted by the kernel."""

    def incoming(
        self, channel: Channel, number: int, tag: int, total: int, fast: bool
    ) -> IncomingMessage | None:
        """Return the incoming message of this number; None if it has to wait or the peer breaks the protocol."""

    def on_segment(
        self, channel: Channel, into: IncomingMessage, offset: int, length: int, flags: int, sequence: int
    ) -> None:
        """Handle a complete segment."""

    def on_progress(self, into: IncomingMessage) -> None:
        """Handle the arrival of a message's number of segments."""

    def on_channel_lost(self, channel: Channel, error: TransportError) -> None:
        """Handle the loss of the channel."""


class Channel(Stream):
    """One connection of a pair."""

    header_bytes = FRAME.size

    def __init__(self, pair: ChannelOwner, number: int) -> None:
        super().__init__(pair.rank, pair.peer)
        self.pair = pair
        self.number = number
        self.outstanding = 0
        self.peer_said_goodbye = False
        # the segment being received: message, offset, length, flags and sequence number
        self.current: tuple[IncomingMessage, int, int, int, int] | None = None

    def attach(self, sock: Any, watch: Any) -> None:
        """Attach the socket (see Stream), and let the pair use this channel."""
        super().attach(sock, watch)
        self.pair.pump()

    def segment(self, out: OutgoingMessage, flags: int, sequence: int, start: int, end: int) -> None:
        """Send one segment of a message."""
        request = out.request
        total = len(request.view)
        header = FRAME.pack(_SEGMENT, flags, 0, sequence, out.number, end - start, request.tag, start, total)
        self.queue(header, request.view[start:end], out)

    def notify(self, out: OutgoingMessage) -> None:
        """Announce the number of segments of a message."""
        request = out.request
        total = len(request.view)
        self.queue(
            FRAME.pack(_NOTIFY, 0, 0, 0, out.number, 0, request.tag, out.segments, total), NOTHING, None
        )

    def repoint(self, into: IncomingMessage, view: memoryview) -> int:
        """Redirect a message that is being received to other memory; return the bytes that had to be copied."""
        if self.current is None or self.current[0] is not into or self._target is None:
            return 0
        _, offset, length, _, _ = self.current
        received = length - len(self._target)
        view[offset : offset + received] = into.view[offset : offset + received]
        self._target = view[offset + received : offset + length]
        return received

    # ---- called by the stream

    def _on_frame_sent(self, out: OutgoingMessage, size_bytes: int) -> None:
        self.pair.on_sent(out, size_bytes)

    def _goodbye_header(self, reason: bytes) -> bytes:
        return FRAME.pack(_GOODBYE, 0, 0, 0, 0, len(reason), 0, 0, 0)

    def _note_header(self, data: bytes) -> bytes:
        return FRAME.pack(_NOTE, 0, 0, 0, 0, len(data), 0, 0, 0)

    def _begin_payload(self, stage: bytearray, start: int) -> bool:
        frame = _Frame._make(FRAME.unpack_from(stage, start))
        self.current = None
        self._target = NOTHING
        if frame.kind == _SEGMENT:
            return self._begin_segment(frame)
        if frame.kind == _ACK:
            return self._on_ack(frame.segments)
        if frame.kind == _NOTIFY:
            return self._on_notify(frame)
        if frame.kind == _GOODBYE:
            return self._begin_goodbye(frame.length)
        if frame.kind == _NOTE:
            return self._begin_note(frame.length)
        return self._refuse(f"it sent a frame of kind {frame.kind}, {frame.length} bytes")

    def _begin_segment(self, frame: _Frame) -> bool:
        offset, length, total = frame.offset, frame.length, frame.total
        if offset + length > total or (length == 0) != (total == 0):
            return self._refuse(f"it sent {length} bytes at {offset} of a message of {total}")
        into = self.pair.incoming(self, frame.message, frame.tag, total, fast=bool(frame.flags & FAST))
        if into is None:
            self._wait_for_room()
            return False
        too_many = len(into.segments) > total // MIN_SEGMENT_BYTES
        if into.received + length > total or into.ended or too_many:
            reason = f"it sent more than the {total} bytes of message {frame.message}, or too many segments"
            return self._refuse(reason)
        self.current = (into, offset, length, frame.flags, frame.sequence)
        self._target = into.view[offset : offset + length]
        return True

    def _on_ack(self, count: int) -> bool:
        if not 0 < count <= self.outstanding:
            return self._refuse(f"it acknowledged {count} segments of {self.outstanding}")
        self.outstanding -= count
        self.pair.on_acknowledged(count)
        return self.lost is None

    def _on_notify(self, frame: _Frame) -> bool:
        into = self.pair.incoming(self, frame.message, frame.tag, frame.total, fast=False)
        if into is None:
            self._wait_for_room()
            return False
        into.announced = frame.offset
        self.pair.on_progress(into)
        return self.lost is None

    def _on_goodbye(self, reason: str, orderly: bool = False) -> None:
        self.peer_said_goodbye = self.peer_said_goodbye or orderly
        super()._on_goodbye(reason, orderly)

    def _wait_for_room(self) -> None:
        """Leave further data in the kernel until there is room."""
        if self.lost is None:
            self._target = None
            self._pause()

    def _refuse(self, reason: str) -> bool:
        self.fail(reason)
        return False

    def _on_payload(self) -> None:
        if self._control is not None:
            super()._on_payload()
            return
        if self.current is None:
            return
        into, offset, length, flags, sequence = self.current
        self.current = None
        if not flags & FAST:
            self.queue(FRAME.pack(_ACK, 0, 1, 0, 0, 0, 0, 0, 0), NOTHING, None, first=True)
        self.pair.on_segment(self, into, offset, length, flags, sequence)

    def _on_lost(self, error: TransportError) -> None:
        self.current = None
        self.pair.on_channel_lost(self, error)

"""Outgoing and incoming messages of a pair, over its queue pairs.

The fast path is one queue pair, for small messages and for all control frames of large ones. Large messages are cut
into segments, which use the other queue pairs round-robin while these have room. Segments are RDMA writes into
announced receives. A message is complete when all its segments have arrived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from testbed.comm.transport.base import Request
from testbed.comm.transport.channels import StripeSettings
from testbed.comm.transport.rdma.card import Card, QueuePair
from testbed.comm.transport.rdma.regions import RegisteredPiece
from testbed.comm.transport.rdma.wire import Frame, Immediate, pack_frame, pack_immediate
from testbed.comm.transport.reassembly import SEQUENCES, SegmentOrder


class FastPath:
    """Sends frames in order. Frames wait until there is a queue pair and the NIC has room."""

    def __init__(self) -> None:
        self.ready = False
        self.queue_pair: QueuePair | None = None
        self._card: Card | None = None
        self._waiting: deque[tuple[bytes, bytes]] = deque()
        self._outstanding = 0

    @property
    def busy(self) -> bool:
        """Whether some frames have not arrived yet."""
        return bool(self._waiting or self._outstanding)

    def attach(self, card: Card, queue_pair: QueuePair) -> None:
        """Use this queue pair; the peer's end may not be ready."""
        self._card, self.queue_pair = card, queue_pair

    def start(self) -> None:
        """Start sending: the peer's end is ready."""
        self.ready = True
        self.flush()

    def send(self, frame: Frame, payload: memoryview | None = None) -> None:
        """Send a frame. Its payload may be changed after the call."""
        header, body = pack_frame(frame), payload if payload is not None else b""
        if not self.ready or self._waiting or not self._post(header, body):
            self._waiting.append((header, bytes(body)))

    def flush(self) -> None:
        """Send waiting frames until the NIC accepts no more."""
        while self._waiting and self.ready and self._post(*self._waiting[0]):
            self._waiting.popleft()

    def _post(self, header: bytes, body: bytes | memoryview) -> bool:
        assert self._card is not None
        assert self.queue_pair is not None
        if not self._card.send(self.queue_pair, header, body):
            return False
        self._outstanding += 1
        return True

    def on_sent(self) -> None:
        """Handle the completion of a frame, which has arrived."""
        self._outstanding -= 1
        self.flush()

    def close(self) -> None:
        """Drop everything and close the queue pair."""
        self.ready = False
        self._waiting.clear()
        self._outstanding = 0
        if self.queue_pair is not None:
            self.queue_pair.close()


class Outbound:
    """A message that is being written. `cut`: bytes cut into segments; `left`: bytes without a completion."""

    __slots__ = ("announced", "cut", "left", "piece", "request")

    def __init__(self, request: Request, piece: RegisteredPiece, announced: Frame) -> None:
        self.request = request
        self.piece = piece
        self.announced = announced
        self.cut = 0
        self.left = len(request.view)


class WriteChannel:
    """One of the queue pairs that segments use round-robin. `outstanding`: its segments in flight."""

    def __init__(self, queue_pair: QueuePair) -> None:
        self.queue_pair = queue_pair
        self.outstanding = 0


class WriteQueue:
    """The outgoing writes of a pair. There are no channels until the peer is ready."""

    def __init__(self, settings: StripeSettings) -> None:
        self._settings = settings
        self._channels: list[WriteChannel] = []
        self._waiting: deque[Outbound] = deque()  # messages not completely cut into segments
        # incomplete messages by their receive's number: a slot may be reused before all completions
        self._unsent: dict[int, Outbound] = {}
        self._in_flight: dict[tuple[int, int], tuple[WriteChannel, Outbound, int]] = {}
        self._next_work = self._next_channel = self._next_sequence = 0

    @property
    def busy(self) -> bool:
        """Whether some data is not in the peer's memory yet."""
        return bool(self._unsent)

    def start(self, queue_pairs: Sequence[QueuePair]) -> None:
        """Start writing over these queue pairs."""
        self._channels = [WriteChannel(queue_pair) for queue_pair in queue_pairs]
        self.pump()

    def add(self, out: Outbound) -> None:
        """Add a message."""
        self._unsent[out.announced.announced] = out
        self._waiting.append(out)
        self.pump()

    def pump(self) -> None:
        """Segment and write waiting messages while queue pairs have room."""
        while self._waiting:
            channel = self._channel_with_room()
            if channel is None:
                return
            out = self._waiting[0]
            total = len(out.request.view)
            start, end = out.cut, min(out.cut + self._settings.segment_bytes, total)
            out.cut = end
            if end == total:
                self._waiting.popleft()
            self._write(channel, out, start, end)

    def _write(self, channel: WriteChannel, out: Outbound, start: int, end: int) -> None:
        sequence = self._next_sequence
        self._next_sequence = (sequence + 1) % SEQUENCES
        self._next_work += 1
        channel.outstanding += 1
        announced, queue_pair = out.announced, channel.queue_pair
        self._in_flight[queue_pair.number, self._next_work] = channel, out, end - start
        queue_pair.write(
            self._next_work,
            out.piece.address + start,
            end - start,
            out.piece.key,
            announced.address + start,
            announced.key,
            pack_immediate(Immediate(sequence, announced.slot, notify=end == len(out.request.view))),
        )

    def _channel_with_room(self) -> WriteChannel | None:
        count = len(self._channels)
        for step in range(count):
            number = (self._next_channel + step) % count
            if self._channels[number].outstanding < self._settings.outstanding:
                self._next_channel = number + 1
                return self._channels[number]
        return None

    def on_sent(self, queue_pair: int, work: int) -> Request | None:
        """Handle the completion of a segment; return the message's request once all segments are complete."""
        channel, out, size_bytes = self._in_flight.pop((queue_pair, work))
        channel.outstanding -= 1
        out.left -= size_bytes
        self.pump()
        if out.left:
            return None
        del self._unsent[out.announced.announced]
        out.piece.release()
        return out.request

    def stop(self) -> list[Outbound]:
        """Stop writing; return the messages that are not complete."""
        incomplete = [*self._unsent.values()]
        self._channels.clear()
        self._waiting.clear()
        self._unsent.clear()
        self._in_flight.clear()
        return incomplete


class Inbound:
    """A receive of a large message, a put, or a signal.

    Attributes:
        number: The peer's number for it; 0 before it is announced.
        slot: The peer's slot for it; -1 before it is announced.
        matched: Whether its message is known.
        received: Bytes received.
        ended: Whether everything has arrived.
    """

    __slots__ = ("ended", "matched", "number", "piece", "received", "request", "slot")

    def __init__(self, request: Request, matched: bool = False, ended: bool = False) -> None:
        self.request = request
        self.matched = matched
        self.ended = ended
        self.number, self.slot = 0, -1
        self.piece: RegisteredPiece | None = None
        self.received = 0

    def unknown_to_sender(self, announced: int) -> bool:
        """Return whether this receive is unmatched, and unknown to a peer that knew `announced` receives."""
        return not self.matched and (self.number == 0 or self.number > announced)


class Segments:
    """Incoming segments of a pair.

    numbered: a message is complete once all segments up to its last one have arrived.
    """

    def __init__(self, numbered: bool) -> None:
        self._numbered = numbered
        self._sequences: SegmentOrder[Inbound] = SegmentOrder()

    def add(self, into: Inbound, immediate: Immediate, size_bytes: int) -> list[Inbound]:
        """Record a segment; return the messages that are complete now."""
        into.received += size_bytes
        if not self._numbered:
            return [into] if into.received >= len(into.request.view) else []
        self._sequences.record(immediate.sequence)
        if immediate.notify:
            self._sequences.end_message(immediate.sequence, into)
        return self._sequences.pop_complete()

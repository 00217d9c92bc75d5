"""The staged protocol: messages in chunks, copied through a window of slots."""

from __future__ import annotations

import struct
from collections import Counter, deque
from dataclasses import dataclass

from testbed.comm.transport.base import (
    BEST_EFFORT,
    Request,
    TrafficClass,
    Transport,
    TransportError,
    check_writable,
)
from testbed.comm.transport.host_costs import Slots
from testbed.comm.transport.layers import MAX_PENDING_NOTES, Layer, PairKey
from testbed.comm.transport.mailbox import WrongLength, wrong_length
from testbed.comm.transport.protocols import PROTOCOLS, MessageProtocol

_PREFIX = struct.Struct("<Q")


class StagedTransport(Layer):
    """Sends messages in chunks, copied into a slot at the sender and out of one at the receiver, which frees it.

    As in NCCL's copy-based transfers, the slots are a window: at most slots x chunk bytes of a message are in flight.
    The default `chunk_bytes` is that of NCCLX's FIFO. Each chunk carries the message's length, 8 bytes. If a message of
    more than one chunk does not fit its receive, later messages of the same tag are garbled.

    Args:
        inner: The transport.
        chunk_bytes: Size of a slot.
        slots: The number of slots.
        announced: Slots become free once the receiver waits for the message, as with NCCL's network plugins;
            otherwise they are free from the start. Announced messages of one tag share the slots, in order.
    """

    def __init__(
        self, inner: Transport, chunk_bytes: int = 256 * 1024, slots: int = 8, announced: bool = False
    ) -> None:
        super().__init__(inner)
        self.chunk_bytes = chunk_bytes
        self.slots = slots
        self.announced = announced
        # by pair and tag: slots that are free for the next chunks
        self._free: Counter[tuple[PairKey, int]] = Counter()
        # by pair and tag: messages with chunks to send or receive, in order
        self._sends: dict[tuple[PairKey, int], deque[_Chunks]] = {}
        self._receives: dict[tuple[PairKey, int], deque[_Chunks]] = {}
        self._windows: dict[tuple[PairKey, int], _Window] = {}  # only if slots are announced

    def isend(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """See Transport."""
        self._check_address(peer, tag)
        pair = (peer, traffic)
        chunks = _Chunks(Request("send", peer, tag, view), self.chunk_bytes)
        error = self._listen_for_notes(pair) if self.announced or chunks.count > self.slots else None
        if error is not None:
            chunks.end(error)
            return chunks.request
        queue = self._sends.setdefault((pair, tag), deque())
        queue.append(chunks)
        if len(queue) == 1:
            self._begin_send(pair, tag)
        self._run_deferred()
        return chunks.request

    def irecv(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """See Transport."""
        self._check_address(peer, tag)
        check_writable(view)
        pair = (peer, traffic)
        chunks = _Chunks(Request("recv", peer, tag, view), self.chunk_bytes)
        queue = self._receives.setdefault((pair, tag), deque())
        queue.append(chunks)
        if self.announced:
            window = self._windows.setdefault((pair, tag), _Window())
            window.waiting += chunks.count
            self._announce(pair, tag)
        if len(queue) == 1:
            self._begin_receive(pair, tag)
        self._run_deferred()
        return chunks.request

    @property
    def has_waiting_sends(self) -> bool:
        """See Layer."""
        return bool(self._sends)

    def on_note(self, pair: PairKey, tag: int, number: int) -> None:
        """Give freed slots to the oldest message of this tag that waits for one."""
        key = pair, tag
        if key in self._sends or (
            self.announced and (key in self._free or len(self._free) < MAX_PENDING_NOTES)
        ):
            self._free[key] += number
            self._fill_slots(pair, tag)

    def forget(self, peer: int) -> None:
        """See Layer."""
        super().forget(peer)
        for key in [key for key in self._free if key[0][0] == peer]:
            del self._free[key]

    def on_lost(self, pair: PairKey, error: TransportError) -> None:
        """Fail waiting sends: no slot will become free."""
        for other, tag in [key for key in self._sends if key[0] == pair]:
            for chunks in self._sends.pop((other, tag)):
                chunks.end(error)

    # ---- sending

    def _begin_send(self, pair: PairKey, tag: int) -> None:
        """Give all slots to the first message of this tag."""
        if not self.announced:
            self._free[pair, tag] = min(self.slots, self._sends[pair, tag][0].count)
        self._fill_slots(pair, tag)

    def _fill_slots(self, pair: PairKey, tag: int) -> None:
        queue = self._sends.get((pair, tag))
        while queue and self._free[pair, tag]:
            self._free[pair, tag] -= 1
            self._send_chunk(pair, queue[0])
            self._next_send(pair, tag)
            queue = self._sends.get((pair, tag))
        if not self._free[pair, tag]:
            del self._free[pair, tag]

    def _next_send(self, pair: PairKey, tag: int) -> None:
        queue = self._sends.get((pair, tag))
        if queue and queue[0].begun == queue[0].count:
            queue.popleft()
            if queue:
                self._begin_send(pair, tag)
            else:
                del self._sends[pair, tag]

    def _send_chunk(self, pair: PairKey, chunks: _Chunks) -> None:
        peer, traffic = pair
        request = chunks.request
        start, end = chunks.next_bounds()
        slot = bytearray(_PREFIX.size + end - start)
        _PREFIX.pack_into(slot, 0, len(request.view))
        slot[_PREFIX.size :] = request.view[start:end]
        self._corrections[peer].bytes_copied += end - start

        def on_sent(inner: Request) -> None:
            if inner.error is not None:
                chunks.end(inner.error)
                return
            self._reclassify_sent(peer, _PREFIX.size)
            chunks.done += 1
            if chunks.done == chunks.count:
                self._corrections[peer].messages_sent += 1
                chunks.end(None)

        self._when_done(self.inner.isend(peer, request.tag, memoryview(slot), traffic), on_sent)

    # ---- receiving

    def _begin_receive(self, pair: PairKey, tag: int) -> None:
        """Receive the first chunk, which shows whether the message has the expected length; then receive the others."""
        chunks = self._receives[pair, tag][0]
        self._receive_chunk(pair, chunks)
        self._next_receive(pair, tag)

    def _announce(self, pair: PairKey, tag: int) -> None:
        """Announce free slots for chunks that the receiver waits for."""
        window = self._windows[pair, tag]
        number = min(window.waiting, self.slots - window.free)
        if number > 0:
            window.waiting -= number
            window.free += number
            self._send_note(pair, tag, number)
        if not window.free:
            del self._windows[pair, tag]

    def _next_receive(self, pair: PairKey, tag: int) -> None:
        queue = self._receives.get((pair, tag))
        if queue and (queue[0].begun == queue[0].count or queue[0].request.done):
            queue.popleft()
            if queue:
                self._begin_receive(pair, tag)
            else:
                del self._receives[pair, tag]

    def _receive_chunk(self, pair: PairKey, chunks: _Chunks) -> None:
        peer, traffic = pair
        request = chunks.request
        start, end = chunks.next_bounds()
        slot = bytearray(_PREFIX.size + end - start)

        def on_received(inner: Request) -> None:
            error = inner.error
            total = _PREFIX.unpack_from(slot)[0] if error is None else 0
            if isinstance(error, WrongLength):
                got = error.got_bytes - _PREFIX.size
                error = wrong_length(self.rank, peer, request.tag, got, len(request.view))
            elif error is None and total != len(request.view):
                error = wrong_length(self.rank, peer, request.tag, total, len(request.view))
            if error is not None or request.done:
                chunks.end(error)
                self._next_receive(pair, request.tag)
                return
            if end > start:
                request.view[start:end] = memoryview(slot)[_PREFIX.size :]
            self._corrections[peer].bytes_copied += end - start
            self._reclassify_received(peer, _PREFIX.size)
            chunks.done += 1
            if self.announced:
                self._windows[pair, request.tag].free -= 1
                self._announce(pair, request.tag)
            elif chunks.done <= chunks.count - self.slots:  # the sender waits for this slot
                self._send_note(pair, request.tag, 1)
            while chunks.begun < chunks.count and chunks.begun - chunks.done < self.slots:
                self._receive_chunk(pair, chunks)
            self._next_receive(pair, request.tag)
            if chunks.done == chunks.count:
                self._corrections[peer].messages_received += 1
                chunks.end(None)

        self._when_done(self.inner.irecv(peer, request.tag, memoryview(slot), traffic), on_received)


@dataclass
class _Window:
    """Announced slots of one tag: chunks that wait for a slot, and slots that are free, or filled but not read."""

    waiting: int = 0
    free: int = 0


class _Chunks:
    """A message in chunks: how many have been started, and how many are done."""

    def __init__(self, request: Request, chunk_bytes: int) -> None:
        self.request = request
        self.count = max(1, -(-len(request.view) // chunk_bytes))
        self.begun = 0
        self.done = 0
        self._chunk_bytes = chunk_bytes

    def next_bounds(self) -> tuple[int, int]:
        """Return start and end of the next chunk."""
        start = self.begun * self._chunk_bytes
        self.begun += 1
        return start, min(start + self._chunk_bytes, len(self.request.view))

    def end(self, error: TransportError | None) -> None:
        """Complete or fail the request; only the first call has an effect."""
        if self.request.done:
            return
        if error is not None:
            self.request.fail(error)
        else:
            self.request.complete()


@PROTOCOLS.register("staged")
class Staged(MessageProtocol):
    """Copies messages in chunks through a window of slots."""

    modelled = True
    copies = True

    @staticmethod
    def over(transport: Transport) -> Transport:
        """See StagedTransport."""
        return StagedTransport(transport)

    @classmethod
    def through(cls, transport: Transport, slots: Slots) -> Transport:
        """See StagedTransport."""
        return StagedTransport(transport, slots.chunk_bytes, slots.count, slots.announced)

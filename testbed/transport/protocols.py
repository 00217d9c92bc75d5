"""Two ways to hand messages over, on top of any transport: announced and in place, or copied through a window.

Without either, a transport is eager: a message goes out at once; it is received in place where its receive was posted
in time, else staged and copied.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from testbed.transport.base import (
    BEST_EFFORT,
    CONTROL_TAG,
    MAX_TAG,
    PeerCounters,
    Request,
    TrafficClass,
    Transport,
    TransportError,
    address_error,
    check_writable,
)
from testbed.transport.mailbox import WrongLength, wrong_length

PROTOCOLS = ("eager", "rendezvous", "staged")
_CONTROL = struct.Struct("<QQ")
_PREFIX = struct.Struct("<Q")
_CLOSE_TIMEOUT_S = 2.0
_MOST_NOTES = 100_000

Line = tuple[int, TrafficClass]


def with_protocol(transport: Transport, protocol: str) -> Transport:
    """The transport, with messages handed over in this way. ValueError for others than `PROTOCOLS`."""
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol: got {protocol!r}, expected one of {', '.join(PROTOCOLS)}")
    if protocol == "rendezvous":
        return RendezvousTransport(transport)
    return StagedTransport(transport) if protocol == "staged" else transport


class _Layer:
    """What both have in common: notes from rank to rank beside the messages, and things done after `progress`."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self._later: deque[Callable[[], None]] = deque()
        self._listening: dict[Line, TransportError | None] = {}
        self._notes_sent: dict[int, int] = dict.fromkeys(inner.counters, 0)
        self._notes_received = dict(self._notes_sent)
        self._copied = dict(self._notes_sent)

    def on_note(self, line: Line, tag: int, number: int) -> None:
        """A note has come."""
        raise NotImplementedError

    def on_lost(self, line: Line, error: TransportError) -> None:
        """No notes will come any more."""
        raise NotImplementedError

    @property
    def unfinished(self) -> bool:
        """Whether sends wait for notes."""
        raise NotImplementedError

    @property
    def rank(self) -> int:
        """See Transport."""
        return self.inner.rank

    @property
    def size(self) -> int:
        """See Transport."""
        return self.inner.size

    @property
    def now_s(self) -> float:
        """See Transport."""
        return self.inner.now_s

    @property
    def counters(self) -> Mapping[int, PeerCounters]:
        """See Transport; notes are not counted as messages, their bytes count as headers."""
        found = {}
        for peer, raw in self.inner.counters.items():
            sent, received = self._notes_sent[peer], self._notes_received[peer]
            found[peer] = replace(
                raw,
                messages_sent=raw.messages_sent - sent,
                bytes_sent=raw.bytes_sent - sent * _CONTROL.size,
                header_bytes_sent=raw.header_bytes_sent + sent * _CONTROL.size,
                messages_received=raw.messages_received - received,
                bytes_received=raw.bytes_received - received * _CONTROL.size,
                header_bytes_received=raw.header_bytes_received + received * _CONTROL.size,
                bytes_copied=raw.bytes_copied + self._copied[peer],
            )
        return found

    def progress(self, timeout_s: float | None = 0.0) -> None:
        """See Transport."""
        self._catch_up()
        self.inner.progress(timeout_s)
        self._catch_up()

    def wake(self) -> None:
        """See Transport."""
        self.inner.wake()

    def abort(self, reason: str) -> None:
        """See Transport."""
        self.inner.abort(reason)
        self._catch_up()

    def close(self) -> None:
        """See Transport; sends that the peers have not asked for are waited for, for a while."""
        deadline_s = time.monotonic() + _CLOSE_TIMEOUT_S
        while self.unfinished and (left_s := deadline_s - time.monotonic()) > 0:
            self.progress(left_s)
        self.inner.close()
        self._catch_up()

    # ---- for those who derive

    def _check(self, peer: int, tag: int) -> None:
        if peer not in self.inner.counters or not 0 <= tag <= MAX_TAG:
            raise address_error(self.rank, self.size, peer, tag)

    def _after(self, request: Request, then: Callable[[Request], None]) -> None:
        """Once that request of the inner transport is done, and outside its calls."""
        if request.done:
            self._later.append(lambda: then(request))
        else:
            request.on_done = lambda done: self._later.append(lambda: then(done))

    def _catch_up(self) -> None:
        while self._later:
            self._later.popleft()()

    def _note(self, line: Line, tag: int, number: int) -> None:
        """Send a note."""
        self._notes_sent[line[0]] += 1
        note = memoryview(_CONTROL.pack(tag, number))
        self.inner.isend(line[0], CONTROL_TAG, note, line[1])

    def _listen(self, line: Line) -> TransportError | None:
        """Have notes of this line heard; the error that ended it, if it has ended."""
        if line not in self._listening:
            self._listening[line] = None
            self._hear(line)
        return self._listening[line]

    def _hear(self, line: Line) -> None:
        buffer = memoryview(bytearray(_CONTROL.size))

        def heard(request: Request) -> None:
            if request.error is not None:
                self._listening[line] = request.error
                self.on_lost(line, request.error)
                return
            self._notes_received[line[0]] += 1
            self._hear(line)
            self.on_note(line, *_CONTROL.unpack(buffer))

        self._after(self.inner.irecv(line[0], CONTROL_TAG, buffer, line[1]), heard)

    def _end_as(self, request: Request, inner: Request) -> None:
        """The request ends as the inner one does."""

        def ended(done: Request) -> None:
            if done.error is not None:
                request.fail(done.error)
            else:
                request.complete()

        self._after(inner, ended)


class RendezvousTransport(_Layer):
    """A receive is announced to the sender, which sends then: every message is received in place, nothing is copied.

    As NCCLX's zero-copy transfers do with their one control message. A receive that is posted early costs nothing; a
    send that has to wait for one costs a round trip less what is left of it.
    """

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self._announced: dict[Line, dict[int, int]] = {}  # how many receives by tag wait for a send
        self._waiting: dict[Line, dict[int, deque[Request]]] = {}  # sends that wait for a receive

    def isend(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """See Transport; done only after the peer has asked for it."""
        self._check(peer, tag)
        line = (peer, traffic)
        request = Request("send", peer, tag, view)
        error = self._listen(line)
        self._catch_up()
        announced = self._announced.setdefault(line, {})
        if announced.get(tag):
            announced[tag] -= 1
            if not announced[tag]:
                del announced[tag]
            self._end_as(request, self.inner.isend(peer, tag, view, traffic))
            self._catch_up()
        elif error is not None:
            request.fail(error)
        else:
            self._waiting.setdefault(line, {}).setdefault(tag, deque()).append(request)
        return request

    def irecv(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """See Transport."""
        self._check(peer, tag)
        request = self.inner.irecv(peer, tag, view, traffic)
        if not request.done:
            self._note((peer, traffic), tag, len(view))
        return request

    @property
    def unfinished(self) -> bool:
        """See _Layer."""
        return any(self._waiting.values())

    def on_note(self, line: Line, tag: int, number: int) -> None:
        """A receive of this tag has been posted."""
        waiting = self._waiting.get(line, {})
        queue = waiting.get(tag)
        if queue is None:
            announced = self._announced.setdefault(line, {})
            if len(announced) < _MOST_NOTES:
                announced[tag] = announced.get(tag, 0) + 1
            return
        request = queue.popleft()
        if not queue:
            del waiting[tag]
        self._end_as(request, self.inner.isend(line[0], tag, request.view, line[1]))

    def on_lost(self, line: Line, error: TransportError) -> None:
        """Nobody will ask for what waits."""
        for queue in self._waiting.pop(line, {}).values():
            for request in queue:
                request.fail(error)


class StagedTransport(_Layer):
    """Messages go in chunks through slots: copied into one at the sender, out of one at the receiver, which frees it.

    As NCCL's copy-based transfers, whose slots are a window: no more than slots x chunk bytes of a message are under
    way. `chunk_bytes` is that of NCCLX's FIFO; each chunk carries the message's length, 8 bytes. After a
    message of more than a chunk that did not fit its receive, what comes with the same tag makes no sense.
    """

    def __init__(self, inner: Transport, chunk_bytes: int = 256 * 1024, slots: int = 8) -> None:
        super().__init__(inner)
        self.chunk_bytes = chunk_bytes
        self.slots = slots
        # by line and tag, messages of which some chunks have not begun: the first one's chunks go before the next one's
        self._sends: dict[tuple[Line, int], deque[_Chunks]] = {}
        self._receives: dict[tuple[Line, int], deque[_Chunks]] = {}
        self._tally = {
            peer: PeerCounters() for peer in inner.counters
        }  # whole messages, and prefixes as headers
        self._chunk_tally = {peer: PeerCounters() for peer in inner.counters}

    def isend(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """See Transport."""
        self._check(peer, tag)
        line = (peer, traffic)
        chunks = _Chunks(Request("send", peer, tag, view), self.chunk_bytes)
        error = self._listen(line) if chunks.count > self.slots else None
        if error is not None:
            chunks.end(error)
            return chunks.request
        queue = self._sends.setdefault((line, tag), deque())
        queue.append(chunks)
        if len(queue) == 1:
            self._begin_send(line, tag)
        self._catch_up()
        return chunks.request

    def irecv(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """See Transport."""
        self._check(peer, tag)
        check_writable(view)
        line = (peer, traffic)
        chunks = _Chunks(Request("recv", peer, tag, view), self.chunk_bytes)
        queue = self._receives.setdefault((line, tag), deque())
        queue.append(chunks)
        if len(queue) == 1:
            self._begin_receive(line, tag)
        self._catch_up()
        return chunks.request

    @property
    def unfinished(self) -> bool:
        """See _Layer."""
        return bool(self._sends)

    @property
    def counters(self) -> Mapping[int, PeerCounters]:
        """See _Layer; prefixes count as headers."""
        found = {}
        for peer, raw in super().counters.items():
            whole, chunks = self._tally[peer], self._chunk_tally[peer]
            sent, received = _PREFIX.size * chunks.messages_sent, _PREFIX.size * chunks.messages_received
            found[peer] = replace(
                raw,
                messages_sent=raw.messages_sent - chunks.messages_sent + whole.messages_sent,
                messages_received=raw.messages_received - chunks.messages_received + whole.messages_received,
                bytes_sent=raw.bytes_sent - sent,
                bytes_received=raw.bytes_received - received,
                header_bytes_sent=raw.header_bytes_sent + sent,
                header_bytes_received=raw.header_bytes_received + received,
            )
        return found

    def on_note(self, line: Line, tag: int, number: int) -> None:
        """The receiver has freed a slot of the oldest message of this tag that waits for one."""
        queue = self._sends.get((line, tag))
        if queue:
            self._send_chunk(line, queue[0])
            self._next_send(line, tag)

    def on_lost(self, line: Line, error: TransportError) -> None:
        """No slot will become free."""
        for other, tag in [key for key in self._sends if key[0] == line]:
            for chunks in self._sends.pop((other, tag)):
                chunks.end(error)

    # ---- sending

    def _begin_send(self, line: Line, tag: int) -> None:
        """The first message of this tag in turn has all slots."""
        chunks = self._sends[line, tag][0]
        for _ in range(min(self.slots, chunks.count)):
            self._send_chunk(line, chunks)
        self._next_send(line, tag)

    def _next_send(self, line: Line, tag: int) -> None:
        queue = self._sends.get((line, tag))
        if queue and queue[0].begun == queue[0].count:
            queue.popleft()
            if queue:
                self._begin_send(line, tag)
            else:
                del self._sends[line, tag]

    def _send_chunk(self, line: Line, chunks: _Chunks) -> None:
        peer, traffic = line
        request = chunks.request
        start, end = chunks.next_bounds()
        slot = bytearray(_PREFIX.size + end - start)
        _PREFIX.pack_into(slot, 0, len(request.view))
        slot[_PREFIX.size :] = request.view[start:end]
        self._copied[peer] += end - start

        def sent(inner: Request) -> None:
            if inner.error is not None:
                chunks.end(inner.error)
                return
            self._chunk_tally[peer].messages_sent += 1
            chunks.done += 1
            if chunks.done == chunks.count:
                self._tally[peer].messages_sent += 1
                chunks.end(None)

        self._after(self.inner.isend(peer, request.tag, memoryview(slot), traffic), sent)

    # ---- receiving

    def _begin_receive(self, line: Line, tag: int) -> None:
        """The first chunk tells whether the message is what is expected; then there is room for others."""
        self._receive_chunk(line, self._receives[line, tag][0])
        self._next_receive(line, tag)

    def _next_receive(self, line: Line, tag: int) -> None:
        queue = self._receives.get((line, tag))
        if queue and (queue[0].begun == queue[0].count or queue[0].request.done):
            queue.popleft()
            if queue:
                self._begin_receive(line, tag)
            else:
                del self._receives[line, tag]

    def _receive_chunk(self, line: Line, chunks: _Chunks) -> None:
        peer, traffic = line
        request = chunks.request
        start, end = chunks.next_bounds()
        slot = bytearray(_PREFIX.size + end - start)

        def come(inner: Request) -> None:
            error = inner.error
            total = _PREFIX.unpack_from(slot)[0] if error is None else 0
            if isinstance(error, WrongLength):
                got = error.got_bytes - _PREFIX.size
                error = wrong_length(self.rank, peer, request.tag, got, len(request.view))
            elif error is None and total != len(request.view):
                error = wrong_length(self.rank, peer, request.tag, total, len(request.view))
            if error is not None or request.done:
                chunks.end(error)
                self._next_receive(line, request.tag)
                return
            if end > start:
                request.view[start:end] = memoryview(slot)[_PREFIX.size :]
            self._copied[peer] += end - start
            self._chunk_tally[peer].messages_received += 1
            chunks.done += 1
            if chunks.done <= chunks.count - self.slots:  # the sender waits for a slot
                self._note(line, request.tag, 1)
            while chunks.begun < chunks.count and chunks.begun - chunks.done < self.slots:
                self._receive_chunk(line, chunks)
            self._next_receive(line, request.tag)
            if chunks.done == chunks.count:
                self._tally[peer].messages_received += 1
                chunks.end(None)

        self._after(self.inner.irecv(peer, request.tag, memoryview(slot), traffic), come)


class _Chunks:
    """A message cut in chunks: how many have begun their way, how many have ended it."""

    def __init__(self, request: Request, chunk_bytes: int) -> None:
        self.request = request
        self.count = max(1, -(-len(request.view) // chunk_bytes))
        self.begun = 0
        self.done = 0
        self._chunk_bytes = chunk_bytes

    def next_bounds(self) -> tuple[int, int]:
        """Offsets of the next chunk."""
        start = self.begun * self._chunk_bytes
        self.begun += 1
        return start, min(start + self._chunk_bytes, len(self.request.view))

    def end(self, error: TransportError | None) -> None:
        """The request is over; only the first call counts."""
        if self.request.done:
            return
        if error is not None:
            self.request.fail(error)
        else:
            self.request.complete()

"""Layers over a transport, and one that lets ranks send notes to each other beside their messages."""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from testbed.comm.transport.base import (
    CONTROL_TAG,
    MAX_TAG,
    PeerCounters,
    Request,
    TrafficClass,
    Transport,
    TransportError,
    address_error,
)

_CONTROL = struct.Struct("<QQ")
NOTE_BYTES = _CONTROL.size
MAX_PENDING_NOTES = 100_000  # that wait for what they are about
_CLOSE_TIMEOUT_S = 2.0

PairKey = tuple[int, TrafficClass]


class Wrapper:
    """A transport on top of another one: what both have in common."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner

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

    def wake(self) -> None:
        """See Transport."""
        self.inner.wake()

    def forget(self, peer: int) -> None:
        """See TellsOfPeers; nothing more happens where the transport below knows nothing of it."""
        if hasattr(self.inner, "forget"):
            self.inner.forget(peer)


class Layer(Wrapper):
    """What both have in common: notes from rank to rank beside the messages, and things done after `progress`."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self._later: deque[Callable[[], None]] = deque()
        self._listening: dict[PairKey, TransportError | None] = {}
        self._notes_sent: dict[int, int] = dict.fromkeys(inner.counters, 0)
        self._notes_received = dict(self._notes_sent)
        self._copied = dict(self._notes_sent)

    def on_note(self, line: PairKey, tag: int, number: int) -> None:
        """A note has come."""
        raise NotImplementedError

    def on_lost(self, line: PairKey, error: TransportError) -> None:
        """No notes will come any more."""
        raise NotImplementedError

    @property
    def unfinished(self) -> bool:
        """Whether sends wait for notes."""
        raise NotImplementedError

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

    def forget(self, peer: int) -> None:
        """See Wrapper."""
        super().forget(peer)
        self._catch_up()  # what waited for the peer has failed
        for line in [line for line in self._listening if line[0] == peer]:
            del self._listening[line]

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

    def _note(self, line: PairKey, tag: int, number: int) -> None:
        """Send a note."""
        self._notes_sent[line[0]] += 1
        note = memoryview(_CONTROL.pack(tag, number))
        self.inner.isend(line[0], CONTROL_TAG, note, line[1])

    def _listen(self, line: PairKey) -> TransportError | None:
        """Have notes of this line heard; the error that ended it, if it has ended."""
        if line not in self._listening:
            self._listening[line] = None
            self._hear(line)
        return self._listening[line]

    def _hear(self, line: PairKey) -> None:
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

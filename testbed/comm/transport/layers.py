"""Base classes of layers over a transport.

`Wrapper` forwards to the inner transport. `Layer` adds notes: small control messages between ranks, separate from the
ranks' own messages.
"""

from __future__ import annotations

import struct
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from operator import add

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
MAX_PENDING_NOTES = 100_000  # notes that wait for their message
_CLOSE_TIMEOUT_S = 2.0

PairKey = tuple[int, TrafficClass]


class Wrapper:
    """A transport on top of another one."""

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
    def counters(self) -> Mapping[int, PeerCounters]:
        """See Transport."""
        return self.inner.counters

    @property
    def now_s(self) -> float:
        """See Transport."""
        return self.inner.now_s

    def wake(self) -> None:
        """See Transport."""
        self.inner.wake()

    def forget(self, peer: int) -> None:
        """See PeerEvents. Does nothing if the inner transport does not have it."""
        if hasattr(self.inner, "forget"):
            self.inner.forget(peer)


class Layer(Wrapper):
    """A wrapper with notes between ranks, and actions that are deferred until after `progress`."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self._deferred: deque[Callable[[], None]] = deque()
        self._note_errors: dict[PairKey, TransportError | None] = {}
        # corrections to the inner transport's counters, by peer
        self._corrections: defaultdict[int, PeerCounters] = defaultdict(PeerCounters)

    def on_note(self, pair: PairKey, tag: int, number: int) -> None:
        """Handle a note."""
        raise NotImplementedError

    def on_lost(self, pair: PairKey, error: TransportError) -> None:
        """Handle the end of notes from a peer in this class."""
        raise NotImplementedError

    @property
    def has_waiting_sends(self) -> bool:
        """Whether sends wait for notes."""
        raise NotImplementedError

    @property
    def counters(self) -> Mapping[int, PeerCounters]:
        """See Transport. Notes do not count as messages; their bytes count as headers."""
        none = PeerCounters()
        return {
            peer: PeerCounters(
                *map(add, vars(raw).values(), vars(self._corrections.get(peer, none)).values())
            )
            for peer, raw in self.inner.counters.items()
        }

    def progress(self, timeout_s: float | None = 0.0) -> None:
        """See Transport."""
        self._run_deferred()
        self.inner.progress(timeout_s)
        self._run_deferred()

    def abort(self, reason: str) -> None:
        """See Transport."""
        self.inner.abort(reason)
        self._run_deferred()

    def close(self) -> None:
        """See Transport. Waits for a limited time for sends that peers have not requested yet."""
        deadline_s = time.monotonic() + _CLOSE_TIMEOUT_S
        while self.has_waiting_sends and (left_s := deadline_s - time.monotonic()) > 0:
            self.progress(left_s)
        self.inner.close()
        self._run_deferred()

    def forget(self, peer: int) -> None:
        """See Wrapper."""
        super().forget(peer)
        self._run_deferred()  # requests for the peer have failed
        for pair in [pair for pair in self._note_errors if pair[0] == peer]:
            del self._note_errors[pair]

    # ---- for subclasses

    def _reclassify_sent(self, peer: int, header_bytes: int) -> None:
        """Count as header bytes what the inner transport counts as a message and its payload."""
        own = self._corrections[peer]
        own.messages_sent -= 1
        own.bytes_sent -= header_bytes
        own.header_bytes_sent += header_bytes

    def _reclassify_received(self, peer: int, header_bytes: int) -> None:
        own = self._corrections[peer]
        own.messages_received -= 1
        own.bytes_received -= header_bytes
        own.header_bytes_received += header_bytes

    def _check_address(self, peer: int, tag: int) -> None:
        if peer not in self.inner.counters or not 0 <= tag <= MAX_TAG:
            raise address_error(self.rank, self.size, peer, tag)

    def _when_done(self, request: Request, then: Callable[[Request], None]) -> None:
        """Call `then` once the request of the inner transport is done, outside the inner transport's calls."""
        if request.done:
            self._deferred.append(lambda: then(request))
        else:
            request.on_done = lambda done: self._deferred.append(lambda: then(done))

    def _run_deferred(self) -> None:
        while self._deferred:
            self._deferred.popleft()()

    def _send_note(self, pair: PairKey, tag: int, number: int) -> None:
        self._reclassify_sent(pair[0], _CONTROL.size)
        note = memoryview(_CONTROL.pack(tag, number))
        self.inner.isend(pair[0], CONTROL_TAG, note, pair[1])

    def _listen_for_notes(self, pair: PairKey) -> TransportError | None:
        """Receive the notes of this pair from now on; return the error that ended them, if any."""
        if pair not in self._note_errors:
            self._note_errors[pair] = None
            self._post_note_receive(pair)
        return self._note_errors[pair]

    def _post_note_receive(self, pair: PairKey) -> None:
        buffer = memoryview(bytearray(_CONTROL.size))

        def on_received(request: Request) -> None:
            if request.error is not None:
                self._note_errors[pair] = request.error
                self.on_lost(pair, request.error)
                return
            self._reclassify_received(pair[0], _CONTROL.size)
            self._post_note_receive(pair)
            self.on_note(pair, *_CONTROL.unpack(buffer))

        self._when_done(self.inner.irecv(pair[0], CONTROL_TAG, buffer, pair[1]), on_received)

    def _complete_with(self, request: Request, inner: Request) -> None:
        """Complete or fail the request as the inner one does."""

        def ended(done: Request) -> None:
            if done.error is not None:
                request.fail(done.error)
            else:
                request.complete()

        self._when_done(inner, ended)

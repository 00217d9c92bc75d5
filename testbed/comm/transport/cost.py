"""What messages cost the host that sends and receives them, where computing itself takes no time.

Under the virtual clock software runs in no time at all, so that its cost has to be put in on purpose. A rank here works
on one message after another: each costs it a fixed time, and a time per byte, before it is handed to the network and
after it has come from there. What device and host take to hand it to each other comes on top, while others go on.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import count

from testbed.comm.transport.base import (
    BEST_EFFORT,
    CONTROL_TAG,
    PeerCounters,
    PeerLost,
    Request,
    TrafficClass,
    Transport,
    TransportError,
    check_traffic_class,
)
from testbed.comm.transport.layers import Wrapper
from testbed.comm.transport.onesided import OneSided


class CostedTransport(Wrapper):
    """A transport whose messages cost their rank time, at both ends; otherwise the one that it wraps.

    note_s: of a protocol's note, in place of per_message_s; None: the same. handover_s: between device and host, of
    each message but notes, at each end; the rank does other things meanwhile.
    """

    def __init__(
        self,
        inner: Transport,
        per_message_s: float,
        per_byte_s: float,
        note_s: float | None = None,
        handover_s: float = 0.0,
    ) -> None:
        super().__init__(inner)
        self._per_message_s = per_message_s
        self._per_byte_s = per_byte_s
        self._note_s = per_message_s if note_s is None else note_s
        self._handover_s = handover_s
        self._busy_until_s = 0.0
        self._lost: dict[int, TransportError] = {}
        if isinstance(inner, OneSided):
            self.exposed = inner.exposed
        self._forgotten: Counter[int] = Counter()  # how many times each peer was
        # what comes next when its time has come; of two at one moment what was asked for first
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    @property
    def counters(self) -> Mapping[int, PeerCounters]:
        """See Transport."""
        return self.inner.counters

    def isend(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """See Transport; the message leaves once the rank has paid for it."""
        check_traffic_class(traffic)
        request = Request("send", peer, tag, view)
        if not self._valid(peer, tag):
            return self.inner.isend(peer, tag, view, traffic)  # which says what is wrong

        if peer in self._lost:
            request.fail(self._lost[peer])
            return request
        forgotten = self._forgotten[peer]

        def leave() -> None:
            if self._forgotten[peer] != forgotten:  # meant for one that has gone
                request.fail(PeerLost(self.rank, peer, "it was given up"))
            else:
                self._follow(request, self.inner.isend(peer, tag, view, traffic))

        self._after(tag, len(view), leave)
        return request

    def irecv(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        """See Transport; the message is there once the rank has paid for it."""
        request = Request("recv", peer, tag, view)
        inner = self.inner.irecv(peer, tag, view, traffic)

        def arrived(_: Request) -> None:
            if inner.error is not None:
                self._fail(request, inner.error)
            else:
                self._after(tag, len(view), request.complete)

        if inner.done:
            arrived(inner)
        else:
            inner.on_done = arrived
        return request

    def progress(self, timeout_s: float | None = 0.0) -> None:
        """See Transport."""
        self._do_due()
        if self._due:
            left_s = max(0.0, self._due[0][0] - self.inner.now_s)
            timeout_s = left_s if timeout_s is None else min(timeout_s, left_s)
        self.inner.progress(timeout_s)
        self._do_due()

    def abort(self, reason: str) -> None:
        """See Transport."""
        while self._due:
            heapq.heappop(self._due)[-1]()
        self.inner.abort(reason)

    def close(self) -> None:
        """See Transport; what is paid for already still leaves."""
        while self._due:
            self.progress(None)
        self.inner.close()

    def forget(self, peer: int) -> None:
        """See Wrapper."""
        self._forgotten[peer] += 1
        super().forget(peer)
        self._lost.pop(peer, None)

    def _valid(self, peer: int, tag: int) -> bool:
        return peer in self.inner.counters and tag >= 0

    def _after(self, tag: int, size_bytes: int, action: Callable[[], None]) -> None:
        """Do `action` when the rank has worked off this message, after all before it, and handed it over."""
        note = tag == CONTROL_TAG
        cost_s = size_bytes * self._per_byte_s + (self._note_s if note else self._per_message_s)
        self._busy_until_s = max(self._busy_until_s, self.inner.now_s) + cost_s
        at_s = self._busy_until_s + (0.0 if note else self._handover_s)
        heapq.heappush(self._due, (at_s, next(self._number), action))

    def _do_due(self) -> None:
        due = self._due
        while due and due[0][0] <= self.inner.now_s:
            heapq.heappop(due)[-1]()

    def _follow(self, request: Request, inner: Request) -> None:
        """The request ends as the inner one does."""

        def ended(_: Request) -> None:
            if inner.error is not None:
                self._fail(request, inner.error)
            else:
                request.complete()

        if inner.done:
            ended(inner)
        else:
            inner.on_done = ended

    def _fail(self, request: Request, error: TransportError) -> None:
        if isinstance(error, PeerLost):
            self._lost.setdefault(request.peer, error)
        request.fail(error)

"""How a job's messages are handed over and what that costs their hosts, in plain figures: for ranks and for the model.

Seconds and bytes are emulated ones. What belongs to a message is spent by `CostedTransport`, what belongs to an
operation (a collective, one end of a message between two ranks) by whoever begins it.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

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

PAGE_BYTES = 4096  # smaller arrays go by way of memory that is registered anyway


@dataclass(frozen=True)
class Registration:
    """What it takes to register an array with a network card: evenly drawn, and now and then much more.

    least_s, most_s: of most; rare_s: of a share `rare` of them.
    """

    least_s: float
    most_s: float
    rare_s: float
    rare: float

    def drawn_s(self, draw: random.Random) -> float:
        """Of one array."""
        return self.rare_s if draw.random() < self.rare else draw.uniform(self.least_s, self.most_s)


@dataclass(frozen=True)
class Slots:
    """Of a protocol that copies: through so many slots of so many bytes between two ranks.

    announced: none of a message's is free before its receiver waits for it, and has said so.
    """

    chunk_bytes: int = 256 * 1024
    count: int = 8
    announced: bool = False


@dataclass(frozen=True)
class Software:
    """Of one job. protocol: by name. slots: of one that copies through some.

    message_s, byte_s: of each message (of one that is cut, of each chunk) at each end, one after another. note_s: of a
    protocol's note; None: as a message. handover_s: more until it is handed over between device and host, while others
    go on. launch_s: before an operation begins; completion_s: after its last message. synchronisation_s: before one
    whose host must first read the device's counts. registration: of each array when first used; None: all are.
    computing_share: of a rank's speed of computing that an operation under way takes away.
    """

    protocol: str = "eager"
    slots: Slots = Slots()
    message_s: float = 0.0
    byte_s: float = 0.0
    note_s: float | None = None
    handover_s: float = 0.0
    launch_s: float = 0.0
    completion_s: float = 0.0
    synchronisation_s: float = 0.0
    registration: Registration | None = None
    computing_share: float = 0.0

    @property
    def of_note_s(self) -> float:
        """What a note costs each of its ends."""
        return self.message_s if self.note_s is None else self.note_s

    @property
    def of_messages(self) -> bool:
        """Whether messages cost anything."""
        return any((self.message_s, self.byte_s, self.of_note_s, self.handover_s))

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Software:
        """The inverse of dataclasses.asdict, after a round trip through JSON."""
        found = dict(document, slots=Slots(**document["slots"]))
        if found["registration"] is not None:
            found["registration"] = Registration(**found["registration"])
        return cls(**found)


class OperationCosts:
    """What one rank's operations take beside their messages. seed: of what is drawn, another for each rank."""

    def __init__(self, software: Software, seed: str) -> None:
        self._software = software
        self._draw = random.Random(seed)
        self._registered: set[tuple[int, int]] = set()

    def before_s(self, address: int, size_bytes: int) -> float:
        """Until an operation on the array at this address begins; 0 bytes for none."""
        took_s, registration = self._software.launch_s, self._software.registration
        array = address, size_bytes
        if registration is not None and size_bytes >= PAGE_BYTES and array not in self._registered:
            self._registered.add(array)
            took_s += registration.drawn_s(self._draw)
        return took_s

    @property
    def after_s(self) -> float:
        """From an operation's last message until who waits for it is told."""
        return self._software.completion_s


def operation_costs(software: Software, seed: int, rank: int) -> OperationCosts | None:
    """Of one rank; None where operations cost nothing by themselves."""
    if not (software.launch_s or software.completion_s or software.registration):
        return None
    return OperationCosts(software, f"{seed}/registration/{rank}")


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

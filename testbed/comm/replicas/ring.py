"""One attempt of a fault-tolerant all-reduce: a ring of the members of one view, in acknowledged chunks.

A receiver posts `in_flight` receives ahead and acknowledges each chunk; a sender has at most that many
unacknowledged chunks in flight. So an abandoned attempt leaves only a bounded number of receives behind. They stay
posted on the attempt's own memory, which is never reused.

Operations here must outlive the loss of a peer, so they wait with `AnyOf`: a failed request does not fail the
waiter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from testbed.comm.collectives.arrays import NOTHING, Array, Operation, as_bytes
from testbed.comm.transport import Request, TrafficClass, Transport, TransportError

_DATA, _ACKNOWLEDGEMENT = 0, 1


@dataclass(frozen=True)
class RingSettings:
    """Settings of the ring.

    chunk_bytes: maximum size of a message.
    in_flight: maximum number of unacknowledged chunks per neighbour.
    """

    chunk_bytes: int = 8_000_000
    in_flight: int = 2


@dataclass(frozen=True)
class RingPosition:
    """This rank's position in a ring of `size`, and the ranks of its neighbours.

    tag: tag of the attempt; tag + 1 is used as well.
    wanted: whether the attempt is still wanted; `signal` is notified when that changes.
    """

    position: int
    size: int
    previous: int
    next: int
    tag: int
    traffic: TrafficClass
    signal: Signal
    wanted: Callable[[], bool]


class Chunks(NamedTuple):
    """Chunks that a rank sends to the next rank and receives from the previous one, in order, as array slices.

    own: the first `own` chunks sent are the rank's own; each later one is forwarded after it was received, in the
    same order.
    added: the first `added` chunks received are added to the local data; the others are final sums.
    """

    outgoing: list[slice]
    incoming: list[slice]
    own: int
    added: int


def ring_chunks(numel: int, size: int, position: int, most: int) -> Chunks:
    """Return the chunks of a ring with one block per rank, cut into chunks of at most `most` elements.

    First the parts of each block are reduced around the ring, then the sums are passed around.
    """

    def block(number: int) -> list[slice]:
        number %= size
        start, end = numel * number // size, numel * (number + 1) // size
        return [slice(first, min(first + most, end)) for first in range(start, end, most)]

    rounds = [block(position - 1 - number) for number in range(2 * (size - 1))]
    own = block(position)
    # chunks of the last round end here; all others are forwarded in the next round
    outgoing = [own, *rounds[:-1]]
    return Chunks(_flat(outgoing), _flat(rounds), len(own), sum(map(len, rounds[: size - 1])))


def _flat(rounds: Sequence[Sequence[slice]]) -> list[slice]:
    return [chunk for chunks in rounds for chunk in chunks]


def ring_all_reduce(
    transport: Transport, place: RingPosition, work: Array, operation: Operation, settings: RingSettings
) -> Generator[tuple[AnyOf], None, bool]:
    """Reduce `work`, the attempt's own memory, in place; returns whether it holds the complete sum.

    If a neighbour is lost, wait until the attempt is no longer wanted, which the coordinator will announce.
    """
    most = max(1, settings.chunk_bytes // work.itemsize)
    outgoing, incoming, own, added = ring_chunks(work.size, place.size, place.position, most)
    posted: deque[tuple[Request, Array, slice]] = deque()
    acknowledgements: deque[Request] = deque()
    sent = received = 0
    data, taken = place.tag + _DATA, place.tag + _ACKNOWLEDGEMENT
    while received < len(incoming) or sent < len(outgoing):
        while len(posted) < settings.in_flight and received + len(posted) < len(incoming):
            number = received + len(posted)
            chunk = incoming[number]
            array = np.empty_like(work[chunk]) if number < added else work[chunk]
            request = transport.irecv(place.previous, data, as_bytes(array), place.traffic)
            posted.append((request, array, chunk))
        while sent < len(outgoing) and sent - own < received and len(acknowledgements) < settings.in_flight:
            transport.isend(place.next, data, as_bytes(work[outgoing[sent]]), place.traffic)
            acknowledgements.append(transport.irecv(place.next, taken, NOTHING, place.traffic))
            sent += 1
        waits = [request for request, _, _ in list(posted)[:1]] + list(acknowledgements)[:1]
        yield (AnyOf(place.signal, waits),)
        if not place.wanted():
            return False
        while posted and posted[0][0].done and posted[0][0].error is None:
            _, array, chunk = posted.popleft()
            if received < added:
                operation(work[chunk], array, out=work[chunk])
            received += 1
            transport.isend(place.previous, taken, NOTHING, place.traffic)
        while acknowledgements and acknowledgements[0].done and acknowledgements[0].error is None:
            acknowledgements.popleft()
        if any(request.done and request.error is not None for request in waits):
            while place.wanted():
                yield (AnyOf(place.signal),)
            return False
    return True


class Signal:
    """A broadcast condition: wakes all current waiters, in order of arrival, each time it is notified."""

    def __init__(self) -> None:
        self._waiting: dict[AnyOf, None] = {}

    def notify_all(self) -> None:
        """Wake all waiters."""
        waiting, self._waiting = self._waiting, {}
        for one in waiting:
            one.complete()

    def add(self, one: AnyOf) -> None:
        """Add a waiter."""
        self._waiting[one] = None

    def discard(self, one: AnyOf) -> None:
        """Remove a waiter."""
        self._waiting.pop(one, None)


class AnyOf:
    """Done when any of these requests ends, successfully or not, or the signal is notified; never fails itself."""

    __slots__ = ("_signal", "done", "error", "on_done")

    def __init__(self, signal: Signal, requests: Sequence[Request] = ()) -> None:
        self.done = any(request.done for request in requests)
        self.error: TransportError | None = None
        self.on_done: Callable[[Any], None] | None = None
        self._signal = signal
        if not self.done:
            signal.add(self)
            for request in requests:
                request.on_done = self.complete

    def complete(self, _: object = None) -> None:
        """Mark as done."""
        if not self.done:
            self.done = True
            self._signal.discard(self)
            if self.on_done is not None:
                self.on_done(self)

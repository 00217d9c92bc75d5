"""One attempt of a fault-tolerant all-reduce: a ring of the members of one view, chunk by chunk, acknowledged.

A receiver has `in_flight` receives posted ahead and acknowledges each chunk once it has taken it; a sender has at most
that many chunks under way that are not acknowledged. So what is left of an attempt that nobody goes on with is bounded:
its receives stay posted on memory of its own, which nobody uses again.
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
    """chunk_bytes: of a message, at most; in_flight: chunks per neighbour that are not acknowledged, at most."""

    chunk_bytes: int = 8_000_000
    in_flight: int = 2


@dataclass(frozen=True)
class Place:
    """This rank's place in a ring of `size`; the neighbours' ranks. tag: of the attempt, and the one after it, too.

    wanted: whether anybody still wants the attempt; what makes it false gives `signal`.
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
    """What a rank sends to its next one and gets from the one before, in this order, as parts of a flat array.

    own: how many of the first that it sends are its own; each of the others it has got, in the same order. added: how
    many of the first that it gets are to be added to what is there; the others are sums.
    """

    outgoing: list[slice]
    incoming: list[slice]
    own: int
    added: int


def chunks_of(numel: int, size: int, position: int, most: int) -> Chunks:
    """A ring's, of one block for each of `size` ranks, cut into chunks of at most `most` elements.

    First the parts of each block are added up around the ring, then the sums go around.
    """

    def block(number: int) -> list[slice]:
        number %= size
        start, end = numel * number // size, numel * (number + 1) // size
        return [slice(first, min(first + most, end)) for first in range(start, end, most)]

    rounds = [block(position - 1 - number) for number in range(2 * (size - 1))]
    own = block(position)
    # what comes in the last round ends here; all else goes on in the round after
    outgoing = [own, *rounds[:-1]]
    return Chunks(_flat(outgoing), _flat(rounds), len(own), sum(map(len, rounds[: size - 1])))


def _flat(rounds: Sequence[Sequence[slice]]) -> list[slice]:
    return [chunk for chunks in rounds for chunk in chunks]


def attempt(
    transport: Transport, place: Place, work: Array, operation: Operation, settings: RingSettings
) -> Generator[tuple[FirstOf], None, bool]:
    """Reduce `work`, memory of this attempt alone, in place; returns whether it holds the whole sum.

    Where a neighbour is lost it waits until nobody wants the attempt any more, as somebody will say.
    """
    most = max(1, settings.chunk_bytes // work.itemsize)
    outgoing, incoming, own, added = chunks_of(work.size, place.size, place.position, most)
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
        yield (FirstOf(place.signal, waits),)
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
                yield (FirstOf(place.signal),)
            return False
    return True


class Signal:
    """Wakes all who wait for it, in the order in which they came, as often as it is given."""

    def __init__(self) -> None:
        self._waiting: dict[FirstOf, None] = {}

    def give(self) -> None:
        """Wake them."""
        waiting, self._waiting = self._waiting, {}
        for one in waiting:
            one.come()

    def add(self, one: FirstOf) -> None:
        """It waits."""
        self._waiting[one] = None

    def discard(self, one: FirstOf) -> None:
        """It does no more."""
        self._waiting.pop(one, None)


class FirstOf:
    """Done when one of these requests is, well or not, or the signal is given. Looking at them is the waiter's part."""

    __slots__ = ("_signal", "done", "error", "on_done")

    def __init__(self, signal: Signal, requests: Sequence[Request] = ()) -> None:
        self.done = any(request.done for request in requests)
        self.error: TransportError | None = None
        self.on_done: Callable[[Any], None] | None = None
        self._signal = signal
        if not self.done:
            signal.add(self)
            for request in requests:
                request.on_done = self.come

    def come(self, _: object = None) -> None:
        """One of them is."""
        if not self.done:
            self.done = True
            self._signal.discard(self)
            if self.on_done is not None:
                self.on_done(self)

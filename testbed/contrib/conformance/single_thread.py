"""Collectives of many ranks driven by one thread on the in-memory network; data for them, layouts of buildings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from testbed.comm.collectives import Array, Communicator, Work, dtype_named, fill
from testbed.comm.transport import MemoryNetwork

Sent = dict[tuple[int, int], int]
ROUNDS = 10_000


def communicators_of(groups: Sequence[int]) -> list[Communicator]:
    """One per rank; groups: the building of each."""
    return [Communicator(transport, groups) for transport in MemoryNetwork(len(groups)).transports]


def run(groups: Sequence[int], start: Callable[..., Work], *arrays: Sequence[Any], **options: Any) -> Sent:
    """Begin one operation on every rank and drive all of them in this thread; the payload bytes sent per pair.

    `start` is a method of Communicator, which gets the rank's own of each of the `arrays`.
    """
    return run_on(communicators_of(groups), start, *arrays, **options)


def run_on(
    communicators: Sequence[Communicator], start: Callable[..., Work], *arrays: Sequence[Any], **options: Any
) -> Sent:
    """As `run`, on communicators that there are."""
    works = [
        start(communicator, *(array[communicator.rank] for array in arrays), async_op=True, **options)
        for communicator in communicators
    ]
    finish(communicators, works)
    return {
        (communicator.rank, peer): counters.bytes_sent
        for communicator in communicators
        for peer, counters in communicator.transport.counters.items()
        if counters.bytes_sent
    }


def finish(communicators: Sequence[Communicator], works: Sequence[Work]) -> None:
    """Drive all until all works are done. CollectiveTimeout says who waits for whom where that is never."""
    for _ in range(ROUNDS):
        if all(work.is_completed() for work in works):
            break
        for communicator in communicators:
            communicator.progress()
    for work in works:
        work.wait(0.0)
        assert work.end_s >= work.start_s


def filled(numel: int, rank: int, dtype: str, op: str = "sum") -> Array:
    """What rank `rank` has at first; see `testbed.comm.collectives.fill`."""
    array = np.empty(numel, dtype_named(dtype))
    fill(array, rank, salt=numel, op=op)
    return array


def joined(size: int, numel: int, dtype: str) -> Array:
    """What all ranks have at first, one after the other."""
    return np.concatenate([filled(numel, rank, dtype) for rank in range(size)])


def layouts(size: int) -> list[list[int]]:
    """One building; two unequal ones of consecutive ranks; three whose ranks are mixed; as far as there are ranks."""
    found = [[0] * size]
    if size >= 2:
        found.append([0] * (size // 3 or 1) + [1] * (size - (size // 3 or 1)))
    if size >= 3:
        found.append([(rank * 5 + rank // 4) % 3 for rank in range(size)])
    return found

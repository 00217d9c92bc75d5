"""Harness of the suites: many ranks driven by one thread on the in-memory network, or one thread per rank."""

from __future__ import annotations

import threading
import time
import unittest
from collections.abc import Callable, Sequence
from typing import Any

from testbed.comm.collectives import Communicator, Work
from testbed.comm.transport import MemoryNetwork, Request, Transport, wait_all
from testbed.errors import TestbedError

Sent = dict[tuple[int, int], int]
ROUNDS = 10_000


def communicators_of(groups: Sequence[int]) -> list[Communicator]:
    """Return one communicator per rank; `groups` is the building of each."""
    return [Communicator(transport, groups) for transport in MemoryNetwork(len(groups)).transports]


def run(groups: Sequence[int], start: Callable[..., Work], *arrays: Sequence[Any], **options: Any) -> Sent:
    """Run one operation on every rank in this thread; returns the payload bytes sent per pair of ranks.

    `start` is a method of Communicator; each rank passes its own element of each of the `arrays`.
    """
    return run_on(communicators_of(groups), start, *arrays, **options)


def run_on(
    communicators: Sequence[Communicator], start: Callable[..., Work], *arrays: Sequence[Any], **options: Any
) -> Sent:
    """Run one operation on existing communicators; see `run`."""
    works = [
        start(communicator, *(array[communicator.rank] for array in arrays), async_op=True, **options)
        for communicator in communicators
    ]
    finish(communicators, works)
    return sent_bytes(communicators)


def sent_bytes(communicators: Sequence[Communicator]) -> Sent:
    """Return the payload bytes sent so far per pair of ranks."""
    return {
        (communicator.rank, peer): counters.bytes_sent
        for communicator in communicators
        for peer, counters in communicator.transport.counters.items()
        if counters.bytes_sent
    }


def finish(communicators: Sequence[Communicator], works: Sequence[Work]) -> None:
    """Drive all ranks until all Works are done. On a deadlock, CollectiveTimeout names which rank waits for which."""
    for _ in range(ROUNDS):
        if all(work.is_completed() for work in works):
            break
        for communicator in communicators:
            communicator.progress()
    for work in works:
        work.wait(0.0)
        assert work.end_s >= work.start_s


def layouts(size: int) -> list[list[int]]:
    """Return assignments of ranks to buildings, if there are enough ranks for each.

    They are: all ranks in one building, consecutive ranks in two unequal buildings, ranks interleaved over three.
    """
    found = [[0] * size]
    if size >= 2:
        found.append([0] * (size // 3 or 1) + [1] * (size - (size // 3 or 1)))
    if size >= 3:
        found.append([(rank * 5 + rank // 4) % 3 for rank in range(size)])
    return found


Program = Callable[[Transport], Any]
Runner = Callable[[int, Program], "list[Any]"]
"""Runs a program on this many ranks, one thread each, and returns their results."""


def in_threads(size: int, make: Callable[[int], Transport], program: Program) -> list[Any]:
    """Run a program on each rank, one thread each, on a transport from `make`, and return the results.

    Transports are closed at the end. Raises the first error of any rank, or AssertionError if a rank hangs.
    """
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run_rank(rank: int) -> None:
        try:
            transport = make(rank)
            try:
                results[rank] = program(transport)
            finally:
                transport.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run_rank, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results


def raises(kind: type[Exception], match: str = "") -> Any:
    """Return a context manager that expects an error whose message matches; its `exception` is the error."""
    return unittest.TestCase().assertRaisesRegex(kind, match)  # noqa: PT027 (users need no pytest)


def wait_requests(transport: Transport, *requests: Request) -> None:
    """Wait for all requests, for at most ten seconds."""
    wait_all(transport, requests, 10)


def linger(transport: Transport, seconds: float) -> None:
    """Make progress for this many seconds."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        transport.progress(0.01)


class Nonconforming(TestbedError, AssertionError):
    """An algorithm that does not do what its collective promises; the message names the case."""

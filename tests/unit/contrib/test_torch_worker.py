"""Collectives handed over to a thread of their own: order, time-outs, lost peers, the end. No PyTorch is needed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from testbed.comm.collectives import CollectiveTimeout, Communicator, Work
from testbed.comm.transport import PeerLost, TransportError
from testbed.contrib.torch.worker import Worker
from tests.unit.measure.ranks import Places


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    places = Places(3)
    made = [
        Worker(lambda rank=rank: Communicator(places.transport(rank)))  # type: ignore[misc]
        for rank in range(3)
    ]
    yield made
    for worker in made:
        worker.close()
    places.close()


def sums(worker: Worker, arrays: list[np.ndarray]) -> tuple[Work, ...]:
    return tuple(worker.communicator.all_reduce(array, async_op=True) for array in arrays)


def test_operations_go_on_while_nobody_waits_and_end_with_what_comes_after_them(
    workers: list[Worker],
) -> None:
    arrays = [[np.full(100_000, rank + 1.0), np.ones(3)] for rank in range(3)]
    finished: list[int] = []
    handed = [
        worker.submit(lambda worker=worker, own=own: sums(worker, own), lambda: finished.append(1))  # type: ignore[misc]
        for worker, own in zip(workers, arrays, strict=True)
    ]
    heard = threading.Event()
    handed[1].add_done_callback(lambda _: heard.set())
    assert heard.wait(10)  # nobody has waited for it
    for one in handed:
        assert one.wait(10)
        assert one.done()
    assert len(finished) == 3
    for first, second in arrays:
        assert (first == 6).all()
        assert (second == 3).all()
    late = threading.Event()
    handed[0].add_done_callback(lambda _: late.set())
    assert late.is_set()


def test_nothing_spins_while_a_peer_is_waited_for(workers: list[Worker]) -> None:
    array = np.ones(5)
    handed = workers[0].submit(lambda: sums(workers[0], [array]))
    time.sleep(0.05)
    before_s = time.process_time()
    assert not handed.wait(0.5)
    assert time.process_time() - before_s < 0.1
    for worker in workers[1:]:
        worker.submit(lambda worker=worker: sums(worker, [np.ones(5)]))  # type: ignore[misc]
    assert handed.wait(10)
    assert (array == 3).all()


def test_who_waits_too_long_is_told_whom_for(workers: list[Worker]) -> None:
    handed = workers[1].submit(lambda: (workers[1].communicator.irecv(np.ones(5), 2),), timeout_s=0.1)
    with pytest.raises(CollectiveTimeout, match=r"not done within 0\.1 s; waits to receive from rank 2"):
        handed.wait(10)


def test_what_cannot_begin_fails_alone(workers: list[Worker]) -> None:
    with pytest.raises(ValueError, match="dst: got 7, expected 0 to 2"):
        workers[0].submit(lambda: (workers[0].communicator.reduce(np.ones(1), 7, async_op=True),)).wait(10)
    assert workers[0].call(lambda everybody: everybody.size) == 3


def test_a_rank_that_leaves_fails_those_who_wait_for_it_and_nothing_can_be_asked_of_it(
    workers: list[Worker],
) -> None:
    met = [
        worker.submit(lambda worker=worker: (worker.communicator.barrier(async_op=True),))  # type: ignore[misc]
        for worker in workers
    ]
    assert all(one.wait(10) for one in met)  # so that they are connected
    handed = workers[0].submit(lambda: (workers[0].communicator.irecv(np.ones(5), 2),))
    workers[2].close()
    with pytest.raises(PeerLost, match="rank 0: lost peer 2"):
        handed.wait(10)
    with pytest.raises(TransportError, match="this rank has left its job"):
        workers[2].call(lambda everybody: everybody.rank)


def test_what_is_under_way_when_a_rank_leaves_fails(workers: list[Worker]) -> None:
    handed = workers[1].submit(lambda: (workers[1].communicator.irecv(np.ones(5), 0),))
    workers[1].call(lambda everybody: None)
    workers[1].close()
    with pytest.raises(TransportError):
        handed.wait(10)


def test_who_cannot_join_says_so() -> None:
    def join() -> Communicator:
        raise TransportError("no such address")

    with pytest.raises(TransportError, match="no such address"):
        Worker(join)

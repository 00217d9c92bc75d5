"""The communicator: many operations at once, timeouts, lost peers, what it refuses; over TCP in processes too."""

from __future__ import annotations

import os
import re
import signal
import time

import numpy as np
import pytest

from testbed.comm.collectives import (
    Array,
    CollectiveTimeout,
    Communicator,
    Reduction,
    count_wrong,
    fill,
    traffic,
)
from testbed.comm.transport import MemoryNetwork, PeerLost, TcpTransport, Transport, TransportError
from testbed.plugins import PluginError
from tests.unit.comm.collective_runs import ALGORITHMS
from tests.unit.measure.ranks import Places, forked, in_memory, over_tcp

GROUPS = [0, 0, 1, 1, 1]


def alone(size: int = 1, groups: list[int] | None = None) -> list[Communicator]:
    return [Communicator(transport, groups) for transport in MemoryNetwork(size).transports]


def everything(transport: Transport) -> bool:
    """All calls in one program, blocking and not, several in flight, waited for out of order."""
    communicator = Communicator(transport, GROUPS, timeout_s=20)
    rank, size = communicator.rank, communicator.size
    arrays = [np.empty(numel, "float32") for numel in (999, 1000, 70_001, 0, 1, 400_003, 20, 5000)]
    works = []
    for number, array in enumerate(arrays):
        fill(array, rank, salt=number)
        algorithm = ("ring", "hierarchical")[number % 2]
        works.append(communicator.all_reduce(array, algorithm=algorithm, async_op=True))
    communicator.sleep(0.01)
    for work in works[::-2] + works[::2]:
        work.wait()
        assert work.is_completed()
    right: bool = not any(count_wrong(array, size, salt=number) for number, array in enumerate(arrays))
    if rank == 2:
        communicator.sleep(0.05)  # the others' barriers and messages come early here
    communicator.barrier()
    gathered = np.empty((size, 3), "int32")
    communicator.all_gather_into_tensor(gathered, np.full(3, rank, "int32"))
    right = right and gathered.tolist() == [[peer] * 3 for peer in range(size)]
    mine = np.empty(2, "float64")
    communicator.reduce_scatter_tensor(mine, np.arange(2 * size, dtype="float64"))
    right = right and mine.tolist() == [size * 2.0 * rank, size * (2.0 * rank + 1)]
    for root in range(size):
        value = np.full(10, rank, "int64")
        communicator.broadcast(value, src=root)
        right = right and bool((value == root).all())
    received = [np.empty(1, "int32") for _ in range(2)]
    pending = [communicator.irecv(into, (rank - 1) % size, tag=tag) for tag, into in enumerate(received)]
    for tag in (1, 0):
        communicator.send(np.array([10 * tag + rank], "int32"), (rank + 1) % size, tag)
    for work in pending:
        work.wait()
    right = right and [int(into[0]) for into in received] == [(rank - 1) % size, 10 + (rank - 1) % size]
    communicator.barrier()
    return right


def test_everything_in_memory() -> None:
    assert in_memory(5, everything) == [True] * 5


def test_everything_over_tcp_in_threads() -> None:
    assert over_tcp(5, everything) == [True] * 5


def test_everything_over_tcp_in_processes() -> None:
    places = Places(5)
    with forked(everything, places, list(range(5))) as running:
        assert running.results() == [True] * 5
    places.close()


def with_reductions_of_its_own(transport: Transport) -> list[list[int]]:
    communicator = Communicator(transport, timeout_s=20)
    bits = np.full(5, 1 << communicator.rank, "uint8")
    communicator.all_reduce(bits, Reduction("any bit", np.bitwise_or))
    doubled = np.full(5, communicator.rank, "int16")

    def add_ranks(array: Array, size: int) -> None:
        array += size

    communicator.all_reduce(doubled, Reduction("sum and ranks", np.add, add_ranks))
    part = np.empty(1, "int8")
    communicator.reduce_scatter_tensor(part, np.arange(4, dtype="int8"), Reduction("most", np.maximum))
    mean = np.full(3, 200 // (communicator.rank + 1), "uint8")
    communicator.all_reduce(mean, "avg")
    return [bits.tolist(), doubled.tolist(), part.tolist(), mean.tolist()]


def test_reductions_of_ones_own_and_small_whole_numbers() -> None:
    found = in_memory(4, with_reductions_of_its_own)
    # 200 + 100 + 66 + 50 is more than a byte holds: what is left of it over four
    same = [[15] * 5, [0 + 1 + 2 + 3 + 4] * 5, [(200 + 100 + 66 + 50) % 256 // 4] * 3]
    assert [[bits, doubled, mean] for bits, doubled, _, mean in found] == [same] * 4
    assert [part for _, _, part, _ in found] == [[0], [1], [2], [3]]


@pytest.mark.parametrize("algorithm", ALGORITHMS["all_reduce"])
def test_all_reduce_over_tcp_sends_what_the_formula_says(algorithm: str) -> None:
    numels = (1, 1001, 300_000)

    def program(transport: TcpTransport) -> tuple[int, dict[int, int]]:
        communicator = Communicator(transport, GROUPS)
        wrong = 0
        for numel in numels:
            array = np.empty(numel, "float64")
            fill(array, transport.rank, numel)
            communicator.all_reduce(array, algorithm=algorithm)
            wrong += count_wrong(array, transport.size, numel)
        communicator.barrier()
        return wrong, {
            peer: counters.bytes_sent for peer, counters in transport.counters.items() if counters.bytes_sent
        }

    places = Places(5)
    with forked(program, places, list(range(5))) as running:
        results = running.results()
    places.close()
    expected: list[dict[int, int]] = [{} for _ in GROUPS]
    for numel in numels:
        for (source, target), count in traffic("all_reduce", algorithm, numel, 8, GROUPS).items():
            expected[source][target] = expected[source].get(target, 0) + count
    assert results == [(0, sent) for sent in expected]


# ---- timeouts and lost peers


def test_who_does_not_answer_is_named() -> None:
    communicators = alone(3)
    work = communicators[0].all_reduce(np.ones(10, "float32"), algorithm="ring", async_op=True)
    assert not work.is_completed()
    assert np.isnan(work.end_s)
    with pytest.raises(CollectiveTimeout) as caught:
        work.wait(0.02)
    assert str(caught.value) == (
        "all_reduce #1 (reduce-scatter, round 1 of 4) on rank 0: not done within 0.02 s; "
        "waits to receive from rank 2"
    )
    assert caught.value.phase == "reduce-scatter, round 1 of 4"
    assert caught.value.receives_from == (2,)
    assert isinstance(caught.value, TimeoutError)


def test_the_communicators_own_timeout_counts_from_the_start() -> None:
    communicator = Communicator(MemoryNetwork(4).transports[0], [0, 0, 1, 1], timeout_s=0.1)
    begun_s = time.monotonic()
    work = communicator.all_reduce(np.ones(10, "float32"), algorithm="hierarchical", async_op=True)
    communicator.sleep(0.06)
    with pytest.raises(CollectiveTimeout, match=r"within 0\.1 s"):
        work.wait()
    assert 0.1 <= time.monotonic() - begun_s < 1
    with pytest.raises(
        CollectiveTimeout, match=r"barrier #2 \(distance 1\) on rank 0: .*to receive from rank 3"
    ):
        communicator.barrier()
    with pytest.raises(CollectiveTimeout, match=r"irecv from rank 2, tag 8 on rank 0"):
        communicator.recv(np.ones(1, "int32"), 2, tag=8)


def test_a_wait_that_ran_out_can_be_taken_up_again() -> None:
    one, two = alone(2)
    arrays = [np.ones(10, "float32"), np.ones(10, "float32")]
    work = one.all_reduce(arrays[0], async_op=True)
    with pytest.raises(CollectiveTimeout):
        work.wait(0.0)
    other = two.all_reduce(arrays[1], async_op=True)
    while not (work.is_completed() and other.is_completed()):
        one.progress()
        two.progress()
    work.wait()
    assert arrays[0].tolist() == [2.0] * 10


def test_a_send_that_nobody_takes_is_named() -> None:
    places = Places(2)

    def program(transport: Transport) -> None:
        transport.irecv(0, 1, memoryview(b""))
        while not transport.counters[0].messages_received:
            transport.progress(1.0)

    with forked(program, places, [1], max_staged_bytes=10) as running:
        with places.transport_closing(0, close_timeout_s=0.1) as transport:
            communicator = Communicator(transport)
            with pytest.raises(
                CollectiveTimeout, match=r"isend to rank 1, tag 3 on rank 0: .*; waits to send to rank 1"
            ):
                communicator.isend(np.zeros(5_000_000), 1, tag=3).wait(0.2)
        assert running.processes[0].is_alive()
    places.close()


def test_a_rank_that_leaves_fails_whatever_is_waited_for() -> None:
    one, two, _ = alone(3)
    far = one.irecv(np.ones(1, "int32"), 2)
    near = one.irecv(np.ones(1, "int32"), 1)
    two.transport.close()
    with pytest.raises(
        PeerLost, match=r"^irecv from rank 1, tag 0 on rank 0: lost peer 1: it closed its end$"
    ):
        far.wait()
    assert far.is_completed()  # it has ended with the other one's error
    assert near.is_completed()
    for wait in (near.wait, one.barrier, lambda: one.sleep(5)):
        with pytest.raises(PeerLost):
            wait()


def test_a_killed_process_fails_the_collective_at_once() -> None:
    places = Places(3)

    def program(transport: Transport) -> None:
        communicator, begun = Communicator(transport), np.zeros(1, "int32")
        communicator.barrier()
        if transport.rank == 1:  # once the others are in the collective
            communicator.recv(begun, 0)
            communicator.recv(begun, 2)
            os.kill(os.getpid(), signal.SIGKILL)
        work = communicator.all_reduce(np.ones(1000, "float32"), algorithm="ring", async_op=True)
        communicator.send(begun, 1)
        work.wait()

    begun_s = time.monotonic()
    with forked(program, places, [0, 1, 2]) as running:
        zero, one, two = running.results()
    assert one is None
    assert re.match(r"PeerLost: all_reduce #2 \(reduce-scatter, round \d of 4\) on rank 2: lost peer 1", two)
    assert re.match(
        r"PeerLost: all_reduce #2 \(.*\) on rank 0: lost peer", zero
    )  # 1, or 2 which gave up because of it
    assert time.monotonic() - begun_s < 5
    places.close()


def test_ranks_that_disagree_on_the_size_are_told() -> None:
    one, two = alone(2)
    works = [one.all_reduce(np.ones(10, "float32"), async_op=True)]
    works.append(two.all_reduce(np.ones(14, "float32"), async_op=True))
    with pytest.raises(TransportError, match=r"got 28 bytes, expected 20, as posted"):
        works[0].wait()


# ---- what is refused


def test_what_is_not_supported_is_refused() -> None:
    (communicator,) = alone()
    ones = np.ones(4, "float32")
    refused = [
        (TypeError, "array: got dtype complex64, expected one of float16, bfl", np.ones(3, "complex64"), {}),
        (TypeError, "array: got list, expected a numpy array", [1.0], {}),
        (ValueError, "array: got a non-contiguous array", np.ones((4, 4), "float32")[:, 1], {}),
        (ValueError, "array: got a read-only array", np.frombuffer(bytes(8), "int32"), {}),
        (ValueError, "op: got 'mean', expected one of sum, product, min, max, avg", ones, {"op": "mean"}),
        (
            PluginError,
            "algorithm: got 'tree', expected FILE.py:NAME or one of ring, ",
            ones,
            {"algorithm": "tree"},
        ),
    ]
    for error, words, array, options in refused:
        with pytest.raises(error, match=words):
            communicator.all_reduce(array, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"src: got 3, expected 0 to 0"):
        communicator.broadcast(ones, src=3)
    with pytest.raises(ValueError, match=r"input: got 4 elements, expected 2"):
        communicator.reduce_scatter_tensor(np.ones(2, "float32"), ones)
    with pytest.raises(TypeError, match=r"input: got dtype float64, expected float32, as the output's"):
        communicator.all_gather_into_tensor(ones, np.ones(4))
    with pytest.raises(ValueError, match=r"tag: got -1, expected 0 to 2\*\*32 - 1"):
        communicator.isend(ones, 0, tag=-1)
    with pytest.raises(ValueError, match=r"groups: got 2 entries, expected one per rank, 1"):
        alone(1, [0, 0])


def test_one_rank_needs_no_network() -> None:
    (communicator,) = alone()
    array = np.arange(4, dtype="float32")
    for algorithm in ALGORITHMS["all_reduce"]:
        communicator.all_reduce(array, algorithm=algorithm)
    communicator.barrier()
    communicator.broadcast(array, 0)
    output = np.zeros(4, "float32")
    communicator.reduce_scatter_tensor(output, array)
    assert output.tolist() == array.tolist() == [0, 1, 2, 3]
    communicator.all_gather_into_tensor(output, array[::-1].copy())
    assert output.tolist() == [3, 2, 1, 0]
    begun_s = time.monotonic()
    communicator.sleep(-1.0)
    communicator.sleep(0.02)
    assert time.monotonic() - begun_s >= 0.02


def test_arrays_of_any_shape_are_reduced_in_place() -> None:
    one, two = alone(2)
    arrays = [np.full((3, 5, 2), rank + 1, "int64") for rank in range(2)]
    works = [c.all_reduce(array, async_op=True) for c, array in zip((one, two), arrays, strict=True)]
    while not all(work.is_completed() for work in works):
        one.progress()
        two.progress()
    assert all((array == 3).all() and array.shape == (3, 5, 2) for array in arrays)

"""Every algorithm gives the exact answer and sends the bytes that its formula says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.collectives import (
    CollectiveError,
    CollectiveTimeoutError,
    Communicator,
    count_wrong,
    fill,
    traffic,
    wan_bytes,
)
from testbed.collectives.layout import chunk_bounds, shared_segments
from testbed.transport import MemoryNetwork, Transport
from tests.unit.ranks import in_memory, over_tcp

GROUPS = {1: [0], 2: [0, 1], 3: [0, 0, 1], 4: [0, 0, 1, 1], 5: [0, 1, 1, 2, 2], 6: [0, 0, 0, 0, 1, 1]}
GROUPS |= {7: [0, 1, 0, 1, 0, 1, 0], 8: [0] * 4 + [1] * 4, 9: [0, 0, 1, 1, 1, 2, 2, 2, 2]}


def drive(communicators: Sequence[Communicator], works: Sequence[Any]) -> None:
    """Advance all ranks in turn in this one thread until all works are done."""
    for _ in range(100_000):
        if all(work.is_completed() for work in works):
            break
        for communicator in communicators:
            communicator.progress()
    for work in works:
        work.wait(0.1)


def communicators_of(groups: Sequence[int]) -> list[Communicator]:
    return [Communicator(transport, groups) for transport in MemoryNetwork(len(groups)).transports]


@pytest.mark.parametrize("size", sorted(GROUPS))
@pytest.mark.parametrize("algorithm", ["ring", "hierarchical"])
def test_all_reduce_is_exact_and_sends_what_the_formula_says(algorithm: str, size: int) -> None:
    for numel in (0, 1, 2, 5, 64, 1001):
        for dtype in ("float32", "float64", "int32", "int64"):
            communicators = communicators_of(GROUPS[size])
            arrays = [np.empty(numel, dtype) for _ in range(size)]
            for rank, array in enumerate(arrays):
                fill(array, rank, salt=numel)
            drive(
                communicators,
                [
                    c.all_reduce(a, algorithm=algorithm, async_op=True)
                    for c, a in zip(communicators, arrays, strict=True)
                ],
            )
            assert [count_wrong(array, size, salt=numel) for array in arrays] == [0] * size
            sent = {
                (c.rank, peer): counters.bytes_sent
                for c in communicators
                for peer, counters in c.transport.counters.items()
                if counters.bytes_sent
            }
            assert sent == traffic(algorithm, numel, np.dtype(dtype).itemsize, GROUPS[size])


@pytest.mark.parametrize(("op", "expected"), [("sum", 10), ("product", 24), ("min", 1), ("max", 4)])
@pytest.mark.parametrize("algorithm", ["ring", "hierarchical"])
def test_operations(algorithm: str, op: str, expected: int) -> None:
    communicators = communicators_of(GROUPS[4])
    arrays = [np.full(7, rank + 1, "int64") for rank in range(4)]
    drive(
        communicators,
        [c.all_reduce(a, op, algorithm, async_op=True) for c, a in zip(communicators, arrays, strict=True)],
    )
    assert all((array == expected).all() for array in arrays)


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    numel=st.integers(0, 300),
)
@settings(max_examples=60, deadline=None)
def test_hierarchical_crosses_the_wan_with_the_fewest_bytes(sizes: list[int], numel: int) -> None:
    """Each building must send its share and get the others': 2 N (g-1) bytes in all, whatever the buildings' sizes."""
    groups = [building for building, size in enumerate(sizes) for _ in range(size)]
    assert wan_bytes("hierarchical", numel, 4, groups) == 2 * numel * 4 * (len(sizes) - 1)


def test_the_flat_ring_crosses_twice_with_nearly_the_whole_vector() -> None:
    groups = GROUPS[8]
    assert wan_bytes("ring", 8000, 4, groups) == 2 * 2 * 8000 * 4 * 7 // 8
    assert wan_bytes("hierarchical", 8000, 4, groups) == 2 * 8000 * 4


@given(size=st.integers(0, 200), parts=st.integers(1, 20))
def test_chunks_cover_everything_once_and_evenly(size: int, parts: int) -> None:
    bounds = chunk_bounds(size, parts)
    assert [low for low, _ in bounds[1:]] == [high for _, high in bounds[:-1]]
    assert (bounds[0][0], bounds[-1][1]) == (0, size)
    lengths = [high - low for low, high in bounds]
    assert max(lengths) - min(lengths) <= 1


def test_segments_lie_in_one_chunk_of_every_building() -> None:
    assert shared_segments(12, [[0, 1], [2, 3, 4]]) == [
        (0, 4, [0, 2]),
        (4, 6, [0, 3]),
        (6, 8, [1, 3]),
        (8, 12, [1, 4]),
    ]


@pytest.mark.parametrize("run", [in_memory, over_tcp])
def test_everything_over_threads(run: Any) -> None:
    """All calls in one program, blocking and not, several in flight, waited for out of order."""

    def program(transport: Transport) -> bool:
        communicator = Communicator(transport, GROUPS[5])
        rank, size = communicator.rank, communicator.size
        works = []
        arrays = [np.empty(999 + number, "float32") for number in range(6)]
        for number, array in enumerate(arrays):
            fill(array, rank, salt=number)
            algorithm = ("ring", "hierarchical")[number % 2]
            works.append(communicator.all_reduce(array, algorithm=algorithm, async_op=True))
        communicator.sleep(0.01)
        for work in reversed(works):
            work.wait()
            assert work.end_s >= work.start_s
        good = not any(count_wrong(array, size, salt=number) for number, array in enumerate(arrays))
        communicator.barrier()
        gathered = np.empty(size * 3, "int32")
        communicator.all_gather_into_tensor(gathered, np.full(3, rank, "int32"))
        good &= gathered.tolist() == [peer for peer in range(size) for _ in range(3)]
        mine = np.empty(2, "float64")
        communicator.reduce_scatter_tensor(mine, np.arange(2 * size, dtype="float64"))
        good &= mine.tolist() == [size * 2.0 * rank, size * (2.0 * rank + 1)]
        for root in range(size):
            value = np.full(10, rank, "int64")
            communicator.broadcast(value, src=root)
            good &= bool((value == root).all())
        token = np.array([rank], "int32")
        received = np.empty(1, "int32")
        work = communicator.irecv(received, (rank - 1) % size, tag=4)
        communicator.send(token, (rank + 1) % size, tag=4)
        work.wait()
        communicator.barrier()
        return good and int(received[0]) == (rank - 1) % size

    assert run(5, program) == [True] * 5


def test_a_rank_that_does_not_come_is_named() -> None:
    communicators = communicators_of([0, 0, 0])
    work = communicators[0].all_reduce(np.ones(10, "float32"), async_op=True)
    with pytest.raises(CollectiveTimeoutError) as caught:
        work.wait(0.05)
    assert "rank 0: all_reduce (ring, 40 bytes) number 0 did not finish within 0.05 s" in str(caught.value)
    assert "waiting for data from rank 2" in str(caught.value)


def test_a_rank_that_leaves_fails_the_collective() -> None:
    communicators = communicators_of([0, 0])
    work = communicators[0].all_reduce(np.ones(10, "float32"), async_op=True)
    communicators[1].transport.close()
    with pytest.raises(CollectiveError, match="failed: rank 0: rank 1 has left"):
        work.wait(5)


def test_ranks_that_disagree_on_the_size_are_told() -> None:
    communicators = communicators_of([0, 0])
    works = [c.all_reduce(np.ones(10 + 4 * c.rank, "float32"), async_op=True) for c in communicators]
    with pytest.raises(CollectiveError, match="do not agree"):
        drive(communicators, works)


def test_what_is_not_supported_is_refused() -> None:
    (communicator,) = communicators_of([0])
    with pytest.raises(TypeError, match="got float16 array, expected a C-contiguous numpy array of float32"):
        communicator.all_reduce(np.ones(3, "float16"))
    with pytest.raises(TypeError, match="got list"):
        communicator.all_reduce([1.0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="op: got 'mean', expected one of sum, product, min, max"):
        communicator.all_reduce(np.ones(3, "float32"), op="mean")
    with pytest.raises(ValueError, match="algorithm: got 'tree'"):
        communicator.all_reduce(np.ones(3, "float32"), algorithm="tree")
    with pytest.raises(ValueError, match=r"src: got 3, expected another rank from 0 to 0"):
        communicator.broadcast(np.ones(3, "float32"), src=3)


@pytest.mark.parametrize("spoil", ["missing", "doubled", "shifted", "other"])
def test_planted_errors_are_counted(spoil: str) -> None:
    size, arrays = 4, []
    for rank in range(4):
        array = np.empty(1000, "float32")
        fill(array, rank, salt=5)
        arrays.append(array)
    total = sum(arrays)
    assert count_wrong(total, size, salt=5) == 0
    wrong = {
        "missing": total - arrays[2],
        "doubled": total + arrays[1],
        "shifted": np.roll(total, 1),
        "other": total,
    }[spoil]
    assert count_wrong(wrong, size, salt=6 if spoil == "other" else 5) > 800

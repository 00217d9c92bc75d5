"""Every algorithm gives the exact answer and sends the bytes that its formula says, on the in-memory network."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.collectives import (
    ALGORITHMS,
    DTYPES,
    Communicator,
    Work,
    all_gather_traffic,
    broadcast_traffic,
    count_wrong,
    fill,
    reduce_scatter_traffic,
    traffic,
    wan_bytes,
)
from testbed.collectives.chunks import Segment, even_bounds, segments
from testbed.transport import MemoryNetwork

SIZES = range(1, 10)
NUMELS = (0, 1, 2, 7, 64, 1001)
LAYOUTS = {
    1: [[0]],
    2: [[0, 0], [0, 1]],
    3: [[0, 0, 1], [0, 1, 2], [1, 0, 1]],
    4: [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 1]],
    5: [[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]],
    6: [[0, 0, 0, 0, 1, 1], [2, 2, 1, 1, 0, 0]],
    7: [[0, 1, 0, 1, 0, 1, 0], [0, 1, 2, 2, 2, 2, 2]],
    8: [[0] * 4 + [1] * 4, [0] * 3 + [1] * 5],
    9: [[0, 0, 1, 1, 1, 2, 2, 2, 2], [0, 1, 2] * 3],
}

Array = np.ndarray[Any, Any]


def run(
    groups: Sequence[int], start: Callable[..., Work], *arrays: Sequence[Array], **options: Any
) -> dict[tuple[int, int], int]:
    """Begin one operation on every rank and drive all of them in this thread; the payload bytes sent per pair.

    `start` is a method of Communicator, which gets the rank's own of each of the `arrays`.
    """
    transports = MemoryNetwork(len(groups)).transports
    communicators = [Communicator(transport, groups) for transport in transports]
    works = [
        start(communicator, *(array[communicator.rank] for array in arrays), async_op=True, **options)
        for communicator in communicators
    ]
    for _ in range(10_000):
        if all(work.is_completed() for work in works):
            break
        for communicator in communicators:
            communicator.progress()
    for work in works:
        work.wait(0.0)
        assert work.end_s >= work.start_s
    return {
        (transport.rank, peer): counters.bytes_sent
        for transport in transports
        for peer, counters in transport.counters.items()
        if counters.bytes_sent
    }


def filled(numel: int, rank: int, dtype: str, op: str = "sum") -> Array:
    array = np.empty(numel, dtype)
    fill(array, rank, salt=numel, op=op)
    return array


def joined(size: int, numel: int, dtype: str) -> Array:
    return np.concatenate([filled(numel, rank, dtype) for rank in range(size)])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_reduce(algorithm: str, size: int) -> None:
    for groups in LAYOUTS[size]:
        for numel in NUMELS:
            arrays = [filled(numel, rank, "float32") for rank in range(size)]
            sent = run(groups, Communicator.all_reduce, arrays, algorithm=algorithm)
            assert [count_wrong(array, size, salt=numel) for array in arrays] == [0] * size
            assert sent == traffic(algorithm, numel, 4, groups)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["sum", "product", "min", "max"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_reduce_of_every_type_and_operation(algorithm: str, op: str, dtype: str) -> None:
    for groups in ([0, 0, 0, 1, 1], [0, 1, 2, 3]):
        size = len(groups)
        arrays = [filled(101, rank, dtype, op) for rank in range(size)]
        run(groups, Communicator.all_reduce, arrays, op=op, algorithm=algorithm)
        assert [count_wrong(array, size, salt=101, op=op) for array in arrays] == [0] * size


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_reduce_scatter_tensor(size: int, dtype: str) -> None:
    for numel in NUMELS:
        inputs = [filled(numel * size, rank, dtype) for rank in range(size)]
        outputs = [np.zeros(numel, dtype) for _ in range(size)]
        sent = run([0] * size, Communicator.reduce_scatter_tensor, outputs, inputs)
        assert count_wrong(np.concatenate(outputs), size, salt=numel * size) == 0
        for rank, given_input in enumerate(inputs):
            np.testing.assert_array_equal(given_input, filled(numel * size, rank, dtype))
        assert sent == reduce_scatter_traffic(numel, np.dtype(dtype).itemsize, size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_all_gather_into_tensor(size: int, dtype: str) -> None:
    for numel in NUMELS:
        outputs = [np.zeros((size, numel), dtype) for _ in range(size)]
        inputs = [filled(numel, rank, dtype) for rank in range(size)]
        sent = run([0] * size, Communicator.all_gather_into_tensor, outputs, inputs)
        for output in outputs:
            np.testing.assert_array_equal(output.reshape(-1), joined(size, numel, dtype))
        assert sent == all_gather_traffic(numel, np.dtype(dtype).itemsize, size)


@pytest.mark.parametrize("size", SIZES)
def test_broadcast_from_every_rank(size: int) -> None:
    for root in range(size):
        for numel in (0, 1, 1001):
            arrays = [filled(numel, rank, "float32") for rank in range(size)]
            sent = run([0] * size, Communicator.broadcast, arrays, src=root)
            for array in arrays:
                np.testing.assert_array_equal(array, filled(numel, root, "float32"))
            assert sent == broadcast_traffic(numel, 4, size, root)


@pytest.mark.parametrize("size", SIZES)
def test_nobody_leaves_a_barrier_before_everybody_has_come(size: int) -> None:
    for late in range(size):
        communicators = [Communicator(transport) for transport in MemoryNetwork(size).transports]
        works = [c.barrier(async_op=True) for c in communicators if c.rank != late]
        for _ in range(2 * size):
            for communicator in communicators:
                communicator.progress()
        assert not any(work.is_completed() for work in works)
        works.append(communicators[late].barrier(async_op=True))
        for _ in range(2 * size):
            for communicator in communicators:
                communicator.progress()
        assert all(work.is_completed() for work in works)
        messages = [
            sum(counters.messages_sent for counters in communicator.transport.counters.values())
            for communicator in communicators
        ]
        assert messages == [(size - 1).bit_length()] * size
        assert run([0] * size, Communicator.barrier) == {}


# ---- formulas and cuts


def test_equal_buildings_send_the_array_once_each_way_over_the_wan() -> None:
    groups = [0] * 4 + [1] * 4
    pairs = traffic("hierarchical", 8000, 4, groups)
    assert sum(count for (source, target), count in pairs.items() if source < 4 <= target) == 8000 * 4
    assert sum(count for (source, target), count in pairs.items() if target < 4 <= source) == 8000 * 4
    assert {(source, target) for source, target in pairs if groups[source] != groups[target]} == {
        pair for rank in range(4) for pair in ((rank, rank + 4), (rank + 4, rank))
    }
    # the flat ring crosses once each way, with nearly twice the array
    assert wan_bytes("ring", 8000, 4, groups) == 2 * 2 * 8000 * 4 * 7 // 8
    with pytest.raises(ValueError, match="algorithm: got 'tree', expected one of ring, hierarchical"):
        traffic("tree", 1, 4, groups)


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4), numel=st.integers(0, 300), order=st.randoms()
)
@settings(max_examples=60, deadline=None)
def test_hierarchical_sends_over_the_wan_what_rings_of_buildings_must(
    sizes: list[int], numel: int, order: random.Random
) -> None:
    """2 B (g - 1) bytes in all for g buildings, of whatever sizes, in whatever order of ranks."""
    groups = [building for building, size in enumerate(sizes) for _ in range(size)]
    order.shuffle(groups)
    assert wan_bytes("hierarchical", numel, 4, groups) == 2 * numel * 4 * (len(sizes) - 1)


@given(size=st.integers(0, 200), parts=st.integers(1, 20))
def test_chunks_cover_everything_once_and_evenly(size: int, parts: int) -> None:
    bounds = even_bounds(size, parts)
    lengths = [end - start for start, end in pairwise(bounds)]
    assert (bounds[0], bounds[-1], len(lengths)) == (0, size, parts)
    assert min(lengths) >= 0
    assert max(lengths) - min(lengths) <= 1


def test_segments_have_one_owner_in_every_building() -> None:
    assert segments(12, [[0, 1], [2, 3, 4]]) == [
        Segment(0, 4, (0, 2)),
        Segment(4, 6, (0, 3)),
        Segment(6, 8, (1, 3)),
        Segment(8, 12, (1, 4)),
    ]
    assert segments(1, [[0, 1], [2, 3]]) == [Segment(0, 1, (0, 2))]
    assert segments(0, [[0, 1], [2, 3]]) == []

"""Every algorithm gives the exact answer and sends the bytes that its plan says, on the in-memory network.

Each algorithm runs with every number of ranks and every layout of buildings; sizes, types and operations take turns.
The `thorough` lane has all types and operations with all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, product

import ml_dtypes  # noqa: F401 (numpy knows bfloat16 by name from then on)
import numpy as np
import pytest

from testbed.comm.collectives import AUTO, DTYPES, OPERATIONS, Communicator, count_wrong, traffic
from testbed.comm.transport import MemoryNetwork
from tests.unit.comm.collective_runs import ALGORITHMS, filled, finish, joined, layouts, run

SIZES = range(1, 18)
NUMELS = (0, 1, 7, 64, 1001)
TYPED = list(product(DTYPES, OPERATIONS))
Typed = Iterator[tuple[str, str]]


def in_turns() -> Typed:
    for number in count():
        yield TYPED[number * 7 % len(TYPED)]


def in_some(size: int) -> list[tuple[list[int], int]]:
    """Every layout of so many ranks, with two of the sizes each."""
    found = []
    for number, groups in enumerate(layouts(size)):
        found += [(groups, NUMELS[(size + number + offset) % len(NUMELS)]) for offset in (0, 2)]
    return found


def roots(size: int) -> list[int]:
    return sorted({0, size // 2, size - 1})


def cases(collective: str) -> list[tuple[str, int]]:
    every = [(algorithm, size) for algorithm in ALGORITHMS[collective] for size in SIZES]
    return [*every, *((AUTO, size) for size in (1, 2, 5, 8, 17))]  # which is one of the others


def check_all_reduce(algorithm: str, cases: list[tuple[list[int], int]], typed: Typed) -> None:
    for groups, numel in cases:
        size = len(groups)
        dtype, op = next(typed)
        arrays = [filled(numel, rank, dtype, op) for rank in range(size)]
        sent = run(groups, Communicator.all_reduce, arrays, algorithm=algorithm, op=op)
        assert [count_wrong(array, size, salt=numel, op=op) for array in arrays] == [0] * size, (
            groups,
            dtype,
            op,
        )
        if algorithm != AUTO:
            assert sent == traffic("all_reduce", algorithm, numel, arrays[0].itemsize, groups)


def check_reduce_scatter(algorithm: str, cases: list[tuple[list[int], int]], typed: Typed) -> None:
    for groups, numel in cases:
        size = len(groups)
        dtype, op = next(typed)
        inputs = [filled(numel * size, rank, dtype, op) for rank in range(size)]
        outputs = [np.zeros(numel, dtype) for _ in range(size)]
        sent = run(groups, Communicator.reduce_scatter_tensor, outputs, inputs, algorithm=algorithm, op=op)
        assert count_wrong(np.concatenate(outputs), size, salt=numel * size, op=op) == 0, (groups, dtype, op)
        for rank, given_input in enumerate(inputs):
            np.testing.assert_array_equal(given_input, filled(numel * size, rank, dtype, op))
        if algorithm != AUTO:
            assert sent == traffic("reduce_scatter", algorithm, numel, outputs[0].itemsize, groups)


@pytest.mark.parametrize(("algorithm", "size"), cases("all_reduce"))
def test_all_reduce(algorithm: str, size: int) -> None:
    check_all_reduce(algorithm, in_some(size), in_turns())


@pytest.mark.parametrize(("algorithm", "size"), cases("reduce_scatter"))
def test_reduce_scatter_tensor(algorithm: str, size: int) -> None:
    check_reduce_scatter(algorithm, in_some(size), in_turns())


@pytest.mark.thorough
@pytest.mark.parametrize(("algorithm", "size"), cases("all_reduce"))
@pytest.mark.parametrize(("dtype", "op"), TYPED)
def test_all_reduce_of_every_type_and_operation(algorithm: str, size: int, dtype: str, op: str) -> None:
    check_all_reduce(algorithm, list(product(layouts(size), (0, 1, 1001))), iter([(dtype, op)] * 9))


@pytest.mark.thorough
@pytest.mark.parametrize(("algorithm", "size"), cases("reduce_scatter"))
@pytest.mark.parametrize(("dtype", "op"), TYPED)
def test_reduce_scatter_of_every_type_and_operation(algorithm: str, size: int, dtype: str, op: str) -> None:
    check_reduce_scatter(algorithm, list(product(layouts(size), (0, 1, 1001))), iter([(dtype, op)] * 9))


@pytest.mark.parametrize(("algorithm", "size"), cases("all_gather"))
def test_all_gather_into_tensor(algorithm: str, size: int) -> None:
    typed = in_turns()
    for groups, numel in in_some(size):
        dtype, _ = next(typed)
        outputs = [np.zeros((size, numel), dtype) for _ in range(size)]
        inputs = [filled(numel, rank, dtype) for rank in range(size)]
        sent = run(groups, Communicator.all_gather_into_tensor, outputs, inputs, algorithm=algorithm)
        for output in outputs:
            np.testing.assert_array_equal(output.reshape(-1), joined(size, numel, dtype))
        if algorithm != AUTO:
            assert sent == traffic("all_gather", algorithm, numel, inputs[0].itemsize, groups)


@pytest.mark.parametrize(("algorithm", "size"), cases("broadcast"))
def test_broadcast(algorithm: str, size: int) -> None:
    typed = in_turns()
    for root, numel in product(roots(size), (0, 1, 1001)):
        dtype, _ = next(typed)
        arrays = [filled(numel, rank, dtype) for rank in range(size)]
        sent = run([0] * size, Communicator.broadcast, arrays, src=root, algorithm=algorithm)
        for array in arrays:
            np.testing.assert_array_equal(array, filled(numel, root, dtype))
        if algorithm != AUTO:
            assert sent == traffic("broadcast", algorithm, numel, arrays[0].itemsize, [0] * size, root)


@pytest.mark.parametrize(("algorithm", "size"), cases("reduce"))
def test_reduce_leaves_the_others_arrays(algorithm: str, size: int) -> None:
    typed = in_turns()
    for root, numel in product(roots(size), (0, 1, 1001)):
        dtype, op = next(typed)
        arrays = [filled(numel, rank, dtype, op) for rank in range(size)]
        sent = run([0] * size, Communicator.reduce, arrays, dst=root, op=op, algorithm=algorithm)
        assert count_wrong(arrays[root], size, salt=numel, op=op) == 0
        for rank, array in enumerate(arrays):
            if rank != root:
                np.testing.assert_array_equal(array, filled(numel, rank, dtype, op))
        if algorithm != AUTO:
            assert sent == traffic("reduce", algorithm, numel, arrays[0].itemsize, [0] * size, root)


@pytest.mark.parametrize(("algorithm", "size"), cases("gather"))
def test_gather_and_scatter(algorithm: str, size: int) -> None:
    typed = in_turns()
    for root, numel in product(roots(size), (0, 1, 101)):
        dtype, _ = next(typed)
        whole = [np.zeros((size, numel), dtype) if rank == root else None for rank in range(size)]
        parts = [filled(numel, rank, dtype) for rank in range(size)]
        sent = run([0] * size, Communicator.gather, whole, parts, dst=root, algorithm=algorithm)
        gathered = whole[root]
        assert gathered is not None
        np.testing.assert_array_equal(gathered.reshape(-1), joined(size, numel, dtype))
        if algorithm != AUTO:
            assert sent == traffic("gather", algorithm, numel, parts[0].itemsize, [0] * size, root)
        back = [np.zeros(numel, dtype) for _ in range(size)]
        sent = run([0] * size, Communicator.scatter, back, whole, src=root, algorithm=algorithm)
        for rank, part in enumerate(back):
            np.testing.assert_array_equal(part, parts[rank])
        if algorithm != AUTO:
            assert sent == traffic("scatter", algorithm, numel, parts[0].itemsize, [0] * size, root)


# ---- exchanges


def share(source: int, target: int, rows: int, dtype: str = "int64") -> np.ndarray:
    """What one rank has for another: two columns, told apart from all other rows."""
    return (np.arange(2 * rows).reshape(rows, 2) + 1000 * source + 50_000 * target).astype(dtype)


@pytest.mark.parametrize(("algorithm", "size"), cases("all_to_all"))
def test_all_to_all_single(algorithm: str, size: int) -> None:
    for groups, rows in product(layouts(size), (0, 3)):
        inputs = [np.concatenate([share(rank, peer, rows) for peer in range(size)]) for rank in range(size)]
        outputs = [np.zeros_like(array) for array in inputs]
        sent = run(groups, Communicator.all_to_all_single, outputs, inputs, algorithm=algorithm)
        for rank, output in enumerate(outputs):
            expected = np.concatenate([share(peer, rank, rows) for peer in range(size)])
            np.testing.assert_array_equal(output, expected)
        if algorithm != AUTO:
            assert sent == traffic("all_to_all", algorithm, 2 * rows, 8, groups)


@pytest.mark.parametrize(("algorithm", "size"), cases("all_to_all"))
def test_all_to_all_single_with_split_sizes(algorithm: str, size: int) -> None:
    for groups in layouts(size):
        counts = [[(3 * rank + 5 * peer) % 4 for peer in range(size)] for rank in range(size)]
        communicators = [Communicator(transport, groups) for transport in MemoryNetwork(size).transports]
        works, outputs = [], []
        for rank, communicator in enumerate(communicators):
            data = np.concatenate([share(rank, peer, counts[rank][peer]) for peer in range(size)])
            receives = [counts[peer][rank] for peer in range(size)]
            outputs.append(np.zeros((sum(receives), 2), "int64"))
            works.append(
                communicator.all_to_all_single(
                    outputs[rank], data, receives, counts[rank], algorithm=algorithm, async_op=True
                )
            )
        finish(communicators, works)
        for rank, output in enumerate(outputs):
            expected = np.concatenate([share(peer, rank, counts[peer][rank]) for peer in range(size)])
            np.testing.assert_array_equal(output, expected)


@pytest.mark.parametrize("algorithm", ["late_counts", "late_counts_at_once", "padded", "told_counts"])
@pytest.mark.parametrize("size", SIZES)
def test_all_to_all_v_dynamic(algorithm: str, size: int) -> None:
    most = 5
    counts = [[(3 * rank + 5 * peer) % (most + 1) for peer in range(size)] for rank in range(size)]
    communicators = [Communicator(transport) for transport in MemoryNetwork(size).transports]
    outputs = [np.zeros((size, most, 2), "int64") for _ in range(size)]
    works = [
        communicator.all_to_all_v_dynamic(
            outputs[rank],
            np.concatenate([share(rank, peer, counts[rank][peer]) for peer in range(size)]),
            counts[rank],
            algorithm=algorithm,
            async_op=True,
            output_split_sizes=[own[rank] for own in counts] if algorithm == "told_counts" else None,
        )
        for rank, communicator in enumerate(communicators)
    ]
    finish(communicators, works)
    for rank, (work, output) in enumerate(zip(works, outputs, strict=True)):
        assert work.result == [counts[peer][rank] for peer in range(size)]
        for peer in range(size):
            np.testing.assert_array_equal(
                output[peer, : counts[peer][rank]], share(peer, rank, counts[peer][rank])
            )
        sent = sum(counters.bytes_sent for counters in communicators[rank].transport.counters.values())
        rows = most * (size - 1) if algorithm == "padded" else sum(counts[rank]) - counts[rank][rank]
        assert sent == (0 if algorithm == "told_counts" else 8 * (size - 1)) + 16 * rows


def test_told_counts_go_with_their_algorithm_and_fit() -> None:
    (one,) = (Communicator(transport) for transport in MemoryNetwork(1).transports)
    output, rows = np.zeros((1, 3, 2), "int64"), np.ones((2, 2), "int64")
    for algorithm, told in (
        ("told_counts", None),
        ("late_counts", [2]),
        ("told_counts", [4]),
        ("told_counts", []),
    ):
        with pytest.raises(ValueError, match="output_split_sizes: got"):
            one.all_to_all_v_dynamic(output, rows, [2], algorithm, output_split_sizes=told)
    assert one.all_to_all_v_dynamic(output, rows, [2], "told_counts", output_split_sizes=[2]).result == [2]
    assert output.sum() == 4


# ---- barrier


@pytest.mark.parametrize("size", range(1, 10))
def test_nobody_leaves_a_barrier_before_everybody_has_come(size: int) -> None:
    for late in range(size):
        communicators = [Communicator(transport) for transport in MemoryNetwork(size).transports]
        works = [c.barrier(async_op=True) for c in communicators if c.rank != late]
        for _ in range(2 * size):
            for communicator in communicators:
                communicator.progress()
        assert not any(work.is_completed() for work in works)
        works.append(communicators[late].barrier(async_op=True))
        finish(communicators, works)
        messages = [
            sum(counters.messages_sent for counters in communicator.transport.counters.values())
            for communicator in communicators
        ]
        assert messages == [(size - 1).bit_length()] * size

"""Slices to the ranks that they are for, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from testbed.comm.collectives import Communicator
from testbed.comm.collectives.all_to_all import DispatchHandle
from testbed.contrib.conformance.harness import communicators_of, finish

SIZE, MOST, WIDTH = 3, 12, 2
# of each rank: rows of its slices, which slices go where
LENGTHS = [[2, 3, 1], [4, 0, 2, 1], [5]]
INDICES = [[0, 1, 0, 2], [3, 0, 2, 1], [0, 0]]
BLOCKS = [[2, 2, 0], [1, 0, 3], [0, 1, 1]]


def rows_of(rank: int) -> Any:
    """A rank's input, one row more than its slices have."""
    numel = (sum(LENGTHS[rank]) + 1) * WIDTH
    return (1000 * rank + np.arange(numel)).reshape(-1, WIDTH).astype("int64")


def slices_for(source: int, target: int) -> Any:
    """What one rank has for another."""
    ends = np.cumsum([0, *LENGTHS[source]])
    first = sum(BLOCKS[source][:target])
    chosen = INDICES[source][first : first + BLOCKS[source][target]]
    empty = rows_of(source)[:0]
    return np.concatenate([empty, *(rows_of(source)[ends[index] : ends[index + 1]] for index in chosen)])


def dispatched(
    communicators: list[Communicator], handles: list[DispatchHandle] | None = None
) -> tuple[Any, list[DispatchHandle]]:
    outputs = [np.zeros((SIZE, MOST, WIDTH), "int64") for _ in range(SIZE)]
    works = [
        communicator.dispatch(
            outputs[rank],
            rows_of(rank),
            LENGTHS[rank],
            INDICES[rank],
            BLOCKS[rank],
            None if handles is None else handles[rank],
            async_op=True,
        )
        for rank, communicator in enumerate(communicators)
    ]
    finish(communicators, works)
    return outputs, [work.result for work in works]


def sent(communicators: list[Communicator]) -> list[int]:
    return [sum(own.bytes_sent for own in one.transport.counters.values()) for one in communicators]


def test_slices_come_to_all_that_they_are_for_and_go_back() -> None:
    communicators = communicators_of([0] * SIZE)
    outputs, handles = dispatched(communicators)
    for target, output in enumerate(outputs):
        for source in range(SIZE):
            expected = slices_for(source, target)
            assert handles[target].received_rows[source] == len(expected)
            np.testing.assert_array_equal(output[source, : len(expected)], expected)
    across = [
        sum(len(slices_for(rank, peer)) for peer in range(SIZE) if peer != rank) * WIDTH * 8
        for rank in range(SIZE)
    ]
    assert sent(communicators) == [8 * (SIZE - 1) + own for own in across]

    before = sent(communicators)
    works, returned = [], []
    for rank, communicator in enumerate(communicators):
        returned.append(np.full_like(rows_of(rank), -1))
        works.append(communicator.combine(returned[rank], 10 * outputs[rank], handles[rank], async_op=True))
    finish(communicators, works)
    for rank, output in enumerate(returned):
        expected = np.full_like(output, -1)
        ends = np.cumsum([0, *LENGTHS[rank]])
        for index in set(INDICES[rank]):
            part = slice(ends[index], ends[index + 1])
            # a slice that two ranks had comes back from both
            expected[part] = 10 * INDICES[rank].count(index) * rows_of(rank)[part]
        np.testing.assert_array_equal(output, expected)
    back = [
        sum(len(slices_for(peer, rank)) for peer in range(SIZE) if peer != rank) * WIDTH * 8
        for rank in range(SIZE)
    ]
    assert [after - own for after, own in zip(sent(communicators), before, strict=True)] == back


def test_with_a_handle_only_rows_travel() -> None:
    communicators = communicators_of([0] * SIZE)
    first, handles = dispatched(communicators)
    before = sent(communicators)
    again, _ = dispatched(communicators, handles)
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
    saved = [2 * own - after for own, after in zip(before, sent(communicators), strict=True)]
    assert saved == [8 * (SIZE - 1)] * SIZE


@pytest.mark.parametrize(
    ("lengths", "indices", "blocks", "words"),
    [
        ([3], [0], [1], "split_lengths: got .3., expected lengths that add up to at most 2 rows"),
        ([1], [0], [2], "block_lengths: got .2., expected 1 numbers that add up to the 1 indices"),
        ([1], [1], [1], "indices: got 1, expected 0 to 0"),
        ([1, 1], [0, 1], [2], "input_split_sizes: got 2, expected at most 1 rows"),
    ],
)
def test_what_does_not_fit_is_refused(
    lengths: list[int], indices: list[int], blocks: list[int], words: str
) -> None:
    (one,) = communicators_of([0])
    with pytest.raises(ValueError, match=words):
        one.dispatch(np.zeros((1, 1, 2), "int64"), np.zeros((2, 2), "int64"), lengths, indices, blocks)


def test_what_comes_back_has_the_shape_of_what_went() -> None:
    (one,) = communicators_of([0])
    output, rows = np.zeros((1, 2, 2), "int64"), np.ones((2, 2), "int64")
    handle = one.dispatch(output, rows, [2], [0], [1]).result
    with pytest.raises(ValueError, match=r"input: got shape \(1, 2, 3\)"):
        one.combine(rows, np.zeros((1, 2, 3), "int64"), handle)

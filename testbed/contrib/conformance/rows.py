"""Whether an algorithm does an all-to-all whose receivers do not know how many rows come from whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from testbed.comm.collectives import Array, RowsAlgorithm, dtype_named
from testbed.comm.collectives.algorithms.all_to_all_v import rows_traffic, sent_rows
from testbed.comm.transport import TransportError
from testbed.contrib.conformance.errors import Nonconforming
from testbed.contrib.conformance.single_thread import Sent, communicators_of, finish

COLUMNS = 2  # of a row

Counts = list[list[int]]
"""How many rows each rank has for each."""


def _mixed(size: int, most: int) -> Counts:
    return [[(3 * rank + 5 * peer) % (most + 1) for peer in range(size)] for rank in range(size)]


def _to_the_last(size: int, most: int) -> Counts:
    return [[most * (peer == size - 1) for peer in range(size)] for _ in range(size)]


UNEVEN: tuple[Callable[[int, int], Counts], ...] = (_mixed, _to_the_last)


def check_sent(algorithm: RowsAlgorithm, name: str, most: int) -> None:
    """Nonconforming unless all rows that there are travel, and no more than there is room for."""
    for count in range(most + 1):
        case = f"{name}: sent({count}, {most})"
        sent = algorithm.sent(count, most)
        if not count <= sent <= most:
            raise Nonconforming(f"{case}: got {sent}, expected {count} to {most}")
        if algorithm.told and sent != count:
            raise Nonconforming(f"{case}: got {sent}, expected {count}, as receivers are told")
        if algorithm.pads and sent != algorithm.sent(most, most):
            raise Nonconforming(f"{case}: got {sent}, expected {algorithm.sent(most, most)}, known ahead")


def check_rows(
    algorithm: RowsAlgorithm, name: str, groups: Sequence[int], counts: Counts, most: int, dtype: str
) -> None:
    """Nonconforming unless everybody gets the rows of all, knows how many came, and as many bytes travel as should."""
    size = len(groups)
    case = f"{name}, rows {counts}, at most {most}, of {dtype}, in buildings {list(groups)}"
    inputs = [
        np.concatenate([_rows(rank, peer, counts[rank][peer], dtype) for peer in range(size)])
        for rank in range(size)
    ]
    kept = [array.copy() for array in inputs]
    outputs = [np.zeros((size, most, COLUMNS), dtype_named(dtype)) for _ in range(size)]
    try:
        came, sent = _run(algorithm, groups, outputs, inputs, counts)
    except TransportError as error:
        raise Nonconforming(f"{case}: {error}") from error
    for rank, output in enumerate(outputs):
        expected = [counts[peer][rank] for peer in range(size)]
        if came[rank] != expected:
            raise Nonconforming(
                f"{case}: rows that came to rank {rank}: got {came[rank]}, expected {expected}"
            )
        for peer, count in enumerate(expected):
            if not np.array_equal(output[peer, :count], _rows(peer, rank, count, dtype)):
                raise Nonconforming(f"{case}: rank {rank} ends with wrong rows of rank {peer}")
        if not np.array_equal(inputs[rank], kept[rank]):
            raise Nonconforming(f"{case}: rank {rank}'s input is changed")
    wire = rows_traffic(sent_rows(algorithm, counts, most), COLUMNS * dtype_named(dtype).itemsize, algorithm)
    if sent != wire:
        raise Nonconforming(f"{case}: bytes by pair of ranks: got {sent}, expected {wire}")


def _rows(source: int, target: int, count: int, dtype: str) -> Array:
    """What one rank has for another, told apart from what others have; exact in every type."""
    numbers = np.arange(COLUMNS * count).reshape(count, COLUMNS) + 31 * source + 7 * target
    return (numbers % 113).astype(dtype_named(dtype))


def _run(
    algorithm: RowsAlgorithm,
    groups: Sequence[int],
    outputs: Sequence[Array],
    inputs: Sequence[Array],
    counts: Counts,
) -> tuple[list[list[int]], Sent]:
    """For each rank how many rows came from each; payload bytes by pair of ranks."""
    communicators = communicators_of(groups)
    works = [
        communicator.all_to_all_v_dynamic(
            outputs[rank],
            inputs[rank],
            counts[rank],
            algorithm=algorithm,
            async_op=True,
            output_split_sizes=[own[rank] for own in counts] if algorithm.told else None,
        )
        for rank, communicator in enumerate(communicators)
    ]
    finish(communicators, works)
    sent = {
        (rank, peer): counters.bytes_sent
        for rank, communicator in enumerate(communicators)
        for peer, counters in communicator.transport.counters.items()
        if counters.bytes_sent
    }
    return [list(work.result) for work in works], sent

"""Conformance suite for collective algorithms: exact results for sizes, types and layouts, and planned bytes.

It also covers algorithms of an all-to-all whose receivers do not know the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, product

import numpy as np

from testbed.comm.collectives import (
    ALL_REDUCE,
    ALL_TO_ALL_V,
    AUTO,
    DTYPES,
    OPERATIONS,
    Algorithm,
    Array,
    Collective,
    Communicator,
    RowsAlgorithm,
    algorithm_of,
    collective_of,
    count_wrong_output,
    dtype_named,
    fill,
    rows_algorithm_of,
    traffic,
)
from testbed.comm.collectives.algorithms.all_to_all_v import rows_traffic, sent_rows
from testbed.comm.collectives.plan_check import check_plans
from testbed.comm.transport import TransportError
from testbed.contrib.conformance.harness import (
    Nonconforming,
    Sent,
    communicators_of,
    finish,
    layouts,
    run,
    sent_bytes,
)

SIZES = tuple(range(1, 18))
NUMELS = (0, 1, 7, 64, 1001)
TYPED = tuple(product(DTYPES, OPERATIONS))
STRIDE = 7  # coprime to the number of (type, operation) pairs, so that all take turns


def check_algorithm(
    algorithm: Algorithm | RowsAlgorithm | str,
    collective: Collective | str | None = None,
    *,
    sizes: Sequence[int] = SIZES,
    numels: Sequence[int] = NUMELS,
    typed: Sequence[tuple[str, str]] | None = None,
) -> None:
    """Check an algorithm by executing it on the in-memory network.

    Every number of ranks is tried in one building, in two unequal ones, and interleaved over three. Plans must fit
    together without deadlock, every element must be exact, inputs must be unchanged, and each pair of ranks must
    exchange the bytes that the plans specify. Data types and reductions take turns.

    Args:
        algorithm: Made by its collective's `algorithm` decorator; or a `RowsAlgorithm`, for rows whose number
            receivers do not know (ALL_TO_ALL_V); or a name, or FILE.py:NAME, of `collective`.
        collective: The collective that it implements; None: the one it was made for.
        sizes: Numbers of ranks.
        numels: Elements of a block, or the maximum rows per pair of ranks; two of them are used with each layout.
        typed: (data type, reduction) pairs; None: all pairs in turn.

    Raises:
        WrongPlan: If a plan itself is wrong: it deadlocks, or a rank ends without the blocks that it should have.
        Nonconforming: If data or bytes are wrong.
        PluginError: If the algorithm raises or does not exist.

    Examples:
        >>> from testbed.contrib.conformance import check_algorithm
        >>> check_algorithm("ring", "all_reduce", sizes=[1, 2, 5])
    """
    if collective is None:
        if isinstance(algorithm, str):
            raise ValueError("collective: got None, expected one with an algorithm's name")
        collective = ALL_TO_ALL_V if isinstance(algorithm, RowsAlgorithm) else algorithm.collective
    known = collective_of(collective)
    if known.uneven or isinstance(algorithm, RowsAlgorithm):
        _check_uneven(known, algorithm, sizes, numels, typed)
        return
    made = algorithm if algorithm == AUTO else algorithm_of(known, algorithm)
    turns = _turns(typed)
    for size in sizes:
        roots = sorted({0, size // 2, size - 1}) if _has_root(known, size) else [0]
        for (number, groups), root in product(enumerate(layouts(size)), roots):
            if isinstance(made, Algorithm):
                for pieces in (1, 3):
                    check_plans(known, made, groups, root, pieces)
            for offset in (0, 2):
                numel = numels[(size + number + offset) % len(numels)]
                _check(known, made, groups, root, numel, *next(turns))


def _check_uneven(
    collective: Collective,
    algorithm: Algorithm | RowsAlgorithm | str,
    sizes: Sequence[int],
    numels: Sequence[int],
    typed: Sequence[tuple[str, str]] | None,
) -> None:
    """Check a RowsAlgorithm; the reductions of `typed` are not used."""
    if isinstance(algorithm, Algorithm) or not collective.uneven:
        kind = "RowsAlgorithm" if collective.uneven else "Algorithm"
        raise ValueError(
            f"algorithm: got a {type(algorithm).__name__}, expected a {kind} for {collective.name}"
        )
    named = algorithm if isinstance(algorithm, str) else "algorithm"
    name = f"{collective.automatic(0, ()) if named == AUTO else named} of {collective.name}"
    made = rows_algorithm_of(collective, collective.automatic(0, ()) if algorithm == AUTO else algorithm)
    for most in numels:
        check_sent(made, name, most)
    turns = _turns(typed)
    for size in sizes:
        for number, groups in enumerate(layouts(size)):
            for offset, uneven in enumerate(UNEVEN):
                most = numels[(size + number + 2 * offset) % len(numels)]
                check_rows(made, name, groups, uneven(size, most), most, next(turns)[0])


def _turns(typed: Sequence[tuple[str, str]] | None) -> Iterator[tuple[str, str]]:
    if typed is not None:
        return cycle(typed)
    return cycle([TYPED[number * STRIDE % len(TYPED)] for number in range(len(TYPED))])


def _has_root(collective: Collective, size: int) -> bool:
    sides = (collective.before, collective.after)
    return any(len(side(0, size, 0)) != len(side(0, size, size - 1)) for side in sides)


def _check(
    collective: Collective,
    algorithm: Algorithm | str,
    groups: list[int],
    root: int,
    numel: int,
    dtype: str,
    op: str,
) -> None:
    size = len(groups)
    name = algorithm.name if isinstance(algorithm, Algorithm) else algorithm
    case = (
        f"{name} of {collective.name}, {numel} elements of {dtype}, {op}, in buildings {groups}, root {root}"
    )
    inputs, originals = (
        [_input(collective, rank, size, root, numel, dtype, op) for rank in range(size)] for _ in "12"
    )
    outputs = [
        np.zeros(numel * len(collective.after(rank, size, root)), dtype_named(dtype)) for rank in range(size)
    ]
    if collective is ALL_REDUCE:
        outputs = inputs
    try:
        if collective is ALL_REDUCE:  # in place, as ranks use it
            sent = run(groups, Communicator.all_reduce, outputs, op=op, algorithm=algorithm)
        else:
            kinds = [collective] * size
            options = {"op": op, "algorithm": algorithm, "root": root}
            sent = run(groups, Communicator.collective, kinds, outputs, inputs, **options)
    except TransportError as error:
        raise Nonconforming(f"{case}: {error}") from error
    for rank, output in enumerate(outputs):
        wrong = count_wrong_output(collective, output, rank, size, numel, op, root)
        if wrong:
            raise Nonconforming(f"{case}: rank {rank} ends with {wrong} wrong elements of {output.size}")
        if collective is not ALL_REDUCE and not np.array_equal(inputs[rank], originals[rank]):
            raise Nonconforming(f"{case}: rank {rank}'s input was changed")
    if isinstance(algorithm, Algorithm):
        expected = traffic(collective, algorithm, numel, dtype_named(dtype).itemsize, groups, root)
        if sent != expected:
            raise Nonconforming(f"{case}: bytes by pair of ranks: got {sent}, expected {expected}")


def _input(collective: Collective, rank: int, size: int, root: int, numel: int, dtype: str, op: str) -> Array:
    array = np.empty(numel * len(collective.before(rank, size, root)), dtype_named(dtype))
    fill(array, rank, numel, op)
    return array


COLUMNS = 2  # elements of a row

Counts = list[list[int]]
"""The number of rows that each rank has for each other rank."""


def _mixed(size: int, most: int) -> Counts:
    return [[(3 * rank + 5 * peer) % (most + 1) for peer in range(size)] for rank in range(size)]


def _to_the_last(size: int, most: int) -> Counts:
    return [[most * (peer == size - 1) for peer in range(size)] for _ in range(size)]


UNEVEN: tuple[Callable[[int, int], Counts], ...] = (_mixed, _to_the_last)


def check_sent(algorithm: RowsAlgorithm, name: str, most: int) -> None:
    """Check that all real rows are sent, and no more than there is room for. Raises Nonconforming."""
    for count in range(most + 1):
        case = f"{name}: sent({count}, {most})"
        sent = algorithm.sent(count, most)
        if not count <= sent <= most:
            raise Nonconforming(f"{case}: got {sent}, expected {count} to {most}")
        if algorithm.counts_known and sent != count:
            raise Nonconforming(f"{case}: got {sent}, expected {count}, the count known to receivers")
        if algorithm.pads and sent != algorithm.sent(most, most):
            raise Nonconforming(f"{case}: got {sent}, expected {algorithm.sent(most, most)}, known ahead")


def check_rows(
    algorithm: RowsAlgorithm, name: str, groups: Sequence[int], counts: Counts, most: int, dtype: str
) -> None:
    """Check that every rank gets all rows and knows their number, and the bytes sent. Raises Nonconforming."""
    size = len(groups)
    case = f"{name}, rows {counts}, at most {most}, of {dtype}, in buildings {list(groups)}"
    inputs = [
        np.concatenate([_rows(rank, peer, counts[rank][peer], dtype) for peer in range(size)])
        for rank in range(size)
    ]
    originals = [array.copy() for array in inputs]
    outputs = [np.zeros((size, most, COLUMNS), dtype_named(dtype)) for _ in range(size)]
    try:
        received, sent = _run_rows(algorithm, groups, outputs, inputs, counts)
    except TransportError as error:
        raise Nonconforming(f"{case}: {error}") from error
    for rank, output in enumerate(outputs):
        expected = [counts[peer][rank] for peer in range(size)]
        if received[rank] != expected:
            raise Nonconforming(
                f"{case}: rows received by rank {rank}: got {received[rank]}, expected {expected}"
            )
        for peer, count in enumerate(expected):
            if not np.array_equal(output[peer, :count], _rows(peer, rank, count, dtype)):
                raise Nonconforming(f"{case}: rank {rank} ends with wrong rows of rank {peer}")
        if not np.array_equal(inputs[rank], originals[rank]):
            raise Nonconforming(f"{case}: rank {rank}'s input was changed")
    wire = rows_traffic(sent_rows(algorithm, counts, most), COLUMNS * dtype_named(dtype).itemsize, algorithm)
    if sent != wire:
        raise Nonconforming(f"{case}: bytes by pair of ranks: got {sent}, expected {wire}")


def _rows(source: int, target: int, count: int, dtype: str) -> Array:
    """Return rows from one rank for another, distinct from those of other pairs and exact in every type."""
    numbers = np.arange(COLUMNS * count).reshape(count, COLUMNS) + 31 * source + 7 * target
    return (numbers % 113).astype(dtype_named(dtype))


def _run_rows(
    algorithm: RowsAlgorithm,
    groups: Sequence[int],
    outputs: Sequence[Array],
    inputs: Sequence[Array],
    counts: Counts,
) -> tuple[list[list[int]], Sent]:
    """Run the exchange; returns, for each rank, the rows received from each, and payload bytes by pair of ranks."""
    communicators = communicators_of(groups)
    works = [
        communicator.all_to_all_v_dynamic(
            outputs[rank],
            inputs[rank],
            counts[rank],
            algorithm=algorithm,
            async_op=True,
            output_split_sizes=[own[rank] for own in counts] if algorithm.counts_known else None,
        )
        for rank, communicator in enumerate(communicators)
    ]
    finish(communicators, works)
    return [list(work.result) for work in works], sent_bytes(communicators)

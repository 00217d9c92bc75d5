"""The data with a known answer: right sums pass, every planted error is counted."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import product
from typing import Any

import numpy as np
import pytest

from testbed.comm.collectives import DTYPES, count_wrong, fill
from testbed.comm.collectives.test_patterns import PERIOD

NUMEL = 40_000  # more than one internal block
SIZE = 5
Array = np.ndarray[Any, Any]


def contributions(dtype: str = "float32", op: str = "sum", salt: int = 5, numel: int = NUMEL) -> list[Array]:
    arrays = [np.empty(numel, dtype) for _ in range(SIZE)]
    for rank, array in enumerate(arrays):
        fill(array, rank, salt, op)
    return arrays


def total_of(arrays: list[Array]) -> Array:
    return reduce(np.add, arrays)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("op", "function"),
    [("sum", np.add), ("product", np.multiply), ("min", np.minimum), ("max", np.maximum)],
)
def test_right_results_pass(dtype: str, op: str, function: np.ufunc) -> None:
    arrays = contributions(dtype, op)
    for order in (arrays, arrays[::-1]):
        assert count_wrong(reduce(function, order), SIZE, 5, op) == 0
    if op != "min":  # rank 0 holds the least everywhere
        assert count_wrong(arrays[0], SIZE, 5, op) > NUMEL / 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
def test_sums_of_many_ranks_are_exact_in_rings_and_on_rails(dtype: str) -> None:
    """First those that lie so many apart are added up, as between hosts, then their sums."""
    numel = 2 * PERIOD
    arrays = np.empty((4096, numel), dtype)
    for rank, array in enumerate(arrays):
        fill(array, rank, 7)
    for size, ranks_apart in product([128, 129, 512, 4096], [1, 8, 24, 64]):
        total = np.zeros(numel, dtype)
        for first in range(ranks_apart):
            part = np.zeros(numel, dtype)
            for rank in range(first, size, ranks_apart):
                part += arrays[rank]
            total += part
        assert count_wrong(total, size, 7) == 0, (size, ranks_apart)
        assert count_wrong(total - arrays[size - 1], size, 7) > numel / 3, (size, ranks_apart)


def test_sums_of_many_ranks_are_exact_in_any_order() -> None:
    size = 1000
    total = np.zeros(3000, "float32")
    for rank in np.random.default_rng(1).permutation(size):
        array = np.empty(3000, "float32")
        fill(array, int(rank), 7)
        total += array
    assert count_wrong(total, size, 7) == 0


@pytest.mark.parametrize(
    "plant",
    [
        lambda total, parts: total - parts[2],
        lambda total, parts: total + parts[1],
        lambda total, parts: total - parts[2] + parts[3],
        lambda total, parts: np.roll(total, 1),
        lambda total, parts: np.roll(total, PERIOD - 1),
        lambda total, parts: np.roll(total, 4096),
        lambda total, parts: total + 1,
        lambda total, parts: np.zeros_like(total),
        lambda total, parts: np.full_like(total, np.nan),
        lambda total, parts: total_of(contributions(salt=6)),
    ],
    ids=[
        "missing",
        "doubled",
        "swapped",
        "shifted",
        "shifted back",
        "shifted far",
        "off",
        "zero",
        "nan",
        "salt",
    ],
)
def test_planted_errors_are_counted_everywhere(plant: Callable[[Array, list[Array]], Array]) -> None:
    parts = contributions()
    wrong = plant(total_of(parts), parts)
    assert count_wrong(wrong, SIZE, 5) >= NUMEL - 1  # a shift may be right where it wraps round


def test_a_single_wrong_element_is_counted() -> None:
    total = total_of(contributions())
    for position in (0, 17_000, NUMEL - 1):
        spoilt = total.copy()
        spoilt[position] += 1
        assert count_wrong(spoilt, SIZE, 5) == 1


@pytest.mark.parametrize("numel", [0, 1, 2])
def test_small_arrays(numel: int) -> None:
    total = total_of(contributions(numel=numel, salt=123_456))
    assert count_wrong(total, SIZE, 123_456) == 0
    assert count_wrong(total + 1, SIZE, 123_456) == numel

"""Test data whose exact reduction is known for any order of addition, in the spirit of nccl-tests' `#wrong`.

For a sum, average, minimum or maximum, rank r holds pattern x (r + 1): integers small enough for sums to be exact
in float32. From rank 128 on, contributions to a sum are as small as those of the first 128, and half of them are
negative. They cancel among neighbours and among ranks a power of two apart, so sums stay exact for thousands of
ranks.

The pattern repeats after a prime number of elements and has every value once, so data that is shifted, missing,
duplicated or written with another salt differs nearly everywhere.

float16 and bfloat16 have a smaller range of exact integers: for sums, ranks hold zeros and ones (negative for some
ranks from 128 on); for minimum and maximum, numbers up to 210. For a product, ranks hold ones and twos.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, reduce

import numpy as np

from testbed.comm.collectives.arrays import Array, finish
from testbed.comm.collectives.registry import Collective

PERIOD = 1021
SMALL_FLOATS = ("float16", "bfloat16")
_ADDED = 128  # ranks whose sum is exact in float32; half of the integers that are exact in bfloat16
_SMALL = 211  # integers below it are exact in every type
_STRIDE = 379  # makes neighbouring elements differ widely
_TILE = 17 * PERIOD  # small enough for a core's cache
_BLOCK = _TILE - PERIOD  # one period shorter than the tile, so that a block can start at any phase


def fill(array: Array, rank: int, salt: int = 0, op: str = "sum") -> None:
    """Write rank `rank`'s contribution; `salt` distinguishes the data of different collectives."""
    tile = _contribution(array.dtype.name, rank, op)
    for block, expected in _blocks(array, tile, salt):
        block[:] = expected


def count_wrong(array: Array, size: int, salt: int = 0, op: str = "sum") -> int:
    """Return the number of elements that differ from the reduction over `size` ranks that used `fill`."""
    tile = _reduced(array.dtype.name, size, op)
    return sum(int(np.count_nonzero(block != expected)) for block, expected in _blocks(array, tile, salt))


def count_wrong_among(array: Array, ranks: Sequence[int], salt: int = 0, op: str = "sum") -> int:
    """Return the number of wrong elements, as `count_wrong`, if only these ranks took part."""
    tile = _reduced_among(array.dtype.name, tuple(ranks), op)
    return sum(int(np.count_nonzero(block != expected)) for block, expected in _blocks(array, tile, salt))


def expect(array: Array, size: int, salt: int = 0, op: str = "sum") -> None:
    """Write the reduction over `size` ranks that used `fill`."""
    tile = _reduced(array.dtype.name, size, op)
    for block, expected in _blocks(array, tile, salt):
        block[:] = expected


def count_wrong_output(
    collective: Collective, output: Array, rank: int, size: int, salt: int = 0, op: str = "sum", root: int = 0
) -> int:
    """Return the number of wrong elements in rank `rank`'s output, where all inputs were written by `fill`."""
    after = collective.after(rank, size, root)
    if not after:
        return 0
    sources = {
        block: (source, position, len(blocks))
        for source in range(size)
        for blocks in [collective.before(source, size, root)]
        for position, block in enumerate(blocks)
    }
    parts = output.reshape(len(after), -1)
    part = parts.shape[1]
    if collective.reduces and sources.keys() == set(after):
        return count_wrong(output, size, salt, op)
    wrong = 0
    made: dict[int, Array] = {}
    for block, got in zip(after, parts, strict=True):
        source, position, count = sources[block]
        if source not in made:
            made = {source: np.empty(part * count, output.dtype)}
            if collective.reduces:
                expect(made[source], size, salt, op)
            else:
                fill(made[source], source, salt, op)
        wrong += int(np.count_nonzero(got != made[source][position * part : (position + 1) * part]))
    return wrong


def _blocks(array: Array, tile: Array, salt: int) -> Iterator[tuple[Array, Array]]:
    """Yield blocks of the array with their part of the tile."""
    flat = array.reshape(-1)
    first = salt % PERIOD
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK]
        yield block, tile[first : first + block.size]


def _contribution_of(dtype: str, rank: int, op: str) -> Array:
    return _whole_numbers(dtype, rank, op).astype(dtype)


def _whole_numbers(dtype: str, rank: int, op: str) -> Array:
    pattern = np.arange(_TILE, dtype=np.int64) * _STRIDE % PERIOD + 1
    if op == "product":
        return 1 + (pattern + rank) % 7 // 6
    if dtype in SMALL_FLOATS:
        spread = pattern * (2 * rank + 3) % PERIOD
        return _sign(rank) * (spread % 2) if op in ("sum", "avg") else spread % _SMALL
    return pattern * _factor(rank, op)


def _factor(rank: int, op: str) -> int:
    """Return the multiple of the pattern that rank `rank` holds."""
    return _sign(rank) * (rank % _ADDED + 1) if op in ("sum", "avg") else rank + 1


def _sign(rank: int) -> int:
    """Return the sign of rank `rank`'s summand: the Thue-Morse sequence from rank 128 on, to limit sums."""
    return -1 if rank >= _ADDED and rank.bit_count() % 2 else 1


_contribution = lru_cache(maxsize=128)(_contribution_of)


def _reduced(dtype: str, size: int, op: str) -> Array:
    return _reduced_among(dtype, tuple(range(size)), op)


@lru_cache(maxsize=32)
def _reduced_among(dtype: str, ranks: tuple[int, ...], op: str) -> Array:
    if op == "product":
        reduced = _contribution_of(dtype, ranks[0], op)
        for rank in ranks[1:]:
            reduced *= _contribution_of(dtype, rank, op)
        return reduced
    if dtype in SMALL_FLOATS:
        parts = [_whole_numbers(dtype, rank, op) for rank in ranks]
        combine = {"min": np.minimum, "max": np.maximum}.get(op, np.add)
        reduced = reduce(combine, parts).astype(dtype)
    else:
        factors = [_factor(rank, op) for rank in ranks]
        times = {"min": min, "max": max}.get(op, sum)(factors)
        reduced = (_whole_numbers(dtype, 0, op) * times).astype(dtype)
    finish(op, reduced, len(ranks))
    return reduced

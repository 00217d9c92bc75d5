"""Data whose exact reduction is known, whatever the order of adding, in the spirit of nccl-tests' `#wrong`.

For a sum, average, minimum or maximum rank r holds pattern x (r + 1): whole numbers so small that sums stay exact in
float32. What ranks from 128 on add to a sum is as small as that of the first 128, half of it below zero, so that it
cancels among neighbours and among ranks that lie a power of two apart: exact for thousands of them. The pattern
repeats after a prime number of elements and has every value once, so data that is shifted, missing, doubled or of
another salt differs nearly everywhere. float16 and bfloat16 have room for less: there ranks hold zeros and ones to be
added up (or taken away, from 128 on), or numbers up to 210 to be compared. For a product ranks hold ones and twos.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, reduce

import numpy as np

from testbed.comm.collectives.arrays import Array, finish
from testbed.comm.collectives.registry import Collective

PERIOD = 1021
SMALL_FLOATS = ("float16", "bfloat16")
_ADDED = 128  # ranks whose sum has room in float32; of bfloat16's whole numbers half
_SMALL = 211  # whole numbers below it are exact in every type
_STRIDE = 379  # neighbours differ much
_TILE = 17 * PERIOD  # small enough for a core's cache
_BLOCK = _TILE - PERIOD  # of these elements one period is left to start anywhere


def fill(array: Array, rank: int, salt: int = 0, op: str = "sum") -> None:
    """Write rank `rank`'s contribution; `salt` tells one collective's data from another's."""
    tile = _contribution(array.dtype.name, rank, op)
    for block, expected in _blocks(array, tile, salt):
        block[:] = expected


def count_wrong(array: Array, size: int, salt: int = 0, op: str = "sum") -> int:
    """How many elements differ from the reduction of what `size` ranks have filled in."""
    tile = _reduced(array.dtype.name, size, op)
    return sum(int(np.count_nonzero(block != expected)) for block, expected in _blocks(array, tile, salt))


def count_wrong_among(array: Array, ranks: Sequence[int], salt: int = 0, op: str = "sum") -> int:
    """As `count_wrong`, where only these ranks of all have taken part."""
    tile = _reduced_among(array.dtype.name, tuple(ranks), op)
    return sum(int(np.count_nonzero(block != expected)) for block, expected in _blocks(array, tile, salt))


def expect(array: Array, size: int, salt: int = 0, op: str = "sum") -> None:
    """Write the reduction of what `size` ranks have filled in."""
    tile = _reduced(array.dtype.name, size, op)
    for block, expected in _blocks(array, tile, salt):
        block[:] = expected


def count_wrong_output(
    collective: Collective, output: Array, rank: int, size: int, salt: int = 0, op: str = "sum", root: int = 0
) -> int:
    """How many elements of rank `rank`'s output are not what the collective promises, where all inputs are filled."""
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
    """Pieces of the array, with what the tile has for them."""
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
    """Of the pattern, that rank `rank` holds."""
    return _sign(rank) * (rank % _ADDED + 1) if op in ("sum", "avg") else rank + 1


def _sign(rank: int) -> int:
    """Of what rank `rank` adds: the Thue-Morse sequence, from where sums would grow too large."""
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

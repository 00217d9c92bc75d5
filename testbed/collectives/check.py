"""Data whose reduction is known exactly, to check every result (nccl-tests' `#wrong`).

Element i of rank r is pattern[i] x (r + 1): small whole numbers, so that sums come out exactly in any order and type;
the pattern repeats with a prime period, so that a shifted part shows; each rank has a weight of its own, so that a
missing or doubled contribution shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
PERIOD = 251
_TILE = (np.arange(PERIOD * 64) * 7) % PERIOD % 13 + 1  # values 1..13


def _pattern(size: int, salt: int, dtype: np.dtype[Any]) -> Array:
    shifted = np.roll(_TILE, -(salt % PERIOD)).astype(dtype)
    return np.resize(shifted, size)


def fill(array: Array, rank: int, salt: int) -> None:
    """Overwrite a one-dimensional array with rank `rank`'s contribution; `salt` tells one operation from another."""
    np.multiply(_pattern(array.size, salt, array.dtype), array.dtype.type(rank + 1), out=array)


def count_wrong(array: Array, size: int, salt: int) -> int:
    """How many elements differ from the exact sum over ranks 0..size-1 of what `fill` wrote."""
    expected = _pattern(array.size, salt, array.dtype) * array.dtype.type(size * (size + 1) // 2)
    return int(np.count_nonzero(array != expected))

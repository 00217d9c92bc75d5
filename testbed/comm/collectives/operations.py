"""Element types and reductions that every algorithm works with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from testbed.comm.collectives.data import Array, Operation

try:
    import ml_dtypes
except ImportError:  # somebody else's environment, where bfloat16 comes in a Reduction of its own
    ml_dtypes = None  # type: ignore[assignment]

DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")
_OTHER_DTYPES = (
    "int8",
    "uint8",
    "int16",
)  # of other people's arrays, and for types that NumPy has no name for
_BY_DTYPE = {np.dtype(name): name for name in (*DTYPES, *_OTHER_DTYPES) if name != "bfloat16"}
if ml_dtypes is not None:
    _BY_DTYPE[np.dtype(ml_dtypes.bfloat16)] = "bfloat16"
OPERATIONS: dict[str, Operation] = {
    "sum": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "avg": np.add,  # and divided by the number of ranks in the end
}


@dataclass(frozen=True)
class Reduction:
    """A reduction that is not among `OPERATIONS`.

    combine: two parts into one, called as NumPy's own are, `combine(one, other, out=one)`; associative and commutative.
    finish: what is left to do, in place, once all parts of so many ranks are. name: for records.
    """

    name: str
    combine: Operation
    finish: Callable[[Array, int], None] | None = None


def dtype_named(name: str) -> np.dtype[np.generic]:
    """The numpy type of this name. ValueError for others than `DTYPES`."""
    for dtype, known in _BY_DTYPE.items():
        if known == name and name in DTYPES:
            return dtype
    raise ValueError(f"dtype: got {name!r}, expected one of {', '.join(DTYPES)}")


def operation_named(op: str | Reduction) -> Operation:
    """How two parts are reduced into one. ValueError for names of others than `OPERATIONS`."""
    if isinstance(op, Reduction):
        return op.combine
    if op not in OPERATIONS:
        raise ValueError(f"op: got {op!r}, expected one of {', '.join(OPERATIONS)}")
    return OPERATIONS[op]


def words_of(op: str | Reduction) -> str:
    """A reduction's name."""
    return op.name if isinstance(op, Reduction) else op


def finish(op: str | Reduction, array: Array, size: int) -> None:
    """What is left to do once all parts of `size` ranks are reduced: an average divides, whole numbers towards zero."""
    if isinstance(op, Reduction):
        if op.finish is not None:
            op.finish(array, size)
        return
    if op != "avg" or size == 1:
        return
    if array.dtype.kind == "i":
        quotient = np.abs(array) // size
        np.multiply(quotient, np.sign(array), out=array)
    elif array.dtype.kind == "u":
        np.floor_divide(array, array.dtype.type(size), out=array)
    else:
        np.divide(array, array.dtype.type(size), out=array)


def check_array(
    array: Array, name: str, writes: bool = False, like: Array | None = None, numel: int | None = None
) -> None:
    """Refuse what collectives cannot work on in place. TypeError, ValueError."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name}: got {type(array).__name__}, expected a numpy array")
    if array.dtype not in _BY_DTYPE:
        raise TypeError(
            f"{name}: got dtype {array.dtype}, expected one of {', '.join((*DTYPES, *_OTHER_DTYPES))}"
        )
    if not array.flags.c_contiguous:
        raise ValueError(f"{name}: got a non-contiguous array, expected a C-contiguous one")
    if writes and not array.flags.writeable:
        raise ValueError(f"{name}: got a read-only array, expected one that can be written to")
    if like is not None and array.dtype != like.dtype:
        raise TypeError(f"{name}: got dtype {array.dtype}, expected {like.dtype}, as the output's")
    if numel is not None and array.size != numel:
        raise ValueError(f"{name}: got {array.size} elements, expected {numel}")


def split_bounds(array: Array, name: str, sizes: Sequence[int] | None, parts: int) -> list[int]:
    """Where each rank's share of an array starts and ends, in elements.

    sizes: rows of the first dimension per rank, which must make up the array; None: all alike. ValueError.
    """
    rows = array.shape[0] if array.ndim else 1
    if sizes is None:
        if rows % parts:
            raise ValueError(f"{name}: got {rows} rows, expected a multiple of {parts}, one share per rank")
        sizes = [rows // parts] * parts
    elif len(sizes) != parts or min(sizes) < 0 or sum(sizes) != rows:
        expected = f"{parts} sizes, 0 or more, that make {rows} rows"
        raise ValueError(f"{name}_split_sizes: got {list(sizes)}, expected {expected}")
    row = array.size // rows if rows else 0
    bounds = [0]
    for size in sizes:
        bounds.append(bounds[-1] + size * row)
    return bounds


def shares(array: Array, bounds: Sequence[int]) -> list[Array]:
    """An array cut there, flat."""
    flat = array.reshape(-1)
    return [flat[start:end] for start, end in pairwise(bounds)]


def padded(share: Array, rows: int) -> Array:
    """The share, made up to so many rows."""
    made = np.zeros((rows, *share.shape[1:]), share.dtype)
    made[: len(share)] = share
    return made


def given(array: Array | None, name: str, where: str) -> Array:
    """Refuse None where an array has to be."""
    if array is None:
        raise ValueError(f"{name}: got None, expected an array {where}")
    return array

"""Blocks of a plan in a rank's memory, and the element types and reductions that every algorithm supports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from testbed.comm.collectives.plan import Runs, blocks_of

Array = npt.NDArray[Any]
Operation = Callable[..., Any]
NOTHING = memoryview(b"")


def as_bytes(array: Array) -> memoryview:
    """Return the memory of a contiguous array as bytes."""
    return array.reshape(-1).view(np.uint8).data if array.size else NOTHING


class Data(Protocol):
    """One rank's blocks during one collective."""

    def outgoing(self, runs: Runs) -> Array:
        """Return the content of a message with these blocks; it must not change until it is sent."""

    def incoming(self, runs: Runs, reduces: bool) -> Array:
        """Return the buffer into which a message with these blocks is received."""

    def arrived(self, runs: Runs, reduces: bool, array: Array) -> None:
        """Process a message that was received into the buffer from `incoming`."""


class Blocks:
    """Blocks of one flat array: block b is `bounds[b]` to `bounds[b + 1]`.

    source: the initial blocks, unchanged unless it is `target`.
    target: an array of the same size for blocks that were received or reduced.
    """

    def __init__(
        self, source: Array, target: Array, bounds: Sequence[int], operation: Operation | None = None
    ) -> None:
        self._source = source
        self._target = target
        self._bounds = bounds
        self._operation = operation
        # per block, whether it is in `target`; not needed if `target` is `source`
        self._moved = None if source is target else bytearray(len(bounds) - 1)
        self._buffers: list[Array] = []

    def outgoing(self, runs: Runs) -> Array:
        """Return the content of a message; see `Data`."""
        if len(runs) == 1:
            start, end = runs[0]
            where = self._where(start, end)
            if where is not None:
                return where[self._bounds[start] : self._bounds[end]]
        return self._packed(runs)

    def incoming(self, runs: Runs, reduces: bool) -> Array:
        """Return the receive buffer of a message; see `Data`."""
        bounds = self._bounds
        if len(runs) == 1 and not reduces:
            start, end = runs[0]
            return self._target[bounds[start] : bounds[end]]
        return self._buffer(sum(bounds[end] - bounds[start] for start, end in runs))

    def arrived(self, runs: Runs, reduces: bool, array: Array) -> None:
        """Process a received message; see `Data`."""
        bounds, target, moved = self._bounds, self._target, self._moved
        if reduces:
            position = 0
            for start, end in runs:
                for first, last, where in self._pieces(start, end):
                    low, high = bounds[first], bounds[last]
                    if low < high:
                        part = array[position : position + high - low]
                        self._operation(where[low:high], part, out=target[low:high])  # type: ignore[misc]
                        position += high - low
            self._buffers.append(array if array.base is None else array.base)
        elif len(runs) > 1:
            position = 0
            for start, end in runs:
                low, high = bounds[start], bounds[end]
                target[low:high] = array[position : position + high - low]
                position += high - low
            self._buffers.append(array if array.base is None else array.base)
        if moved is not None:
            for start, end in runs:
                moved[start:end] = b"\1" * (end - start)

    def _where(self, start: int, end: int) -> Array | None:
        """Return the array that holds all of these blocks; None if some have moved and some not."""
        if self._moved is None:
            return self._target
        count = self._moved.count(1, start, end)
        return self._target if count == end - start else None if count else self._source

    def _pieces(self, start: int, end: int) -> list[tuple[int, int, Array]]:
        """Return these blocks as (start, end, array that holds them)."""
        where = self._where(start, end)
        if where is not None:
            return [(start, end, where)]
        moved = self._moved
        assert moved is not None
        return [(b, b + 1, self._target if moved[b] else self._source) for b in range(start, end)]

    def _packed(self, runs: Runs) -> Array:
        bounds = self._bounds
        parts = [
            where[bounds[first] : bounds[last]]
            for start, end in runs
            for first, last, where in self._pieces(start, end)
        ]
        return np.concatenate(parts)

    def _buffer(self, numel: int) -> Array:
        """Return scratch memory for a message, reusing buffers because fresh memory is slow."""
        for index, buffer in enumerate(self._buffers):
            if buffer.size >= numel:
                return self._buffers.pop(index)[:numel]
        return np.empty(numel, dtype=self._target.dtype)


class PairBlocks:
    """Blocks from every rank to every rank: block s * size + d is from rank s to rank d.

    inputs[d]: the block for rank d. outputs[s]: where the block of rank s is stored.
    sizes: elements of every block, by number; used only for blocks that this rank relays.
    """

    def __init__(
        self, rank: int, inputs: Sequence[Array], outputs: Sequence[Array], sizes: Sequence[int]
    ) -> None:
        self._dtype = inputs[0].dtype
        self._empty = inputs[0][:0]
        size = len(inputs)
        self._outputs = {source * size + rank: part for source, part in enumerate(outputs)}
        self._blocks = {rank * size + target: part for target, part in enumerate(inputs)}
        self._sizes = sizes

    def outgoing(self, runs: Runs) -> Array:
        """Return the content of a message; see `Data`."""
        blocks = blocks_of(runs)
        if len(blocks) == 1:
            return self._blocks[blocks[0]]
        # empty blocks were never received
        return np.concatenate([self._blocks.get(block, self._empty) for block in blocks])

    def incoming(self, runs: Runs, reduces: bool) -> Array:
        """Return the receive buffer of a message; see `Data`."""
        blocks = blocks_of(runs)
        if len(blocks) == 1 and blocks[0] in self._outputs:
            return self._outputs[blocks[0]]
        return np.empty(sum(map(self._size, blocks)), dtype=self._dtype)

    def arrived(self, runs: Runs, reduces: bool, array: Array) -> None:
        """Process a received message; see `Data`."""
        blocks = blocks_of(runs)
        if len(blocks) == 1 and blocks[0] in self._outputs:
            return
        position = 0
        for block in blocks:
            part = array[position : position + self._size(block)]
            position += part.size
            output = self._outputs.get(block)
            if output is None:
                self._blocks[block] = part  # to be relayed to another rank
            else:
                output[:] = part

    def _size(self, block: int) -> int:
        output = self._outputs.get(block)
        return self._sizes[block] if output is None else output.size


try:
    import ml_dtypes
except ImportError:  # in a user's own environment, where bfloat16 needs a custom Reduction
    ml_dtypes = None  # type: ignore[assignment]

DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")
_OTHER_DTYPES = ("int8", "uint8", "int16")  # for users' arrays, and for types that NumPy has no name for
_BY_DTYPE = {np.dtype(name): name for name in (*DTYPES, *_OTHER_DTYPES) if name != "bfloat16"}
if ml_dtypes is not None:
    _BY_DTYPE[np.dtype(ml_dtypes.bfloat16)] = "bfloat16"
OPERATIONS: dict[str, Operation] = {
    "sum": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "avg": np.add,  # `finish` divides by the number of ranks
}


@dataclass(frozen=True)
class Reduction:
    """A custom reduction that is not among `OPERATIONS`.

    name: name for records.
    combine: reduces two parts into one, called like a NumPy ufunc, `combine(one, other, out=one)`; associative and
    commutative.
    finish: last step, in place, called with the array and the number of ranks once all parts are reduced.
    """

    name: str
    combine: Operation
    finish: Callable[[Array, int], None] | None = None


def dtype_named(name: str) -> np.dtype[np.generic]:
    """Return the NumPy type of this name. Raises ValueError for names not in `DTYPES`."""
    for dtype, known in _BY_DTYPE.items():
        if known == name and name in DTYPES:
            return dtype
    raise ValueError(f"dtype: got {name!r}, expected one of {', '.join(DTYPES)}")


def operation_named(op: str | Reduction) -> Operation:
    """Return the function that reduces two parts into one. Raises ValueError for names not in `OPERATIONS`."""
    if isinstance(op, Reduction):
        return op.combine
    if op not in OPERATIONS:
        raise ValueError(f"op: got {op!r}, expected one of {', '.join(OPERATIONS)}")
    return OPERATIONS[op]


def reduction_name(op: str | Reduction) -> str:
    """Return the name of a reduction."""
    return op.name if isinstance(op, Reduction) else op


def finish(op: str | Reduction, array: Array, size: int) -> None:
    """Apply the last step of a reduction over `size` ranks: an average divides, integers round towards zero."""
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
    """Reject an array on which collectives cannot work in place. Raises TypeError or ValueError."""
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
    """Return where each rank's share of an array starts and ends, in elements.

    Args:
        array: The array to share out.
        name: Its name for errors.
        sizes: Rows of the first dimension per rank, which must add up to its length; None: equal shares.
        parts: The number of ranks.

    Raises:
        ValueError: If the sizes do not fit.
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
    """Return a flat view of the array for each share."""
    flat = array.reshape(-1)
    return [flat[start:end] for start, end in pairwise(bounds)]


def padded(share: Array, rows: int) -> Array:
    """Return a copy of the share, zero-padded to `rows` rows."""
    made = np.zeros((rows, *share.shape[1:]), share.dtype)
    made[: len(share)] = share
    return made


def require_array(array: Array | None, name: str, where: str) -> Array:
    """Return the array; raise ValueError if it is None."""
    if array is None:
        raise ValueError(f"{name}: got None, expected an array {where}")
    return array

"""The memory of one collective on one rank: filled with data of a known answer, run, looked at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from testbed.collectives import Array, Communicator, Work, count_wrong, dtype_named, expect, fill
from testbed.virtual.memory import private_memory
from testbed.workload import uneven_rows


class CollectiveArrays:
    """A rank's arrays for one collective over `size` ranks.

    numel: elements of its larger array, which the number of ranks divides where it is cut for them.
    """

    def __init__(
        self, collective: str, numel: int, dtype: str, rank: int, size: int, op: str = "sum"
    ) -> None:
        self.collective = collective
        self.numel = numel
        self.rank = rank
        self.size = size
        self.op = op
        self._dtype = dtype_named(dtype)
        part = numel // size
        self.input = self._room(part if collective == "all_gather" else numel)
        self.output = self.input
        if collective in ("all_gather", "all_to_all", "sendrecv"):
            self.output = self._room(numel)
        elif collective == "reduce_scatter":
            self.output = self._room(part)
        elif collective == "all_to_all_v":
            self._most = self.input
            self.output = self._room(numel).reshape(size, part)
            self.use_rows(uneven_rows(size, part))

    def _room(self, numel: int) -> Array:
        return np.frombuffer(private_memory(numel * self._dtype.itemsize), dtype=self._dtype, count=numel)

    def use_rows(self, rows: Sequence[Sequence[int]]) -> None:
        """Of an all_to_all_v: elements from each rank, in rows, to each; none more than the larger array's part."""
        self.rows = rows
        self.input = self._most[: sum(rows[self.rank])]

    @property
    def nbytes(self) -> int:
        """Bytes of the larger array."""
        return int(max(self.input.nbytes, self.output.nbytes))

    def start(self, communicator: Communicator, algorithm: str, async_op: bool = False) -> Work | None:
        """The collective, once; a Work when it is only begun."""
        collective = self.collective
        if collective == "all_reduce":
            return communicator.all_reduce(self.output, self.op, algorithm, async_op)
        if collective == "all_gather":
            return communicator.all_gather_into_tensor(self.output, self.input, algorithm, async_op)
        if collective == "reduce_scatter":
            return communicator.reduce_scatter_tensor(self.output, self.input, self.op, algorithm, async_op)
        if collective == "all_to_all":
            return communicator.all_to_all_single(
                self.output, self.input, algorithm=algorithm, async_op=async_op
            )
        if collective == "all_to_all_v":
            self._exchange = communicator.all_to_all_v_dynamic(
                self.output, self.input, self.rows[self.rank], algorithm, async_op
            )
            return self._exchange if async_op else None
        right, left = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        receive = communicator.irecv(self.output, left)
        communicator.send(self.input, right)
        receive.wait()
        return None

    def fill(self, salt: int = 0) -> None:
        """Data with a known answer."""
        fill(self.input, self.rank, salt, self.op)

    def count_wrong(self, salt: int = 0) -> int:
        """Elements of the result that are not what they should be."""
        collective, size = self.collective, self.size
        if collective == "all_reduce":
            return count_wrong(self.output, size, salt, self.op)
        if collective == "reduce_scatter":
            expected = np.empty(self.numel, self.output.dtype)
            expect(expected, size, salt, self.op)
            part = self.output.size
            return _differing(self.output, expected[self.rank * part : (self.rank + 1) * part])
        if collective == "sendrecv":
            return _differing(self.output, self._filled(self.output.size, (self.rank - 1) % size, salt))
        wrong = 0
        part = self.numel // size
        for peer in range(size):
            got = self.output.reshape(size, part)[peer]
            if collective == "all_gather":
                expected = self._filled(part, peer, salt)
            elif collective == "all_to_all":
                expected = self._filled(self.numel, peer, salt)[self.rank * part : (self.rank + 1) * part]
            else:
                counts = self.rows[peer]
                first = sum(counts[: self.rank])
                expected = self._filled(sum(counts), peer, salt)[first : first + counts[self.rank]]
                wrong += abs(self._exchange.result[peer] - counts[self.rank])
                got = got[: counts[self.rank]]
            wrong += _differing(got, expected)
        return wrong

    def _filled(self, numel: int, rank: int, salt: int) -> Array:
        array = np.empty(numel, self.input.dtype)
        fill(array, rank, salt, self.op)
        return array


def _differing(got: Array, expected: Array) -> int:
    return int(np.count_nonzero(got != expected))

"""The memory of one collective on one rank: filled with data of a known answer, run, looked at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from testbed.clock import private_memory
from testbed.comm.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    Array,
    Communicator,
    Work,
    collective_of,
    count_wrong_among,
    count_wrong_output,
    dtype_named,
    fill,
    rows_algorithm_of,
)
from testbed.workload.uniform_plans import uneven_rows


class CollectiveArrays:
    """A rank's arrays for one collective over `size` ranks.

    numel: elements of its larger array, which the number of ranks divides where it is cut for them.
    """

    def __init__(
        self, collective: str, numel: int, dtype: str, rank: int, size: int, op: str = "sum"
    ) -> None:
        self.collective = collective_of(collective)
        self.numel = numel
        self.rank = rank
        self.size = size
        self.op = op
        self._dtype = dtype_named(dtype)
        own, others = self.collective.elements(numel, rank, size)
        self.input = self._allocated(own)
        self.output = self.input if others is None else self._allocated(others)
        if self.collective.uneven:
            self._most = self.input
            part = self.collective.part(numel, size)
            self.output = self.output.reshape(size, part)
            self.use_rows(uneven_rows(size, part))

    def _allocated(self, numel: int) -> Array:
        return np.frombuffer(private_memory(numel * self._dtype.itemsize), dtype=self._dtype, count=numel)

    def use_rows(self, rows: Sequence[Sequence[int]]) -> None:
        """Of an all_to_all_v: elements from each rank, in rows, to each; none more than the larger array's part."""
        self.rows = rows
        self.input = self._most[: sum(rows[self.rank])]

    @property
    def nbytes(self) -> int:
        """Bytes of the larger array."""
        return int(max(self.input.nbytes, self.output.nbytes))

    def start(self, communicator: Communicator, algorithm: str, async_op: bool = False) -> Work:
        """The collective, once; a Work, which is done already unless `async_op`."""
        output, input = self.output, self.input
        if self.collective.uneven:
            told = None
            if rows_algorithm_of(self.collective, algorithm).told:
                told = [rows[self.rank] for rows in self.rows]
            self._exchange = communicator.all_to_all_v_dynamic(
                output,
                input,
                self.rows[self.rank],
                algorithm,
                async_op,
                output_split_sizes=told,
            )
            return self._exchange
        if self.collective is ALL_REDUCE:
            return communicator.all_reduce(output, self.op, algorithm, async_op)
        if self.collective is ALL_GATHER:
            return communicator.all_gather_into_tensor(output, input, algorithm, async_op)
        if self.collective is REDUCE_SCATTER:
            return communicator.reduce_scatter_tensor(output, input, self.op, algorithm, async_op)
        if self.collective is ALL_TO_ALL:
            return communicator.all_to_all_single(output, input, algorithm=algorithm, async_op=async_op)
        return communicator.collective(self.collective, output, input, self.op, algorithm, async_op)

    def fill(self, salt: int = 0) -> None:
        """Data with a known answer."""
        fill(self.input, self.rank, salt, self.op)

    def count_wrong(self, salt: int = 0, among: Sequence[int] | None = None) -> int:
        """Elements of the result that are not what they should be.

        among: the ranks that took part in an all-reduce; None: all.
        """
        if among is not None:
            return count_wrong_among(self.output, among, salt, self.op)
        if not self.collective.uneven:
            return count_wrong_output(self.collective, self.output, self.rank, self.size, salt, self.op)
        wrong = 0
        for peer, counts in enumerate(self.rows):
            first, count = sum(counts[: self.rank]), counts[self.rank]
            expected = np.empty(sum(counts), self.input.dtype)
            fill(expected, peer, salt, self.op)
            wrong += abs(self._exchange.result[peer] - count)
            wrong += int(np.count_nonzero(self.output[peer, :count] != expected[first : first + count]))
        return wrong

"""Dispatch and combine: slices of an array to the ranks that they are for, one slice to several of them, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from testbed.comm.collectives.algorithms import all_to_all_v
from testbed.comm.collectives.all_to_all import AllToAll
from testbed.comm.collectives.async_work import Work
from testbed.comm.collectives.data import Array
from testbed.comm.collectives.definitions import ALL_TO_ALL_V
from testbed.comm.collectives.flight_entries import About
from testbed.comm.collectives.operations import check_array
from testbed.comm.collectives.progress_engine import Position, Steps
from testbed.comm.collectives.registry import rows_algorithm_of


@dataclass(frozen=True)
class Handle:
    """What was told in a dispatch, for its combine, and for later ones of which as many rows go each way.

    slices: rows of each, as [begin, end) in the input. indices: which of them went to rank 0, then to rank 1 and so on;
    block_lengths: how many to each. come: rows from each rank, once they have.
    """

    slices: tuple[tuple[int, int], ...]
    indices: tuple[int, ...]
    block_lengths: tuple[int, ...]
    come: Sequence[int]

    @property
    def sent(self) -> list[int]:
        """Rows that went to each rank."""
        return [sum(end - begin for begin, end in block) for block in self.blocks()]

    def blocks(self) -> Iterator[list[tuple[int, int]]]:
        """The slices for each rank."""
        first = 0
        for length in self.block_lengths:
            yield [self.slices[index] for index in self.indices[first : first + length]]
            first += length


class Dispatching(AllToAll):
    """As NCCLX's all-to-all-v with dynamic counts does; one slice goes to several ranks where experts are doubled."""

    def dispatch(
        self,
        output: Array,
        input: Array,
        split_lengths: Sequence[int],
        indices: Sequence[int],
        block_lengths: Sequence[int],
        handle: Handle | None = None,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Work:
        """Slices of `input`, of `split_lengths` rows each, to ranks; into `output`, (size, M, ...), by source.

        indices: of the slices, those for rank 0 first; block_lengths: how many for each rank. The Work's `result` is a
        Handle. handle: of an earlier dispatch of which as many rows came from each rank: no counts are told then, as
        buffers are known. Sends 8 (n - 1) bytes and the rows, or rows alone.
        """
        planned = self._planned(input, split_lengths, indices, block_lengths)
        rows = [input[begin:end] for block in planned.blocks() for begin, end in block]
        packed = np.concatenate(rows) if rows else input[:0]
        algorithm, told = ("late_counts", None) if handle is None else ("told_counts", handle.come)
        exchange = self._rows_exchange(output, packed, planned.sent, algorithm, told)
        about, made = About(input, algorithm), replace(planned, come=exchange.come)
        return self._collective("dispatch", exchange.steps, async_op, timeout_s, about, made)

    def combine(
        self,
        output: Array,
        input: Array,
        handle: Handle,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Work:
        """Rows of a dispatch back: `input`, (size, M, ...), as it came; into `output`, as the dispatch's input was.

        A slice that went to several ranks becomes the sum of what they return; rows that went nowhere are left alone.
        Both ends know how many rows there are. Sends the rows.
        """
        check_array(output, "output", writes=True)
        check_array(input, "input", like=output)
        if input.ndim < 2 or input.shape[0] != self.size or input.shape[2:] != output.shape[1:]:
            expected = f"({self.size}, most rows of any rank, *{output.shape[1:]})"
            raise ValueError(f"input: got shape {input.shape}, expected {expected}")
        how, sent = rows_algorithm_of(ALL_TO_ALL_V, "told_counts"), handle.sent
        room = np.empty((self.size, max((*sent, 1)), *output.shape[1:]), output.dtype)
        rows = [input[rank, :count] for rank, count in enumerate(handle.come)]
        exchange = all_to_all_v.Exchange(self._group, self.rank, rows, room, handle.come, how, sent)

        def steps(tag: int, position: Position) -> Steps:
            yield from exchange.steps(tag, position)
            for begin, end in {handle.slices[index] for index in handle.indices}:
                output[begin:end] = 0
            for rank, block in enumerate(handle.blocks()):
                first = 0
                for begin, end in block:
                    output[begin:end] += room[rank, first : first + end - begin]
                    first += end - begin

        return self._collective("combine", steps, async_op, timeout_s, About(input, "told_counts"))

    def _planned(
        self, input: Array, lengths: Sequence[int], indices: Sequence[int], blocks: Sequence[int]
    ) -> Handle:
        """What is to be sent; nothing has come. ValueError."""
        check_array(input, "input")
        if any(length < 0 for length in lengths) or sum(lengths) > len(input):
            raise ValueError(
                f"split_lengths: got {list(lengths)}, expected rows of {len(input)} in all, or fewer"
            )
        if len(blocks) != self.size or any(block < 0 for block in blocks) or sum(blocks) != len(indices):
            expected = f"{self.size} numbers, {len(indices)} in all, as there are indices"
            raise ValueError(f"block_lengths: got {list(blocks)}, expected {expected}")
        if wrong := [index for index in indices if not 0 <= index < len(lengths)]:
            raise ValueError(f"indices: got {wrong[0]}, expected 0 to {len(lengths) - 1}")
        ends = np.cumsum([0, *lengths]).tolist()
        slices = tuple(pairwise(ends))
        return Handle(slices, tuple(indices), tuple(blocks), (0,) * self.size)

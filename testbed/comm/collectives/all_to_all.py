"""All-to-all of a communicator's ranks, with shares that both ends know, or only the one that sends them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from testbed.comm.collectives.algorithms import all_to_all_v
from testbed.comm.collectives.algorithms.all_to_all import relays_blocks
from testbed.comm.collectives.arrays import Array, PairBlocks, check_array, padded, shares, split_bounds
from testbed.comm.collectives.async_work import Work
from testbed.comm.collectives.group import OperationInfo
from testbed.comm.collectives.plan_executor import execute_plan
from testbed.comm.collectives.progress_engine import Position, Steps
from testbed.comm.collectives.registry import (
    ALL_TO_ALL,
    ALL_TO_ALL_V,
    AUTO,
    Algorithm,
    RowsAlgorithm,
    algorithm_of,
    rows_algorithm_of,
)
from testbed.comm.collectives.rma_windows import WindowOperations
from testbed.comm.transport import TransportError

LARGE_BYTES = 1 << 40
LARGEST_COUNT = 1 << 36


class AllToAll(WindowOperations):
    """What every rank has for every other one."""

    def all_to_all_single(
        self,
        output: Array,
        input: Array,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        algorithm: str | Algorithm = AUTO,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Work:
        """The i-th share of rank s's `input` into the s-th share of rank i's `output`.

        Split sizes: rows of the first dimension per rank; None: equal shares. What rank s has for i, i must expect.
        """
        check_array(output, "output", writes=True)
        check_array(input, "input", like=output)
        sends = split_bounds(input, "input", input_split_sizes, self.size)
        receives = split_bounds(output, "output", output_split_sizes, self.size)
        inputs, outputs = shares(input, sends), shares(output, receives)
        if inputs[self.rank].size != outputs[self.rank].size:
            expected = f"{inputs[self.rank].size} elements for this rank itself, as in input"
            raise ValueError(f"output_split_sizes: got {outputs[self.rank].size}, expected {expected}")
        outputs[self.rank][:] = inputs[self.rank]
        even = input_split_sizes is None and output_split_sizes is None
        if algorithm == AUTO:
            # all ranks must choose alike, so not by sizes that they do not share
            size_bytes = inputs[self.rank].nbytes if even else LARGE_BYTES
            algorithm = self.tuning.choose("all_to_all", size_bytes, self.groups)
        plan = self._plan(ALL_TO_ALL, algorithm, 0)
        relays = relays_blocks(algorithm_of(ALL_TO_ALL, algorithm), self.groups)

        def steps(tag: int, position: Position) -> Steps:
            counts = np.zeros((self.size, self.size), np.int64)
            counts[self.rank] = [share.size for share in inputs]
            if even:
                counts[:] = counts[self.rank]
            elif relays:  # who passes on for others must know how much
                whole = counts.reshape(-1)
                share = self._plan("all_gather", "far_first", counts[0].nbytes)
                yield from self._blocks(share, whole, whole, tag, position)
                self._check_counts(counts, outputs)
            data = PairBlocks(self.rank, inputs, outputs, counts.reshape(-1).tolist())
            yield from execute_plan(self._group, plan.plan, data, tag + 1, position)

        about = OperationInfo(input, plan.algorithm)
        return self._collective("all_to_all_single", steps, async_op, timeout_s, about)

    def all_to_all_v_dynamic(
        self,
        output: Array,
        input: Array,
        input_split_sizes: Sequence[int],
        algorithm: str | RowsAlgorithm = "late_counts",
        async_op: bool = False,
        timeout_s: float | None = None,
        output_split_sizes: Sequence[int] | None = None,
    ) -> Work:
        """All-to-all whose receivers do not know how much comes, as for tokens that a router sends to experts.

        input: rows for rank 0, then for rank 1 and so on, `input_split_sizes` of each. output: (size, M, ...), room for
        M rows from each rank, of which the first ones are filled. The Work's `result` is how many came from each.
        Algorithms: "late_counts" sends the rows that there are, "padded" M rows to everybody, "told_counts" the rows
        alone, as `output_split_sizes` says how many come from each: see `all_to_all_v`. The first two go to eight peers
        at a time, "late_counts_at_once" to all.
        """
        exchange = self._rows_exchange(output, input, input_split_sizes, algorithm, output_split_sizes)
        about = OperationInfo(input, algorithm if isinstance(algorithm, str) else "")
        return self._collective(
            "all_to_all_v_dynamic", exchange.steps, async_op, timeout_s, about, exchange.come
        )

    def _rows_exchange(
        self,
        output: Array,
        input: Array,
        input_split_sizes: Sequence[int],
        algorithm: str | RowsAlgorithm,
        output_split_sizes: Sequence[int] | None,
    ) -> all_to_all_v.Exchange:
        """Of arrays and sizes that fit. ValueError."""
        how = rows_algorithm_of(ALL_TO_ALL_V, algorithm)
        check_array(output, "output", writes=True)
        check_array(input, "input", like=output)
        if output.ndim < 2 or output.shape[0] != self.size or output.shape[2:] != input.shape[1:]:
            expected = f"({self.size}, most rows of any rank, *{input.shape[1:]})"
            raise ValueError(f"output: got shape {output.shape}, expected {expected}")
        bounds = split_bounds(input, "input", input_split_sizes, self.size)
        most = output.shape[1]
        if max(input_split_sizes) > most:
            expected = f"at most {most} rows, as output has room for"
            raise ValueError(f"input_split_sizes: got {max(input_split_sizes)}, expected {expected}")
        rows = [
            share.reshape(count, *input.shape[1:])
            for share, count in zip(shares(input, bounds), input_split_sizes, strict=True)
        ]
        travel = [how.sent(count, most) for count in input_split_sizes]
        rows = [padded(share, count) for share, count in zip(rows, travel, strict=True)]
        told = self._told(output_split_sizes, how.told, most)
        return all_to_all_v.Exchange(self._group, self.rank, rows, output, input_split_sizes, how, told)

    def _told(self, sizes: Sequence[int] | None, told: bool, most: int) -> list[int] | None:
        """How many rows come from each, given with the algorithm that goes by it and with no other. ValueError."""
        if told != (sizes is not None):
            expected = "how many rows come from each" if told else "it with told_counts only"
            raise ValueError(f"output_split_sizes: got {sizes}, expected {expected}")
        if sizes is not None and (len(sizes) != self.size or not all(0 <= size <= most for size in sizes)):
            expected = f"{self.size} of 0 to {most} rows, as output has room for"
            raise ValueError(f"output_split_sizes: got {list(sizes)}, expected {expected}")
        return None if sizes is None else list(sizes)

    def _check_counts(self, counts: Array, outputs: Sequence[Array]) -> None:
        """What all ranks say they send to all must make sense, and be what this one expects."""
        expected = [share.size for share in outputs]
        if counts.min() < 0 or counts.max() > LARGEST_COUNT or counts[:, self.rank].tolist() != expected:
            raise TransportError(
                f"rank {self.transport.rank}: shares announced by the peers: got {counts[:, self.rank].tolist()} "
                f"elements for this rank, expected {expected}"
            )


@dataclass(frozen=True)
class DispatchHandle:
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


class DispatchCombine(AllToAll):
    """As NCCLX's all-to-all-v with dynamic counts does; one slice goes to several ranks where experts are doubled."""

    def dispatch(
        self,
        output: Array,
        input: Array,
        split_lengths: Sequence[int],
        indices: Sequence[int],
        block_lengths: Sequence[int],
        handle: DispatchHandle | None = None,
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
        about, made = OperationInfo(input, algorithm), replace(planned, come=exchange.come)
        return self._collective("dispatch", exchange.steps, async_op, timeout_s, about, made)

    def combine(
        self,
        output: Array,
        input: Array,
        handle: DispatchHandle,
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

        return self._collective("combine", steps, async_op, timeout_s, OperationInfo(input, "told_counts"))

    def _planned(
        self, input: Array, lengths: Sequence[int], indices: Sequence[int], blocks: Sequence[int]
    ) -> DispatchHandle:
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
        return DispatchHandle(slices, tuple(indices), tuple(blocks), (0,) * self.size)

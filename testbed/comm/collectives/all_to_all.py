"""All-to-all with counts known to both ends or only to the sender, and dispatch and combine.

Dispatch sends slices of an array to their ranks, one slice to several ranks if need be; combine sends them back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from testbed.comm.collectives.algorithms import all_to_all_v
from testbed.comm.collectives.algorithms.all_to_all import relays_blocks
from testbed.comm.collectives.arrays import Array, PairBlocks, check_array, padded, shares, split_bounds
from testbed.comm.collectives.group import OperationInfo
from testbed.comm.collectives.plan_executor import execute_plan
from testbed.comm.collectives.progress_engine import Position, Steps, Work
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
    """All-to-all operations of a communicator."""

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
        """Copy the i-th share of rank s's `input` into the s-th share of rank i's `output`.

        Split sizes are rows of the first dimension per rank; None: equal shares. The sizes of sender and receiver
        must match.
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
            # all ranks must choose the same algorithm, so sizes that differ between ranks are not considered
            size_bytes = inputs[self.rank].nbytes if even else LARGE_BYTES
            algorithm = self.tuning.choose("all_to_all", size_bytes, self.groups)
        plan = self._plan(ALL_TO_ALL, algorithm, 0)
        relays = relays_blocks(algorithm_of(ALL_TO_ALL, algorithm), self.groups)

        def steps(tag: int, position: Position) -> Steps:
            counts = np.zeros((self.size, self.size), np.int64)
            counts[self.rank] = [share.size for share in inputs]
            if even:
                counts[:] = counts[self.rank]
            elif relays:  # a rank that relays blocks must know their sizes
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
        """Exchange rows whose number the receivers do not know, as for tokens that a router sends to experts.

        The Work's `result` is the number of rows received from each rank. Algorithms, see `all_to_all_v`:

        - "late_counts" sends the real rows, to eight peers at a time; "late_counts_at_once", to all peers at once;
        - "padded" sends M rows to every rank, to eight peers at a time;
        - "told_counts" sends only the rows, because `output_split_sizes` says how many come from each rank.

        Args:
            output: Array of shape (size, M, ...), with room for M rows from each rank; the first ones are filled.
            input: Rows for rank 0, then for rank 1 and so on.
            input_split_sizes: Rows for each rank.
            algorithm: One of the above, or a RowsAlgorithm.
            async_op: Return at once; the Work is done later.
            timeout_s: Timeout in seconds; None: the communicator's.
            output_split_sizes: Rows that come from each rank, with "told_counts" only.
        """
        exchange = self._rows_exchange(output, input, input_split_sizes, algorithm, output_split_sizes)
        about = OperationInfo(input, algorithm if isinstance(algorithm, str) else "")
        return self._collective(
            "all_to_all_v_dynamic", exchange.steps, async_op, timeout_s, about, exchange.received_counts
        )

    def _rows_exchange(
        self,
        output: Array,
        input: Array,
        input_split_sizes: Sequence[int],
        algorithm: str | RowsAlgorithm,
        output_split_sizes: Sequence[int] | None,
    ) -> all_to_all_v.Exchange:
        rows_algorithm = rows_algorithm_of(ALL_TO_ALL_V, algorithm)
        check_array(output, "output", writes=True)
        check_array(input, "input", like=output)
        if output.ndim < 2 or output.shape[0] != self.size or output.shape[2:] != input.shape[1:]:
            expected = f"({self.size}, maximum rows of any rank, *{input.shape[1:]})"
            raise ValueError(f"output: got shape {output.shape}, expected {expected}")
        bounds = split_bounds(input, "input", input_split_sizes, self.size)
        most = output.shape[1]
        if max(input_split_sizes) > most:
            expected = f"at most {most} rows, the room in output"
            raise ValueError(f"input_split_sizes: got {max(input_split_sizes)}, expected {expected}")
        rows = [
            share.reshape(count, *input.shape[1:])
            for share, count in zip(shares(input, bounds), input_split_sizes, strict=True)
        ]
        sent = [rows_algorithm.sent(count, most) for count in input_split_sizes]
        rows = [padded(share, count) for share, count in zip(rows, sent, strict=True)]
        known = self._known_counts(output_split_sizes, rows_algorithm.counts_known, most)
        return all_to_all_v.Exchange(
            self._group, self.rank, rows, output, input_split_sizes, rows_algorithm, known
        )

    def _known_counts(self, sizes: Sequence[int] | None, required: bool, most: int) -> list[int] | None:
        if required != (sizes is not None):
            expected = "the rows from each rank" if required else "None, except with told_counts"
            raise ValueError(f"output_split_sizes: got {sizes}, expected {expected}")
        if sizes is not None and (len(sizes) != self.size or not all(0 <= size <= most for size in sizes)):
            expected = f"{self.size} sizes of 0 to {most} rows, the room in output"
            raise ValueError(f"output_split_sizes: got {list(sizes)}, expected {expected}")
        return None if sizes is None else list(sizes)

    def _check_counts(self, counts: Array, outputs: Sequence[Array]) -> None:
        """Check that the sizes announced by all ranks are sane and match what this rank expects."""
        expected = [share.size for share in outputs]
        if counts.min() < 0 or counts.max() > LARGEST_COUNT or counts[:, self.rank].tolist() != expected:
            raise TransportError(
                f"rank {self.transport.rank}: shares announced by the peers: got {counts[:, self.rank].tolist()} "
                f"elements for this rank, expected {expected}"
            )


@dataclass(frozen=True)
class DispatchHandle:
    """Layout of a dispatch, for its combine and for later dispatches with the same counts.

    slices: rows of each slice, as [begin, end) in the input.
    indices: the slices sent to rank 0, then those sent to rank 1 and so on.
    block_lengths: the number of slices sent to each rank.
    received_rows: rows received from each rank, once they have arrived.
    """

    slices: tuple[tuple[int, int], ...]
    indices: tuple[int, ...]
    block_lengths: tuple[int, ...]
    received_rows: Sequence[int]

    @property
    def sent(self) -> list[int]:
        """Rows sent to each rank."""
        return [sum(end - begin for begin, end in block) for block in self.blocks()]

    def blocks(self) -> Iterator[list[tuple[int, int]]]:
        """Yield the slices for each rank."""
        first = 0
        for length in self.block_lengths:
            yield [self.slices[index] for index in self.indices[first : first + length]]
            first += length


class DispatchCombine(AllToAll):
    """Dispatch and combine as in NCCLX's all-to-all-v with dynamic counts; replicated experts get the same slice."""

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
        """Send slices of `input` to ranks, and receive theirs into `output` by source rank.

        Sends 8 (n - 1) bytes and the rows, or only the rows with `handle`. The Work's `result` is a DispatchHandle.

        Args:
            output: Array of shape (size, M, ...), with room for M rows from each rank.
            input: The rows, slice after slice.
            split_lengths: Rows of each slice.
            indices: Slices to send, those for rank 0 first.
            block_lengths: The number of indices for each rank.
            handle: Handle of an earlier dispatch with the same rows from each rank: no counts are sent.
            async_op: Return at once; the Work is done later.
            timeout_s: Timeout in seconds; None: the communicator's.
        """
        planned = self._planned(input, split_lengths, indices, block_lengths)
        rows = [input[begin:end] for block in planned.blocks() for begin, end in block]
        packed = np.concatenate(rows) if rows else input[:0]
        algorithm, known = ("late_counts", None) if handle is None else ("told_counts", handle.received_rows)
        exchange = self._rows_exchange(output, packed, planned.sent, algorithm, known)
        about = OperationInfo(input, algorithm)
        result = replace(planned, received_rows=exchange.received_counts)
        return self._collective("dispatch", exchange.steps, async_op, timeout_s, about, result)

    def combine(
        self,
        output: Array,
        input: Array,
        handle: DispatchHandle,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Work:
        """Return the rows of a dispatch to their ranks.

        A slice that was sent to several ranks becomes the sum of what they return; rows that were sent nowhere are
        unchanged. Both ends know the counts, so only rows are sent.

        Args:
            output: Array of the shape of the dispatch's input.
            input: Array of shape (size, M, ...), as received by the dispatch.
            handle: The result of the dispatch.
            async_op: Return at once; the Work is done later.
            timeout_s: Timeout in seconds; None: the communicator's.
        """
        check_array(output, "output", writes=True)
        check_array(input, "input", like=output)
        if input.ndim < 2 or input.shape[0] != self.size or input.shape[2:] != output.shape[1:]:
            expected = f"({self.size}, maximum rows of any rank, *{output.shape[1:]})"
            raise ValueError(f"input: got shape {input.shape}, expected {expected}")
        algorithm, sent = rows_algorithm_of(ALL_TO_ALL_V, "told_counts"), handle.sent
        room = np.empty((self.size, max((*sent, 1)), *output.shape[1:]), output.dtype)
        rows = [input[rank, :count] for rank, count in enumerate(handle.received_rows)]
        exchange = all_to_all_v.Exchange(
            self._group, self.rank, rows, room, handle.received_rows, algorithm, sent
        )

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
        """Return the layout of a dispatch before any of its rows are received. Raises ValueError."""
        check_array(input, "input")
        if any(length < 0 for length in lengths) or sum(lengths) > len(input):
            raise ValueError(
                f"split_lengths: got {list(lengths)}, expected lengths that add up to at most {len(input)} rows"
            )
        if len(blocks) != self.size or any(block < 0 for block in blocks) or sum(blocks) != len(indices):
            expected = f"{self.size} numbers that add up to the {len(indices)} indices"
            raise ValueError(f"block_lengths: got {list(blocks)}, expected {expected}")
        if wrong := [index for index in indices if not 0 <= index < len(lengths)]:
            raise ValueError(f"indices: got {wrong[0]}, expected 0 to {len(lengths) - 1}")
        ends = np.cumsum([0, *lengths]).tolist()
        slices = tuple(pairwise(ends))
        return DispatchHandle(slices, tuple(indices), tuple(blocks), (0,) * self.size)

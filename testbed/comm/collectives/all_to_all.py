"""All-to-all of a communicator's ranks, with shares that both ends know, or only the one that sends them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from testbed.comm.collectives.algorithms import all_to_all_v
from testbed.comm.collectives.algorithms.all_to_all import relays_blocks
from testbed.comm.collectives.async_work import Work
from testbed.comm.collectives.data import Array, PairBlocks
from testbed.comm.collectives.definitions import ALL_TO_ALL, ALL_TO_ALL_V
from testbed.comm.collectives.flight_entries import About
from testbed.comm.collectives.operations import check_array, padded, shares, split_bounds
from testbed.comm.collectives.plan_executor import carry_out
from testbed.comm.collectives.progress_engine import Position, Steps
from testbed.comm.collectives.registry import AUTO, Algorithm, RowsAlgorithm, algorithm_of, rows_algorithm_of
from testbed.comm.collectives.rma_windows import Windowed
from testbed.comm.transport import TransportError

LARGE_BYTES = 1 << 40
LARGEST_COUNT = 1 << 36


class AllToAll(Windowed):
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
            yield from carry_out(self._group, plan.plan, data, tag + 1, position)

        about = About(input, plan.algorithm)
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
        about = About(input, algorithm if isinstance(algorithm, str) else "")
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

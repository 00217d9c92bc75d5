"""Buffers and windows of a rank's collectives: filled with data whose result is known, and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from testbed.clock import private_memory
from testbed.comm.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    Array,
    Communicator,
    Window,
    Work,
    collective_of,
    count_wrong_among,
    count_wrong_output,
    dtype_named,
    fill,
    rows_algorithm_of,
)
from testbed.workload.plan import GATHERED, REDUCED, Block, RankPlan
from testbed.workload.plan_volume import block_elements
from testbed.workload.uniform_plans import uneven_rows


def zeros(numel: int, dtype: str) -> Array:
    """Return a new array in separate memory."""
    kind = dtype_named(dtype)
    return np.frombuffer(private_memory(numel * kind.itemsize), dtype=kind, count=numel)


class CollectiveArrays:
    """A rank's arrays for one collective over `size` ranks.

    `numel` is the number of elements of the larger array. It is a multiple of `size` if that array is split by ranks.
    """

    def __init__(
        self, collective: str, numel: int, dtype: str, rank: int, size: int, op: str = "sum"
    ) -> None:
        self.collective = collective_of(collective)
        self.numel = numel
        self.rank = rank
        self.size = size
        self.op = op
        own, others = self.collective.elements(numel, rank, size)
        self.input = zeros(own, dtype)
        self.output = self.input if others is None else zeros(others, dtype)
        if self.collective.uneven:
            self._most = self.input
            part = self.collective.part(numel, size)
            self.output = self.output.reshape(size, part)
            self.use_rows(uneven_rows(size, part))

    def use_rows(self, rows: Sequence[Sequence[int]]) -> None:
        """Set the elements that each rank (row) sends to each other in an all_to_all_v, at most the maximum part."""
        self.rows = rows
        self.input = self._most[: sum(rows[self.rank])]

    @property
    def nbytes(self) -> int:
        """Size of the larger array in bytes."""
        return int(max(self.input.nbytes, self.output.nbytes))

    def start(self, communicator: Communicator, algorithm: str, async_op: bool = False) -> Work:
        """Start the collective and return its Work, which is already complete unless `async_op`."""
        output, input = self.output, self.input
        if self.collective.uneven:
            output_sizes = None
            if rows_algorithm_of(self.collective, algorithm).counts_known:
                output_sizes = [rows[self.rank] for rows in self.rows]
            self._exchange = communicator.all_to_all_v_dynamic(
                output,
                input,
                self.rows[self.rank],
                algorithm,
                async_op,
                output_split_sizes=output_sizes,
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
        """Fill the input with data whose result is known."""
        fill(self.input, self.rank, salt, self.op)

    def count_wrong(self, salt: int = 0, among: Sequence[int] | None = None) -> int:
        """Return the number of wrong elements in the result.

        `among` are the ranks that took part in an all-reduce; None means all ranks.
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


Checked = Callable[[int, int], None]
"""Called with the numbers of wrong and of checked elements."""
CALLS = 100_000  # limit on calls of a group's windows in a step, so that no two calls have the same data


class BlockWindows:
    """The windows of a rank's one-sided blocks, by group; creating them is a collective operation.

    The blocks of a gather have the ranks' patterns. The blocks of a reduction have partial sums that include each
    rank's own part. The final content of the windows is checked completely.
    """

    def __init__(self, plan: RankPlan, groups: Mapping[int, Communicator], dtype: str) -> None:
        self._of = {
            number: _GroupWindows(groups[number], numel, dtype)
            for number, numel in block_elements(plan).items()
        }

    def start(
        self, block: Block, salt: int, timeout_s: float, on_checked: Checked
    ) -> tuple[Work, Callable[[], None]]:
        """Start sending or receiving a block; return its Work and the callback for when that is complete."""
        own = self._of[block.group]
        if block.sends:
            return own.send(block, salt, timeout_s), lambda: None
        work = own.windows[block.window].wait_signal(own.member(block.peer), True, timeout_s)
        return work, lambda: own.receive(block, salt, on_checked)


class _GroupWindows:
    def __init__(self, group: Communicator, numel: int, dtype: str) -> None:
        self.group = group
        size = group.size
        # whole blocks in the order of members, and a partial sum for each other member
        self.windows: dict[str, Window] = {
            GATHERED: group.new_window(np.zeros(numel * size, dtype)),
            REDUCED: group.new_window(np.zeros(numel * (size - 1), dtype)),
        }
        self._parts = np.zeros(numel * size, dtype)  # this rank's parts of the sums
        self._filled: dict[str, int] = {}
        self._received: dict[str, list[tuple[int, int]]] = {}  # blocks of the latest call, and their slots

    def member(self, rank: int) -> int:
        return list(self.group.ranks).index(rank)

    def send(self, block: Block, salt: int, timeout_s: float) -> Work:
        self._begin(block, salt)
        numel, peer = block.numel, self.member(block.peer)
        if block.window == GATHERED:
            array = self._place(block, block.block)
        else:
            array = self._parts[block.block * numel : (block.block + 1) * numel].copy()
            self._add(array, block)
        window = self.windows[block.window]
        work = window.put(array, peer, block.slot * numel, True, timeout_s)
        window.signal(peer, True, timeout_s)
        return work

    def receive(self, block: Block, salt: int, on_checked: Checked) -> None:
        """Record a received block, and check the whole window after the last one."""
        size = self.group.size
        self._begin(block, salt)
        self._received[block.window].append((block.block, block.slot))
        if len(self._received[block.window]) < size - 1:
            return
        numel, place, seed = block.numel, self.group.rank, _salt(block, salt)
        if block.window == GATHERED:
            whole, collective = self.windows[GATHERED].array[: numel * size], ALL_GATHER
        else:
            whole, collective = self._parts[place * numel : (place + 1) * numel].copy(), REDUCE_SCATTER
            self._add(whole, block, place)
        on_checked(count_wrong_output(collective, whole, place, size, seed, "sum"), whole.size)

    def _begin(self, block: Block, salt: int) -> None:
        """Fill this rank's data for a call, unless that is done already."""
        seed = _salt(block, salt)
        if self._filled.get(block.window) == seed:
            return
        self._filled[block.window], self._received[block.window] = seed, []
        place, numel = self.group.rank, block.numel
        if block.window == GATHERED:
            fill(self._place(block, place), place, seed)
        else:
            fill(self._parts[: numel * self.group.size], place, seed)

    def _place(self, block: Block, slot: int) -> Array:
        return self.windows[block.window].array[slot * block.numel : (slot + 1) * block.numel]

    def _add(self, array: Array, block: Block, which: int | None = None) -> None:
        """Add the received partial sums of a block."""
        for number, slot in self._received[block.window]:
            if number == (block.block if which is None else which):
                array += self._place(block, slot)


def _salt(block: Block, salt: int) -> int:
    return salt * CALLS + 2 * block.call + (block.window == REDUCED)

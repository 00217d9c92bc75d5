"""The windows of a rank's groups, and the blocks of a plan that go into its members' and come into its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from testbed.comm.collectives import (
    ALL_GATHER,
    REDUCE_SCATTER,
    Array,
    Communicator,
    Window,
    Work,
    count_wrong_output,
    fill,
)
from testbed.workload.plan import GATHERED, REDUCED, Block, RankPlan
from testbed.workload.plan_volume import block_elements

Checked = Callable[[int, int], None]
"""Told of elements that were wrong, and of those that were looked at."""
CALLS = 100_000  # of a group's windows in a step, at most, so that no two have the same data


class BlockWindows:
    """What a rank's blocks go through, group by group; all members make theirs at once.

    A gather's blocks are ranks' patterns, of a reduction's partial sums every rank's own part is one; what is there in
    the end is looked at, all of it.
    """

    def __init__(self, plan: RankPlan, groups: Mapping[int, Communicator], dtype: str) -> None:
        self._of = {
            number: _GroupWindows(groups[number], numel, dtype)
            for number, numel in block_elements(plan).items()
        }

    def start(
        self, block: Block, salt: int, timeout_s: float, told: Checked
    ) -> tuple[Work, Callable[[], None]]:
        """One end of a block's way, and what is to be done when that is over."""
        own = self._of[block.group]
        if block.sends:
            return own.send(block, salt, timeout_s), lambda: None
        work = own.windows[block.window].wait_signal(own.member(block.peer), True, timeout_s)
        return work, lambda: own.come(block, salt, told)


class _GroupWindows:
    def __init__(self, group: Communicator, numel: int, dtype: str) -> None:
        self.group = group
        size = group.size
        # whole blocks in the members' order, and as many partial sums as there are other members
        self.windows: dict[str, Window] = {
            GATHERED: group.new_window(np.zeros(numel * size, dtype)),
            REDUCED: group.new_window(np.zeros(numel * (size - 1), dtype)),
        }
        self._parts = np.zeros(numel * size, dtype)  # this rank's, of sums
        self._filled: dict[str, int] = {}
        self._come: dict[str, list[tuple[int, int]]] = {}  # blocks of the latest call, and their places

    def member(self, rank: int) -> int:
        """A rank's place in the group."""
        return list(self.group.ranks).index(rank)

    def send(self, block: Block, salt: int, timeout_s: float) -> Work:
        self._begin(block, salt)
        numel, there = block.numel, self.member(block.peer)
        if block.window == GATHERED:
            array = self._place(block, block.block)
        else:
            array = self._parts[block.block * numel : (block.block + 1) * numel].copy()
            self._add(array, block)
        window = self.windows[block.window]
        work = window.put(array, there, block.slot * numel, True, timeout_s)
        window.signal(there, True, timeout_s)
        return work

    def come(self, block: Block, salt: int, told: Checked) -> None:
        """One more is there; with the last one all of it is looked at."""
        size = self.group.size
        self._begin(block, salt)
        self._come[block.window].append((block.block, block.slot))
        if len(self._come[block.window]) < size - 1:
            return
        numel, place, seed = block.numel, self.group.rank, _salt(block, salt)
        if block.window == GATHERED:
            whole, collective = self.windows[GATHERED].array[: numel * size], ALL_GATHER
        else:
            whole, collective = self._parts[place * numel : (place + 1) * numel].copy(), REDUCE_SCATTER
            self._add(whole, block, place)
        told(count_wrong_output(collective, whole, place, size, seed, "sum"), whole.size)

    def _begin(self, block: Block, salt: int) -> None:
        """This rank's data of a call, once."""
        seed = _salt(block, salt)
        if self._filled.get(block.window) == seed:
            return
        self._filled[block.window], self._come[block.window] = seed, []
        place, numel = self.group.rank, block.numel
        if block.window == GATHERED:
            fill(self._place(block, place), place, seed)
        else:
            fill(self._parts[: numel * self.group.size], place, seed)

    def _place(self, block: Block, slot: int) -> Array:
        return self.windows[block.window].array[slot * block.numel : (slot + 1) * block.numel]

    def _add(self, array: Array, block: Block, which: int | None = None) -> None:
        """What has come of a block's partial sums."""
        for number, slot in self._come[block.window]:
            if number == (block.block if which is None else which):
                array += self._place(block, slot)


def _salt(block: Block, salt: int) -> int:
    return salt * CALLS + 2 * block.call + (block.window == REDUCED)

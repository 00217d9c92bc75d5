"""What one tensor-parallel rank computes and sends where the sequence is gathered, and sums are reduced, in blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from testbed.workload.parallelism import TENSOR
from testbed.workload.plan import GATHERED, REDUCED, Block, Operation
from testbed.workload.schedules import Kind
from testbed.workload.sequence_blocks import BlockWise, Hop, gathering, reducing


class Planner(Protocol):
    """A rank's plan on its way: see `layers.LayerPlanner`."""

    rank: int
    gate: list[int]
    computed: list[int]

    def add(self, operation: Operation) -> int:
        """Returns its index in the plan."""

    def compute(self, name: str, kind: Kind, seconds: float) -> None:
        """Compute for so long, in real seconds, once the gate is open."""


class BlockPlanner:
    """For the rank of one planner. number, members: of its tensor group."""

    def __init__(self, planner: Planner, blocks: BlockWise, number: int, members: Sequence[int]) -> None:
        self.size = len(members)
        self._planner, self._blocks = planner, blocks
        self._number, self._members = number, members
        nodes = [blocks.nodes[member] for member in members]
        self._place = members.index(planner.rank)
        self._there, self._back = (way(blocks.way, nodes)[self._place] for way in (gathering, reducing))
        self._sent: Counter[tuple[int, bool]] = Counter()  # blocks to and from each peer
        self._calls: Counter[str] = Counter()  # of each window

    def plan(self, name: str, kind: Kind, seconds: float, rows: float, numel: int) -> None:
        """Half of the computing is on the sequence as it is gathered, half gives partial sums, which are reduced.

        rows: of the products, on all of the sequence. numel: elements of a block.
        """
        planner, overlaps = self._planner, self._blocks.overlaps
        block_s = seconds / 2 / self.size * self._blocks.longer(rows, self.size)
        begins = tuple({*planner.gate, *planner.computed[-1:]})
        come = {hop.block: self._add(name, GATHERED, hop, numel, begins) for hop in self._there.receives}
        for hop in self._there.sends:
            after = begins if hop.block == self._place else (come[hop.block],)
            self._add(name, GATHERED, hop, numel, after, sends=True)
        self._calls[GATHERED] += 1
        if overlaps:
            for block in self._there.order:
                planner.gate = [come[block]] if block != self._place else list(begins)
                planner.compute(f"{name} of block {block}", kind, block_s)
        else:
            planner.gate = [*begins, *come.values()]
            planner.compute(name, kind, seconds / 2)

        begins = tuple(planner.computed[-1:])
        if not overlaps:
            planner.compute(name, kind, seconds / 2)
        whole = dict.fromkeys(self._back.order, planner.computed[-1])
        if overlaps:
            for block in self._back.order:
                planner.compute(f"{name} for block {block}", kind, block_s)
                whole[block] = planner.computed[-1]
        sums: dict[int, list[int]] = {block: [] for block in self._back.order}
        for hop in self._back.receives:
            sums[hop.block].append(self._add(name, REDUCED, hop, numel, begins))
        # what is sent has been read, before anybody writes there again
        planner.gate = [
            self._add(name, REDUCED, hop, numel, (whole[hop.block], *sums[hop.block]), sends=True)
            for hop in self._back.sends
        ]
        self._calls[REDUCED] += 1
        planner.gate += sums[self._place]

    def _add(
        self, name: str, window: str, hop: Hop, numel: int, after: tuple[int, ...], sends: bool = False
    ) -> int:
        """One end of a block's way. Those to and from a peer go in one order, in which both ends count them."""
        peer = self._members[hop.peer]
        tag = self._sent[peer, sends]
        self._sent[peer, sends] += 1
        what = f"{name} {window} block {hop.block} {'to' if sends else 'of'} {peer}"
        stream, call = f"{TENSOR} {'to' if sends else 'from'} {peer}", self._calls[window]
        return self._planner.add(
            Block(
                *(what, stream, TENSOR, after, peer, numel, tag, sends),
                *(self._number, window, hop.block, hop.slot, call),
            )
        )

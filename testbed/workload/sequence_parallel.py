"""Sequence parallelism: how tensor-parallel ranks gather a sequence and reduce partial sums, whole or in blocks.

A sequence has as many blocks as there are members, and each member owns one. Gathering: every member sends its own
block and forwards those of others. Reducing is the reverse: partial sums of a block travel the same route backwards,
and each member on it adds its own. After NCCLX's overlap of tensor parallelism (arXiv:2510.20171, section 5.2): a ring;
or a tree, in which a block crosses from node to node once, while those within each node move, and is spread there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import NamedTuple, Protocol

from testbed.workload.parallelism import TENSOR, ParallelismError
from testbed.workload.plan import GATHERED, REDUCED, Block, Operation
from testbed.workload.schedules import Kind

RING, TREE = "ring", "tree"


class Hop(NamedTuple):
    """One end of a block's way: the member at the other end, whose block, the place in its receiver's window."""

    peer: int
    block: int
    slot: int


class Exchange(NamedTuple):
    """One member's part. order: of blocks, as they are computed. sends, receives: of each peer's in their order."""

    order: tuple[int, ...]
    sends: tuple[Hop, ...]
    receives: tuple[Hop, ...]


class _Send(NamedTuple):
    source: int
    target: int
    block: int


def gather_exchanges(way: str, nodes: Sequence[int]) -> tuple[Exchange, ...]:
    """Of every member; nodes: of the members. Blocks are in a window in the members' order. ParallelismError."""
    return _gather(way, tuple(nodes))


def reduce_exchanges(way: str, nodes: Sequence[int]) -> tuple[Exchange, ...]:
    """Of every member. A window has a place for each partial sum that comes: so many as there are other members."""
    return _reduce(way, tuple(nodes))


@cache
def _gather(way: str, nodes: tuple[int, ...]) -> tuple[Exchange, ...]:
    orders, sends = _ring(len(nodes), 1) if way == RING else _tree(nodes)
    return tuple(
        Exchange(
            order,
            tuple(Hop(send.target, send.block, send.block) for send in sends if send.source == own),
            tuple(Hop(send.source, send.block, send.block) for send in sends if send.target == own),
        )
        for own, order in enumerate(orders)
    )


@cache
def _reduce(way: str, nodes: tuple[int, ...]) -> tuple[Exchange, ...]:
    # backwards, a ring goes the other way round
    orders, sends = _ring(len(nodes), -1) if way == RING else _tree(nodes)
    orders = [tuple(reversed(order)) for order in orders]
    sends = [_Send(target, source, block) for source, target, block in sends]
    sends.sort(key=lambda send: orders[send.source].index(send.block))
    coming = [[send for send in sends if send.target == own] for own in range(len(nodes))]
    return tuple(
        Exchange(
            order,
            tuple(
                Hop(send.target, send.block, coming[send.target].index(send))
                for send in sends
                if send.source == own
            ),
            tuple(Hop(send.source, send.block, slot) for slot, send in enumerate(coming[own])),
        )
        for own, order in enumerate(orders)
    )


def _ring(size: int, step: int) -> tuple[list[tuple[int, ...]], list[_Send]]:
    """Each passes on to the next what it had from the one before, its own first."""
    orders = [tuple((own - step * turn) % size for turn in range(size)) for own in range(size)]
    sends = [
        _Send(own, (own + step) % size, block) for own, order in enumerate(orders) for block in order[:-1]
    ]
    return orders, sends


def _tree(nodes: Sequence[int]) -> tuple[list[tuple[int, ...]], list[_Send]]:
    """To those of the same place in other nodes first, then to one's own node; what comes from others on to that."""
    members = sorted(range(len(nodes)), key=lambda member: (nodes[member], member))
    groups = [list(own) for _, own in groupby(members, key=lambda member: nodes[member])]
    width = len(groups[0])
    if any(len(group) != width for group in groups):
        sizes = ", ".join(str(len(group)) for group in groups)
        raise ParallelismError(
            got=f"a tree of tensor ranks over nodes of {sizes}", expected="as many on each node"
        )
    orders, sends = [], []
    for own in range(len(nodes)):
        here = next(group for group in groups if own in group)
        place = here.index(own)
        # others of the node, the next one first, so that not all send to one at once
        near = [here[(place + distance) % width] for distance in range(1, width)]
        coming = near[::-1]  # as they come: the one before sends here first
        far = [group[place] for group in groups if group is not here]
        passed = [group[here.index(peer)] for group in groups if group is not here for peer in coming]
        orders.append((own, *coming, *far, *passed))
        sends += [_Send(own, peer, own) for peer in (*far, *near)]
        sends += [_Send(own, peer, block) for block in far for peer in near]
    return orders, sends


@dataclass(frozen=True)
class BlockWise:
    """That tensor ranks work in blocks. overlaps: computing on those that are there, while others are on their way.

    nodes: of all ranks. half_rows: rows of a matrix at which products run at half their speed.
    """

    way: str
    overlaps: bool
    nodes: Sequence[int]
    half_rows: float = 0.0

    def longer(self, rows: float, blocks: int) -> float:
        """By how much products of so many rows take longer in so many blocks: speed goes as m / (m + half_rows)."""
        return (1 + self.half_rows * blocks / rows) / (1 + self.half_rows / rows) if rows else 1.0


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
        self._there, self._back = (
            way(blocks.way, nodes)[self._place] for way in (gather_exchanges, reduce_exchanges)
        )
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

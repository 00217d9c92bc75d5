"""Sequence parallelism: how tensor-parallel ranks gather a sequence and reduce partial sums block by block.

A sequence has one block per member of the group, and each member owns one. To gather, every member sends its own block
and forwards those of others. To reduce, partial sums of a block travel the same route backwards, and each member on the
route adds its own. The algorithms follow NCCLX's overlap of tensor parallelism (arXiv:2510.20171, section 5.2). One is
a ring. The other is a tree, in which a block crosses from node to node once and is distributed within the node, while
other blocks move within each node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import NamedTuple

from testbed.workload.layer_compute import ComputePlanner
from testbed.workload.parallelism import TENSOR, ParallelismError
from testbed.workload.plan import GATHERED, REDUCED, Block
from testbed.workload.schedules import Kind

RING, TREE = "ring", "tree"


class Hop(NamedTuple):
    """One end of a block's transfer.

    Attributes:
        peer: Member at the other end.
        block: Owner of the block.
        slot: Position in the receiver's window.
    """

    peer: int
    block: int
    slot: int


class Exchange(NamedTuple):
    """One member's part of a gather or a reduction.

    Attributes:
        order: Blocks in the order in which they are computed.
        sends: Sends, in order for each peer.
        receives: Receives, in order for each peer.
    """

    order: tuple[int, ...]
    sends: tuple[Hop, ...]
    receives: tuple[Hop, ...]


class _Send(NamedTuple):
    source: int
    target: int
    block: int


@cache
def gather_exchanges(algorithm: str, nodes: tuple[int, ...]) -> tuple[Exchange, ...]:
    """Return every member's part of a gather; blocks are in the window in the members' order.

    Args:
        algorithm: RING or TREE.
        nodes: Node of each member.

    Raises:
        ParallelismError: If a tree spans nodes with different numbers of members.
    """
    orders, sends = _ring(len(nodes), 1) if algorithm == RING else _tree(nodes)
    return _exchanges(orders, sends, [send.block for send in sends])


@cache
def reduce_exchanges(algorithm: str, nodes: tuple[int, ...]) -> tuple[Exchange, ...]:
    """Return every member's part of a reduction.

    The window has a slot for each arriving partial sum, one per other member.
    """
    # in a reduction, the ring has the opposite direction
    orders, sends = _ring(len(nodes), -1) if algorithm == RING else _tree(nodes)
    orders = [tuple(reversed(order)) for order in orders]
    sends = [_Send(target, source, block) for source, target, block in sends]
    sends.sort(key=lambda send: orders[send.source].index(send.block))
    arrived: Counter[int] = Counter()
    slots = []
    for send in sends:
        slots.append(arrived[send.target])
        arrived[send.target] += 1
    return _exchanges(orders, sends, slots)


def _exchanges(
    orders: Sequence[tuple[int, ...]], sends: Sequence[_Send], slots: Sequence[int]
) -> tuple[Exchange, ...]:
    """Return every member's part, given the slot of each send in the receiver's window."""
    placed = list(zip(sends, slots, strict=True))
    return tuple(
        Exchange(
            order,
            tuple(Hop(send.target, send.block, slot) for send, slot in placed if send.source == own),
            tuple(Hop(send.source, send.block, slot) for send, slot in placed if send.target == own),
        )
        for own, order in enumerate(orders)
    )


def _ring(size: int, step: int) -> tuple[list[tuple[int, ...]], list[_Send]]:
    """Return a ring: send the own block first, then forward to the next member the blocks of the previous one."""
    orders = [tuple((own - step * turn) % size for turn in range(size)) for own in range(size)]
    sends = [
        _Send(own, (own + step) % size, block) for own, order in enumerate(orders) for block in order[:-1]
    ]
    return orders, sends


def _tree(nodes: Sequence[int]) -> tuple[list[tuple[int, ...]], list[_Send]]:
    """Return a tree: send to counterparts in other nodes first, then all blocks received from them within the node."""
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
        # peers of the node, starting with the next one, so that they do not all send to the same peer at once
        near = [here[(place + distance) % width] for distance in range(1, width)]
        incoming = near[::-1]  # in order of arrival: the previous peer sends here first
        far = [group[place] for group in groups if group is not here]
        passed = [group[here.index(peer)] for group in groups if group is not here for peer in incoming]
        orders.append((own, *incoming, *far, *passed))
        sends += [_Send(own, peer, own) for peer in (*far, *near)]
        sends += [_Send(own, peer, block) for block in far for peer in near]
    return orders, sends


@dataclass(frozen=True)
class BlockWise:
    """The settings by which tensor-parallel ranks work in blocks.

    Attributes:
        algorithm: RING or TREE.
        overlaps: Whether ranks compute on blocks that are present while others are in flight.
        nodes: Node of each rank.
        half_rows: Number of matrix rows at which matrix products run at half their peak speed.
    """

    algorithm: str
    overlaps: bool
    nodes: Sequence[int]
    half_rows: float = 0.0

    def slowdown(self, rows: float, blocks: int) -> float:
        """Return the factor by which products of this many rows slow down when divided into this many blocks.

        Speed with m rows is proportional to m / (m + half_rows).
        """
        return (1 + self.half_rows * blocks / rows) / (1 + self.half_rows / rows) if rows else 1.0


class BlockPlanner:
    """A planner of gathers and reductions in blocks for one rank.

    Attributes:
        size: Number of members of the rank's tensor-parallel group.
    """

    def __init__(
        self, planner: ComputePlanner, blocks: BlockWise, number: int, members: Sequence[int]
    ) -> None:
        self.size = len(members)
        self._planner, self._blocks = planner, blocks
        self._number, self._members = number, members
        nodes = tuple(blocks.nodes[member] for member in members)
        self._place = members.index(planner.rank)
        self._gather_part, self._reduce_part = (
            make(blocks.algorithm, nodes)[self._place] for make in (gather_exchanges, reduce_exchanges)
        )
        self._sent: Counter[tuple[int, bool]] = Counter()  # number of blocks to and from each peer
        self._calls: Counter[str] = Counter()  # number of calls by window

    def plan(self, name: str, kind: Kind, seconds: float, rows: float, numel: int) -> None:
        """Plan a gather, computation on the sequence, computation of partial sums, and their reduction.

        Args:
            name: Name of the layer's part.
            kind: Kind of the action.
            seconds: Real seconds of computation, half on the gathered sequence and half for the partial sums.
            rows: Number of rows of the products, over the whole sequence.
            numel: Number of elements of a block.
        """
        planner, overlaps = self._planner, self._blocks.overlaps
        block_s = seconds / 2 / self.size * self._blocks.slowdown(rows, self.size)
        begins = tuple({*planner.gate, *planner.computed[-1:]})
        arrived = {
            hop.block: self._add(name, GATHERED, hop, numel, begins) for hop in self._gather_part.receives
        }
        for hop in self._gather_part.sends:
            after = begins if hop.block == self._place else (arrived[hop.block],)
            self._add(name, GATHERED, hop, numel, after, sends=True)
        self._calls[GATHERED] += 1
        if overlaps:
            for block in self._gather_part.order:
                planner.gate = [arrived[block]] if block != self._place else list(begins)
                planner.compute(f"{name} of block {block}", kind, block_s)
        else:
            planner.gate = [*begins, *arrived.values()]
            planner.compute(name, kind, seconds / 2)

        begins = tuple(planner.computed[-1:])
        if not overlaps:
            planner.compute(name, kind, seconds / 2)
        whole = dict.fromkeys(self._reduce_part.order, planner.computed[-1])
        if overlaps:
            for block in self._reduce_part.order:
                planner.compute(f"{name} for block {block}", kind, block_s)
                whole[block] = planner.computed[-1]
        sums: dict[int, list[int]] = {block: [] for block in self._reduce_part.order}
        for hop in self._reduce_part.receives:
            sums[hop.block].append(self._add(name, REDUCED, hop, numel, begins))
        # sent data has been read before the window is written again
        planner.gate = [
            self._add(name, REDUCED, hop, numel, (whole[hop.block], *sums[hop.block]), sends=True)
            for hop in self._reduce_part.sends
        ]
        self._calls[REDUCED] += 1
        planner.gate += sums[self._place]

    def _add(
        self, name: str, window: str, hop: Hop, numel: int, after: tuple[int, ...], sends: bool = False
    ) -> int:
        """Add one end of a block's transfer.

        Tags count the transfers to and from each peer, in the same order on both ends.
        """
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

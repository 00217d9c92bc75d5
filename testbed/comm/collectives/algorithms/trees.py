"""Tree algorithms: from one rank to all ranks, from all ranks into one, and all-reduce over two trees at once.

n is the number of ranks, B the array's bytes. Large arrays are sent in `chunks`, each on its own strand, so that a
rank forwards one chunk while the next arrives.
"""

from __future__ import annotations

from collections.abc import Sequence

from testbed.comm.collectives.plan import Plan, Round, Strand, Transfer, even, runs_of
from testbed.comm.collectives.registry import (
    BROADCAST,
    GATHER,
    REDUCE,
    SCATTER,
    Pieces,
    PlanRequest,
    large,
    small,
)

# a chunk is forwarded while the next one arrives
CHUNKS = Pieces(64, 256 * 1024)


def binomial_children(position: int, size: int) -> list[int]:
    """Return the children of the rank at `position` from the root, the farthest and thus deepest first."""
    bit = 1
    while bit < size and not position & bit:
        bit *= 2
    found = []
    while bit > 1:
        bit //= 2
        if position + bit < size:
            found.append(position + bit)
    return found


@BROADCAST.register("binomial", auto=small)
def binomial_broadcast(request: PlanRequest) -> Plan:
    """Broadcast: the root sends to the rank half-way around, then both do the same in their halves.

    Steps: ceil(log2 n). Each rank but the root receives B; the root sends to ceil(log2 n) ranks.
    """
    rank, size, root = request.rank, request.size, request.root
    position = (rank - root) % size
    parent = () if not position else ((root + (position & (position - 1))) % size,)
    children = [(root + child) % size for child in binomial_children(position, size)]
    return _down(parent, children, request.pieces)


@BROADCAST.register("chain", chunks=CHUNKS, auto=large)
def chain_broadcast(request: PlanRequest) -> Plan:
    """Forward the array to the next rank, chunk by chunk: for large arrays every link is busy nearly all the time.

    Steps: n - 2 + chunks. Each rank but the last sends B.
    """
    rank, size, root = request.rank, request.size, request.root
    position = (rank - root) % size
    parent = () if not position else ((rank - 1) % size,)
    children = [(rank + 1) % size] if position + 1 < size else []
    return _down(parent, children, request.pieces)


def _down(parent: Sequence[int], children: Sequence[int], chunks: int) -> Plan:
    strands = []
    for chunk in range(chunks):
        runs = ((chunk, chunk + 1),)
        rounds = []
        if parent:
            rounds.append(Round("broadcast", (), tuple(Transfer(peer, runs) for peer in parent)))
        if children:
            rounds.append(Round("broadcast", tuple(Transfer(peer, runs) for peer in children)))
        strands.append(tuple(rounds))
    return even(chunks, tuple(strands))


@SCATTER.register("direct", auto=large)
def direct_scatter(request: PlanRequest) -> Plan:
    """Send each rank its block from the root. Steps: 1. The root sends B (n - 1) / n."""
    rank, size, root = request.rank, request.size, request.root
    others = [(root + step) % size for step in range(1, size)]
    block = {other: Transfer(other, ((other, other + 1),)) for other in others}
    if rank == root:
        step = Round("scatter", tuple(block.values()))
    else:
        step = Round("scatter", (), (Transfer(root, ((rank, rank + 1),)),))
    return even(size, ((step,),))


@SCATTER.register("binomial", auto=small)
def binomial_scatter(request: PlanRequest) -> Plan:
    """Scatter along a binomial tree, each message with the blocks of the whole subtree.

    Steps: ceil(log2 n). The root sends B (n - 1) / n, in ceil(log2 n) messages.
    """
    rank, size, root = request.rank, request.size, request.root

    def subtree(position: int) -> list[int]:
        reach = position & -position if position else size
        return [(root + p) % size for p in range(position, min(position + reach, size))]

    position = (rank - root) % size
    rounds = []
    if position:
        parent = (root + (position & (position - 1))) % size
        rounds.append(Round("scatter", (), (Transfer(parent, runs_of(subtree(position))),)))
    children = binomial_children(position, size)
    if children:
        sends = tuple(Transfer((root + child) % size, runs_of(subtree(child))) for child in children)
        rounds.append(Round("scatter", sends))
    return even(size, (tuple(rounds),))


REDUCE.register_reversed("binomial", binomial_broadcast, auto=small)
REDUCE.register_reversed("chain", chain_broadcast, chunks=CHUNKS, auto=large)
GATHER.register_reversed("direct", direct_scatter, auto=large)
GATHER.register_reversed("binomial", binomial_scatter, auto=small)


class Tree:
    """A balanced binary tree on positions 0 to size - 1 whose leaves are the even positions."""

    def __init__(self, size: int) -> None:
        self.parent: list[int | None] = [None] * size
        self.children: list[list[int]] = [[] for _ in range(size)]
        if size:
            self._grow(0, size, None)

    def _grow(self, start: int, end: int, parent: int | None) -> None:
        """Build the subtree of positions [start, end), start even; its root is an odd position in the middle."""
        if start >= end:
            return
        middle = start + (end - start) // 2
        root = (
            start
            if end - start == 1
            else middle
            if middle % 2
            else middle - 1
            if middle > start
            else start + 1
        )
        self.parent[root] = parent
        if parent is not None:
            self.children[parent].append(root)
        self._grow(start, root, root)
        self._grow(root + 1, end, root)


def double_tree_strands(members: Sequence[int], index: int, blocks: Sequence[Sequence[int]]) -> list[Strand]:
    """Return an all-reduce over two trees of `members`; blocks[0] use the first tree, blocks[1] the second."""
    size = len(members)
    tree = Tree(size)
    strands = []
    for shift, own in enumerate(blocks):
        # the second tree is the first shifted by one position, so that leaves of one are inner nodes of the other
        position = (index + shift) % size
        parent = tree.parent[position]
        children = [members[(child - shift) % size] for child in tree.children[position]]
        for block in own:
            runs = ((block, block + 1),)
            below = tuple(Transfer(child, runs) for child in children)
            rounds = []
            if below:
                rounds.append(Round("up the trees", (), below, reduces=True))
            if parent is not None:
                above = (Transfer(members[(parent - shift) % size], runs),)
                rounds.append(Round("up the trees", above, above))
            if below:
                rounds.append(Round("down the trees", below))
            strands.append(tuple(rounds))
    return strands

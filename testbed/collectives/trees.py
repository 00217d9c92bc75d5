"""Trees: one rank's array to all, or all ranks' into one, and both at once over two trees.

n is the number of ranks, B the array's bytes. Large arrays go in `chunks`, each on a strand of its own, so that a rank
passes one on while the next comes in.
"""

from __future__ import annotations

from collections.abc import Sequence

from testbed.collectives.plan import Plan, Round, Strand, Transfer, even, runs_of


def binomial_children(place: int, size: int) -> list[int]:
    """Of the rank at a place counted from the root, the farthest and thus deepest first."""
    bit = 1
    while bit < size and not place & bit:
        bit *= 2
    found = []
    while bit > 1:
        bit //= 2
        if place + bit < size:
            found.append(place + bit)
    return found


def binomial_broadcast(rank: int, size: int, root: int, chunks: int = 1) -> Plan:
    """The root tells the rank half the ranks away, then both go on likewise in their halves.

    Steps: ceil(log2 n). B to each rank but the root, which sends to ceil(log2 n) ranks.
    """
    place = (rank - root) % size
    parent = () if not place else ((root + (place & (place - 1))) % size,)
    children = [(root + child) % size for child in binomial_children(place, size)]
    return _down(parent, children, chunks)


def chain_broadcast(rank: int, size: int, root: int, chunks: int = 1) -> Plan:
    """Each rank passes on to the next, chunk by chunk: for large arrays every link is busy nearly all the time.

    Steps: n - 2 + chunks. Each rank but the last sends B.
    """
    place = (rank - root) % size
    parent = () if not place else ((rank - 1) % size,)
    children = [(rank + 1) % size] if place + 1 < size else []
    return _down(parent, children, chunks)


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


def direct_scatter(rank: int, size: int, root: int) -> Plan:
    """The root sends each rank its block. Steps: 1. The root sends B (n - 1) / n."""
    others = [(root + step) % size for step in range(1, size)]
    block = {other: Transfer(other, ((other, other + 1),)) for other in others}
    if rank == root:
        step = Round("scatter", tuple(block.values()))
    else:
        step = Round("scatter", (), (Transfer(root, ((rank, rank + 1),)),))
    return even(size, ((step,),))


def binomial_scatter(rank: int, size: int, root: int) -> Plan:
    """Along a binomial tree, each message with the blocks of all ranks below.

    Steps: ceil(log2 n). The root sends B (n - 1) / n, in ceil(log2 n) messages.
    """

    def below(place: int) -> list[int]:
        reach = place & -place if place else size
        return [(root + p) % size for p in range(place, min(place + reach, size))]

    place = (rank - root) % size
    rounds = []
    if place:
        parent = (root + (place & (place - 1))) % size
        rounds.append(Round("scatter", (), (Transfer(parent, runs_of(below(place))),)))
    children = binomial_children(place, size)
    if children:
        sends = tuple(Transfer((root + child) % size, runs_of(below(child))) for child in children)
        rounds.append(Round("scatter", sends))
    return even(size, (tuple(rounds),))


class Tree:
    """A balanced binary tree on places 0 to size - 1 whose leaves are the even places."""

    def __init__(self, size: int) -> None:
        self.parent: list[int | None] = [None] * size
        self.children: list[list[int]] = [[] for _ in range(size)]
        if size:
            self._grow(0, size, None)

    def _grow(self, start: int, end: int, parent: int | None) -> None:
        """Places [start, end), start being even: the root is the odd one in the middle, or the only one."""
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
    """All-reduce over two trees of `members`; blocks[0] go up and down the first, blocks[1] the second."""
    size = len(members)
    tree = Tree(size)
    strands = []
    for shift, own in enumerate(blocks):
        # the second tree is the first moved by one place, so that leaves of one are inner nodes of the other
        place = (index + shift) % size
        parent = tree.parent[place]
        children = [members[(child - shift) % size] for child in tree.children[place]]
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


def double_tree_all_reduce(rank: int, groups: Sequence[int], chunks: int = 1) -> Plan:
    """Half of the array is reduced up one binary tree and sent down again, the other half along another.

    Nearly every rank is a leaf of one tree and has two children in the other, so that all work alike.
    Steps: 2 ceil(log2 n) at most, for the first chunk. Sends at most 2 B, 2 B (n - 1) / n on the average. Source:
    Sanders, Speck and Traff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan".
    """
    blocks = [range(0, chunks), range(chunks, 2 * chunks)]
    return even(2 * chunks, tuple(double_tree_strands(range(len(groups)), rank, blocks)))

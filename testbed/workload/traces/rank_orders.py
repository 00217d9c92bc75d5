"""Orders of a job's ranks by what its trace has them do together; and the job with its ranks in another order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import permutations

from testbed.workload.traces.trace import ROOTED, Collective, JobTrace, Node, PointToPoint

MOST_ORDERED = 4  # kinds whose orders are all looked at: 24


def families_of(trace: JobTrace) -> dict[str, tuple[tuple[int, ...], ...]]:
    """By kind of communication the ranks that it joins, two or more each, the least first.

    Groups of a kind that have a common rank are one, as are messages: a pipeline is the ranks that send each other.
    """
    pairs: dict[str, set[tuple[int, int]]] = {}
    for rank, own in enumerate(trace.ranks):
        for kind, group in {(node.kind, node.group) for node in own if isinstance(node, Collective)}:
            first, *others = trace.groups[group]
            pairs.setdefault(kind, set()).update((first, other) for other in others)
        for kind, peer in {(node.kind, node.peer) for node in own if isinstance(node, PointToPoint)}:
            pairs.setdefault(kind, set()).add((rank, peer))
    return {kind: _joined(len(trace.ranks), ends) for kind, ends in sorted(pairs.items()) if ends}


def _joined(count: int, pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """The ranks of 0 to `count` that pairs join, directly or by others."""
    first = list(range(count))

    def root(rank: int) -> int:
        while first[rank] != rank:
            first[rank] = rank = first[first[rank]]
        return rank

    for one, other in pairs:
        low, high = sorted((root(one), root(other)))
        first[high] = low
    found: dict[int, list[int]] = {}
    for rank in range(count):
        found.setdefault(root(rank), []).append(rank)
    return tuple(tuple(members) for members in found.values() if len(members) > 1)


def order_of(trace: JobTrace, kinds: Sequence[str]) -> tuple[int, ...]:
    """The rank at each place: those that the last kind joins are next to each other, then those of the one before.

    kinds: of `families_of`, outermost first, as a placement of parallelism is. Else ranks are in their own order.
    """
    families, count = families_of(trace), len(trace.ranks)
    keys: list[list[int]] = [[] for _ in range(count)]
    for number in range(len(kinds)):
        pairs = [(own[0], rank) for kind in kinds[number:] for own in families[kind] for rank in own[1:]]
        firsts = {rank: own[0] for own in _joined(count, pairs) for rank in own}
        for rank, key in enumerate(keys):
            key.append(firsts.get(rank, rank))
    return tuple(sorted(range(count), key=lambda rank: (keys[rank], rank)))


def placements_of(trace: JobTrace) -> dict[tuple[str, ...], tuple[int, ...]]:
    """Placements that put ranks in different orders, and not in their own; with the order that comes of each.

    Of all orders of the kinds; where there are more than MOST_ORDERED kinds, of which one is innermost. A kind that
    joins all ranks says nothing.
    """
    everybody = tuple(range(len(trace.ranks)))
    apart = [kind for kind, families in families_of(trace).items() if families != (everybody,)]
    ways: Iterable[tuple[str, ...]] = permutations(apart)
    if len(apart) > MOST_ORDERED:
        ways = [(*(other for other in apart if other != kind), kind) for kind in apart]
    found: dict[tuple[int, ...], tuple[str, ...]] = {everybody: ()}
    for kinds in ways:
        found.setdefault(order_of(trace, kinds), kinds)
    return {kinds: order for order, kinds in found.items() if kinds}


def reordered(trace: JobTrace, order: Sequence[int]) -> JobTrace:
    """The same job, whose rank n is `order[n]` of this one; members of a group stay in their order."""
    if tuple(order) == tuple(range(len(trace.ranks))):
        return trace
    places = {rank: place for place, rank in enumerate(order)}

    def moved(node: Node) -> Node:
        if isinstance(node, PointToPoint):
            return replace(node, peer=places[node.peer])
        if isinstance(node, Collective) and node.collective in ROOTED:
            return replace(node, root=places[node.root])
        return node

    ranks = trace.changed(moved).ranks
    groups = {name: tuple(places[rank] for rank in members) for name, members in trace.groups.items()}
    return replace(trace, ranks=tuple(ranks[rank] for rank in order), groups=groups)

"""Orders of a job's ranks based on the communication in its trace, and reordering of a job's ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import permutations

from testbed.workload.traces.trace import ROOTED, Collective, JobTrace, Node, PointToPoint

MAX_PERMUTED_KINDS = 4  # 24 permutations


def families_of(trace: JobTrace) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return the sets of two or more ranks that each kind of communication connects, lowest first.

    Groups of a kind with a common rank are merged, and so are messages: a pipeline consists of all ranks that send to
    each other.
    """
    pairs: dict[str, set[tuple[int, int]]] = {}
    for rank, own in enumerate(trace.ranks):
        for kind, group in {(node.kind, node.group) for node in own if isinstance(node, Collective)}:
            first, *others = trace.groups[group]
            pairs.setdefault(kind, set()).update((first, other) for other in others)
        for kind, peer in {(node.kind, node.peer) for node in own if isinstance(node, PointToPoint)}:
            pairs.setdefault(kind, set()).add((rank, peer))
    return {kind: _components(len(trace.ranks), ends) for kind, ends in sorted(pairs.items()) if ends}


def _components(count: int, pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """Return the connected components of ranks 0 to `count`, exclusive, that have more than one rank."""
    component = {rank: [rank] for rank in range(count)}
    for one, other in pairs:
        if component[one] is not component[other]:
            merged = sorted(component[one] + component[other])
            component |= dict.fromkeys(merged, merged)
    found = {id(members): tuple(members) for members in component.values() if len(members) > 1}
    return tuple(found.values())


def order_of(trace: JobTrace, kinds: Sequence[str]) -> tuple[int, ...]:
    """Return the rank at each position: ranks that the last kind connects are adjacent, then those of the kind before.

    Kinds are those of `families_of`, outermost first, as in a placement of parallelism. Other ranks keep their order.
    """
    families, count = families_of(trace), len(trace.ranks)
    keys: list[list[int]] = [[] for _ in range(count)]
    for number in range(len(kinds)):
        pairs = [(own[0], rank) for kind in kinds[number:] for own in families[kind] for rank in own[1:]]
        firsts = {rank: own[0] for own in _components(count, pairs) for rank in own}
        for rank, key in enumerate(keys):
            key.append(firsts.get(rank, rank))
    return tuple(sorted(range(count), key=lambda rank: (keys[rank], rank)))


def placements_of(trace: JobTrace) -> dict[tuple[str, ...], tuple[int, ...]]:
    """Return the placements that give different rank orders, other than the ranks' own, with their orders.

    These are all permutations of the kinds; with more than MOST_ORDERED kinds, only the choice of the innermost one. A
    kind that connects all ranks has no effect.
    """
    everybody = tuple(range(len(trace.ranks)))
    apart = [kind for kind, families in families_of(trace).items() if families != (everybody,)]
    permuted: Iterable[tuple[str, ...]] = permutations(apart)
    if len(apart) > MAX_PERMUTED_KINDS:
        permuted = [(*(other for other in apart if other != kind), kind) for kind in apart]
    found: dict[tuple[int, ...], tuple[str, ...]] = {everybody: ()}
    for kinds in permuted:
        found.setdefault(order_of(trace, kinds), kinds)
    return {kinds: order for order, kinds in found.items() if kinds}


def reorder_ranks(trace: JobTrace, order: Sequence[int]) -> JobTrace:
    """Return the job with `order[n]` as its rank n; members of a group keep their order."""
    if tuple(order) == tuple(range(len(trace.ranks))):
        return trace
    places = {rank: place for place, rank in enumerate(order)}

    def moved(node: Node) -> Node:
        if isinstance(node, PointToPoint):
            return replace(node, peer=places[node.peer])
        if isinstance(node, Collective) and node.collective in ROOTED:
            return replace(node, root=places[node.root])
        return node

    ranks = trace.map_nodes(moved).ranks
    groups = {name: tuple(places[rank] for rank in members) for name, members in trace.groups.items()}
    return replace(trace, ranks=tuple(ranks[rank] for rank in order), groups=groups)

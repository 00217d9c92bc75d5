"""The host of each rank, from a scenario's `mapping`, and rank orders with minimal traffic between buildings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, permutations

from testbed.net.paths import Network
from testbed.spec.buildings import Host
from testbed.spec.parallelism import BY_DISTANCE, BY_SPEED
from testbed.spec.topology import Topology


def map_hosts(
    asked: str | tuple[int, ...],
    hosts: Sequence[Host],
    network: Network | None,
    slowdowns: Mapping[int, float],
) -> Sequence[int]:
    """Return the host index at each position of an order; () for the hosts' own order, and for orders by traffic.

    Args:
        asked: The scenario's `mapping`.
        hosts: The hosts.
        network: Paths between the hosts; needed for `by_distance`.
        slowdowns: Slowdown of each host's accelerator.
    """
    buildings = [host.building for host in hosts]
    if asked == "scattered":
        index = [buildings[:number].count(building) for number, building in enumerate(buildings)]
        return sorted(range(len(hosts)), key=lambda rank: (index[rank], rank))
    if asked == BY_DISTANCE:
        assert network is not None
        firsts = {building: buildings.index(building) for building in buildings}
        delays_s = {
            (here, there): network.paths[firsts[here], firsts[there]].delay_s
            for here, there in permutations(firsts, 2)
        }
        route = shortest_route(list(firsts), delays_s)
        return sorted(range(len(hosts)), key=lambda rank: (route.index(buildings[rank]), rank))
    if asked == BY_SPEED:
        return sorted(range(len(hosts)), key=lambda rank: slowdowns.get(rank, 1.0))
    return () if isinstance(asked, str) else asked


def leaves_of(topology: Topology, hosts: Sequence[Host]) -> tuple[int, ...]:
    """Return the leaf switch of each host, numbered from 0 in order; if hosts are accelerators, it is a node."""
    leaves: dict[tuple[str, int], int] = {}
    found = []
    for host in hosts:
        building = topology.building(host.building)
        found.append(leaves.setdefault((host.building, building.leaf_of(host)), len(leaves)))
    return tuple(found)


def minimize_crossing(
    pairs: Mapping[tuple[int, int], float], buildings: Sequence[int], starts: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    """Return the rank at each coordinate that minimizes bytes between buildings, using a heuristic.

    From each start, pairs of coordinates swap their ranks. Each coordinate swaps once, and the best pair goes first
    even without a gain. The best prefix of these swaps is kept, and this repeats until there is no gain (Kernighan and
    Lin 1970, "An Efficient Heuristic Procedure for Partitioning Graphs"). The result is the best over all starts; it
    may not be optimal.

    Args:
        pairs: Bytes per ordered pair of coordinates.
        buildings: Building of each rank.
        starts: Initial mappings.
    """
    weight = [[0.0] * len(buildings) for _ in buildings]
    for (here, there), count in pairs.items():
        weight[here][there] += count
        weight[there][here] += count
    found = [_improve(weight, buildings, list(start)) for start in starts]

    def crossing(ranks: Sequence[int]) -> float:
        return sum(
            count
            for (here, there), count in pairs.items()
            if buildings[ranks[here]] != buildings[ranks[there]]
        )

    best = min(found, key=crossing)
    return tuple(best)


def shortest_route(places: Sequence[str], delays_s: Mapping[tuple[str, str], float]) -> list[str]:
    """Return the order of all places with the smallest total delay between neighbours; ties go to the first.

    The result is exact: it uses Held and Karp's dynamic programming (1962, "A Dynamic Programming Approach to
    Sequencing Problems").
    """
    routes: dict[tuple[frozenset[str], str], tuple[float, list[str]]] = {
        (frozenset([place]), place): (0.0, [place]) for place in places
    }
    for _ in places[1:]:
        extended: dict[tuple[frozenset[str], str], tuple[float, list[str]]] = {}
        for (seen, last), (delay_s, route) in routes.items():
            for place in places:
                if place in seen:
                    continue
                key, total_s = (seen | {place}, place), delay_s + delays_s[last, place]
                if key not in extended or total_s < extended[key][0] - 1e-12:
                    extended[key] = total_s, [*route, place]
        routes = extended
    return min(routes.values(), key=lambda found: found[0])[1]


def _improve(weight: Sequence[Sequence[float]], buildings: Sequence[int], ranks: list[int]) -> list[int]:
    while True:
        changes = _best_swaps(weight, buildings, list(ranks))
        gained, most, best = 0.0, 0.0, 0
        for number, (_, gain) in enumerate(changes, 1):
            gained += gain
            if gained > most * (1 + 1e-9) + 1e-9:
                most, best = gained, number
        if not best:
            return ranks
        for (one, other), _ in changes[:best]:
            ranks[one], ranks[other] = ranks[other], ranks[one]


def _best_swaps(
    weight: Sequence[Sequence[float]], buildings: Sequence[int], ranks: list[int]
) -> list[tuple[tuple[int, int], float]]:
    """Return a sequence of best swaps of coordinates that have not yet swapped, with the bytes that each saves."""

    def gain(one: int, other: int) -> float:
        here, there = buildings[ranks[one]], buildings[ranks[other]]
        gained = 0.0
        for peer, rank in enumerate(ranks):
            if peer not in (one, other):
                difference = weight[one][peer] - weight[other][peer]
                gained += difference * ((buildings[rank] == there) - (buildings[rank] == here))
        return gained

    free = set(range(len(ranks)))
    found: list[tuple[tuple[int, int], float]] = []
    while True:
        pairs = [
            (one, other)
            for one, other in combinations(sorted(free), 2)
            if buildings[ranks[one]] != buildings[ranks[other]]
        ]
        if not pairs:
            return found
        one, other = max(pairs, key=lambda pair: gain(*pair))
        found.append(((one, other), gain(one, other)))
        ranks[one], ranks[other] = ranks[other], ranks[one]
        free -= {one, other}

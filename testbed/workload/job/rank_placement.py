"""On which host a rank is, by a scenario's `mapping`, and orders of ranks with the least traffic between buildings."""

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
    """The number of the host at each place of an order; () for that of the hosts, and for what goes by traffic.

    network: of the hosts; by_distance needs it. slowdowns: by which factor accelerators of hosts compute longer.
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
        way = shortest_way(list(firsts), delays_s)
        return sorted(range(len(hosts)), key=lambda rank: (way.index(buildings[rank]), rank))
    if asked == BY_SPEED:
        return sorted(range(len(hosts)), key=lambda rank: slowdowns.get(rank, 1.0))
    return () if isinstance(asked, str) else asked


def leaves_of(topology: Topology, hosts: Sequence[Host]) -> tuple[int, ...]:
    """The leaf switch of each host, numbered from 0 in their order: a node, where hosts are accelerators."""
    leaves: dict[tuple[str, int], int] = {}
    found = []
    for host in hosts:
        building = topology.building(host.building)
        found.append(leaves.setdefault((host.building, building.leaf_of(host)), len(leaves)))
    return tuple(found)


def minimize_crossing(
    pairs: Mapping[tuple[int, int], float], buildings: Sequence[int], starts: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    """The rank at each coordinate. pairs: bytes per ordered pair of coordinates; buildings: of ranks; starts: mappings.

    From each start on, two coordinates swap their ranks, the best pair first even where nothing is won yet, each once;
    what was best on the way stays, and that again until nothing is won (Kernighan and Lin 1970, "An Efficient
    Heuristic Procedure for Partitioning Graphs"). The best of what comes of it; not always the best that there is.
    """
    weight = [[0.0] * len(buildings) for _ in buildings]
    for (here, there), count in pairs.items():
        weight[here][there] += count
        weight[there][here] += count
    found = [_improved(weight, buildings, list(start)) for start in starts]

    def crossing(ranks: Sequence[int]) -> float:
        return sum(
            count
            for (here, there), count in pairs.items()
            if buildings[ranks[here]] != buildings[ranks[there]]
        )

    best = min(found, key=crossing)
    return tuple(best)


def shortest_way(places: Sequence[str], delays_s: Mapping[tuple[str, str], float]) -> list[str]:
    """An order of all places that adds up to the least delay from each to the next; of equal ones the first.

    Held and Karp's dynamic programme (1962, "A Dynamic Programming Approach to Sequencing Problems"): exact.
    """
    ways: dict[tuple[frozenset[str], str], tuple[float, list[str]]] = {
        (frozenset([place]), place): (0.0, [place]) for place in places
    }
    for _ in places[1:]:
        longer: dict[tuple[frozenset[str], str], tuple[float, list[str]]] = {}
        for (seen, last), (delay_s, way) in ways.items():
            for place in places:
                if place in seen:
                    continue
                key, total_s = (seen | {place}, place), delay_s + delays_s[last, place]
                if key not in longer or total_s < longer[key][0] - 1e-12:
                    longer[key] = total_s, [*way, place]
        ways = longer
    return min(ways.values(), key=lambda found: found[0])[1]


def _improved(weight: Sequence[Sequence[float]], buildings: Sequence[int], ranks: list[int]) -> list[int]:
    while True:
        changes = _changes(weight, buildings, list(ranks))
        won, most, best = 0.0, 0.0, 0
        for number, (_, gain) in enumerate(changes, 1):
            won += gain
            if won > most * (1 + 1e-9) + 1e-9:
                most, best = won, number
        if not best:
            return ranks
        for (one, other), _ in changes[:best]:
            ranks[one], ranks[other] = ranks[other], ranks[one]


def _changes(
    weight: Sequence[Sequence[float]], buildings: Sequence[int], ranks: list[int]
) -> list[tuple[tuple[int, int], float]]:
    """One after the other the best swap of two coordinates that have not swapped yet, and the bytes that it wins."""

    def gain(one: int, other: int) -> float:
        here, there = buildings[ranks[one]], buildings[ranks[other]]
        won = 0.0
        for peer, rank in enumerate(ranks):
            if peer not in (one, other):
                difference = weight[one][peer] - weight[other][peer]
                won += difference * ((buildings[rank] == there) - (buildings[rank] == here))
        return won

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

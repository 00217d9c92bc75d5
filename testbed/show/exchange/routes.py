"""Shortest paths between buildings, by delay: what programs without a controller of ours are set up with."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping

from testbed.spec.topology import Topology


def shortest_s(topology: Topology) -> dict[tuple[str, str], float]:
    """Seconds one way, from building to building."""
    return {
        (source, target): delay_s
        for source in (building.name for building in topology.buildings)
        for target, (delay_s, _) in _from(topology, source).items()
    }


def next_links(topology: Topology, source: str) -> Mapping[str, list[int]]:
    """For each other building: numbers of the links, parallel ones together, by which a packet leaves `source`."""
    found: dict[str, list[int]] = {}
    for target, (_, neighbour) in _from(topology, source).items():
        if target != source:
            found[target] = [
                number for number, link in enumerate(topology.wan) if {link.a, link.b} == {source, neighbour}
            ]
    return found


def _from(topology: Topology, source: str) -> dict[str, tuple[float, str]]:
    """By building: how long the way there is, and the neighbour that it goes by; of equals the first by name."""
    ways: dict[str, dict[str, float]] = defaultdict(dict)
    for link in topology.wan:
        for here, there, way in link.ways:
            ways[here][there] = min(way.delay_s, ways[here].get(there, way.delay_s))
    found: dict[str, tuple[float, str]] = {}
    open_ = [(0.0, 0, source, source)]
    while open_:
        delay_s, hops, here, first = heapq.heappop(open_)
        if here in found:
            continue
        found[here] = delay_s, first
        for there, own_s in ways[here].items():
            if there not in found:
                heapq.heappush(open_, (delay_s + own_s, hops + 1, there, there if here == source else first))
    return found

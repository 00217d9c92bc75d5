"""Topologies for tests of the controller, given by their WAN links alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from testbed.net.controller.edges import EdgePorts
from testbed.spec.buildings import Building, Host
from testbed.spec.link_direction import Direction
from testbed.spec.links import WanLink
from testbed.spec.topology import Topology, host_address, mac_address

Link = tuple[str, str, float] | tuple[str, str, float, float]
"""(building a, building b, delay in seconds from a to b, and from b to a where that differs)."""


def topology(hosts: Mapping[str, int], links: Sequence[Link]) -> Topology:
    """Buildings with so many hosts each; links of the same pair are planes, in their order here."""
    buildings = []
    first = 0
    for index, (name, count) in enumerate(hosts.items()):
        own = []
        card = Direction(1e9, 0.0, 0.0, 0.0, 10**6)
        for number in range(count):
            ip = host_address(index, number)
            own.append(Host(f"{name}{number + 1}", name, first + number, ip, mac_address(ip), card))
        buildings.append(Building(name, index, tuple(own)))
        first += count
    planes: Counter[frozenset[str]] = Counter()
    wan = []
    for a, b, *delays_s in links:
        directions = [Direction(1e8, delay_s, 0.0, 0.0, 10**6) for delay_s in (delays_s[0], delays_s[-1])]
        wan.append(WanLink(a, b, planes[frozenset((a, b))], *directions))
        planes[frozenset((a, b))] += 1
    return Topology("test", 9000, tuple(buildings), tuple(wan))


def edge_ports(topo: Topology) -> list[EdgePorts]:
    """Port 1 to the leaf if there is one, 2 to the probe, from 3 on the WAN link ends in the topology's order."""
    edges = []
    for building in topo.buildings:
        ends = [
            (there, link.plane)
            for link in topo.wan
            for here, there in ((link.a, link.b), (link.b, link.a))
            if here == building.name
        ]
        wan = {end: number for number, end in enumerate(ends, start=3)}
        local = None if building.is_transit else 1
        edges.append(EdgePorts(building.name, 100 + building.index, local, 2, wan))
    return edges


def rated(hosts: Mapping[str, int], links: Sequence[tuple[str, str, float, float]]) -> Topology:
    """As `topology`, of links (a, b, delay in seconds, rate in bit/s), alike in both directions."""
    made = topology(hosts, [(a, b, delay_s) for a, b, delay_s, _ in links])
    wan = tuple(
        replace(
            link,
            a_to_b=replace(link.a_to_b, rate_bps=rate_bps),
            b_to_a=replace(link.b_to_a, rate_bps=rate_bps),
        )
        for link, (_, _, _, rate_bps) in zip(made.wan, links, strict=True)
    )
    return replace(made, wan=wan)

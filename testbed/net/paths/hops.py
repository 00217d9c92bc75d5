"""What a message goes through between two hosts, in its order, and which hops have all of a frame first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from testbed.comm.transport.wire import PACKET_HEADERS_BYTES
from testbed.net.controller.policy_view import View
from testbed.net.fabric.bridges import cables
from testbed.net.links.ingress import CUT_THROUGH_S
from testbed.net.paths.serialisation import Serialisation, serialisation_of
from testbed.spec.buildings import Host
from testbed.spec.link_direction import Direction
from testbed.spec.topology import Topology
from testbed.spec.wan_links import ETHERNET_HEADER_BYTES

NETEM = "netem"  # the link engine with which every cable holds frames

Planes = Callable[[Sequence[Direction]], Direction]
"""Of the parallel links to the next building, what stands for the one that a message takes."""


@dataclass(frozen=True)
class Hop:
    """A link, or parallel ones. held: it has all of a frame before it passes it on; early_s: what it takes if not."""

    name: str
    links: Sequence[Direction]
    held: bool = True
    early_s: float = 0.0

    def by(self, planes: Planes) -> Hop:
        """The same with one link: one that stands for the parallel ones, as `planes` says."""
        return self if len(self.links) == 1 else replace(self, links=[planes(self.links)])


@dataclass(frozen=True)
class Passage:
    """A path from host to host: its delays in seconds, its lowest rate, what its hops hold frames for."""

    delay_s: float
    rate_bps: float
    serialisation: Serialisation


def passage(topology: Topology, hops: Sequence[Hop]) -> Passage:
    """The figures of a path over hops of one link each."""
    rates_bps = tuple([hop.links[0].rate_bps for hop in hops])
    delay_s = sum([hop.links[0].delay_s + hop.early_s for hop in hops])
    held = tuple([hop.held for hop in hops])
    return Passage(delay_s, min(rates_bps), serialisation_of(rates_bps, held, packet_payload_bytes(topology)))


def packet_payload_bytes(topology: Topology) -> int:
    """Payload of a full packet, in bytes."""
    return topology.mtu + ETHERNET_HEADER_BYTES - PACKET_HEADERS_BYTES


class Paths:
    """Paths of a topology's hosts, by the shortest path between buildings.

    link_engine: where it is not netem, only what it carries itself holds frames: WAN links, cables that take time.
    """

    def __init__(self, topology: Topology, link_engine: str = NETEM) -> None:
        self.topology, self._all_hold = topology, link_engine == NETEM
        self._next = View(topology).next_hops
        self._cables = {(cable.a[0], cable.b[0]): cable for cable in cables(topology)}
        self._buildings = {building.name: building for building in topology.buildings}
        self._wan: dict[tuple[str, str], list[Direction]] = {}
        for link in topology.wan:
            self._wan.setdefault((link.a, link.b), []).append(link.a_to_b)
            self._wan.setdefault((link.b, link.a), []).append(link.b_to_a)

    def between(self, one: Host, other: Host) -> list[Hop]:
        """The hops from one host to another, in order."""
        found = []
        here, target = one.building, other.building
        while here != target:
            there = self._next[here][target]
            found.append(Hop(f"WAN {here} to {there}", self._wan[here, there]))
            here = there
        up, down = self.inside(one, other)
        return [*up, *found, *down]

    def nodes(self, one: Host, other: Host) -> tuple[list[str], list[str]]:
        """Each host, and the switches above it that are on the way: up to the core, or to where both meet."""
        up, down = self._tower(one, other), self._tower(other, other)
        if one.building == other.building:
            meet = next(n for n, (a, b) in enumerate(zip(up, down, strict=True)) if n and a == b)
            up, down = up[: meet + 1], down[: meet + 1]
        return up, down

    def inside(self, one: Host, other: Host) -> tuple[list[Hop], list[Hop]]:
        """Those within buildings: up from the one, and down to the other."""
        up, down = self.nodes(one, other)
        stays = one.building == other.building
        rising = [
            self._hop(
                f"{up[n]} to {up[n + 1]}" if n else f"{one.name} sending",
                up[n],
                up[n + 1],
                up=True,
                stays=stays,
            )
            for n in range(len(up) - 1)
        ]
        falling = [
            self._hop(
                f"{down[n + 1]} to {down[n]}" if n else f"{other.name} receiving",
                down[n],
                down[n + 1],
                up=False,
                stays=stays,
            )
            for n in range(len(down) - 1)
        ]
        return rising, falling[::-1]

    def _hop(self, name: str, below: str, above: str, *, up: bool, stays: bool) -> Hop:
        cable = self._cables[below, above]
        assert cable.direction is not None
        early = stays and self._all_hold and (cable.cut_through_b if up else cable.cut_through_a) is not None
        if early:
            return Hop(name, [cable.direction], held=False, early_s=CUT_THROUGH_S)
        # what is shaped by itself delays no frame that finds it idle
        return Hop(name, [cable.direction], held=self._all_hold or cable.takes_time)

    def _tower(self, host: Host, target: Host) -> list[str]:
        """A host and the switches above it on the way to a target."""
        building = self._buildings[host.building]
        leaf = building.leaf_of(host)
        found = [host.name, building.leaves[leaf]]
        if clos := building.clos:
            # of each zone's spines the one that the target's number gives: D-mod-k
            found += [
                building.spines[leaf // clos.leaves * clos.spines + target.index % clos.spines],
                building.core,
            ]
        return found

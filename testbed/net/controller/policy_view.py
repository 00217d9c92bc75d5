"""What a policy knows: the topology, the traffic that is declared, the links that are down. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from ipaddress import IPv4Network
from typing import Any

from testbed.net.controller.ecmp_hash import TCP, UDP
from testbed.net.controller.rules import Match, Packet, Ports
from testbed.net.errors import NoPathError
from testbed.spec.topology import Topology, host_address

TCP_FLOW, ROCE = "tcp", "roce"
# Delays are compared as whole picoseconds, so that equal delays are equal and sums have no rounding.
PICOSECONDS = 1e12
# A path's cost is its delay, then its number of links. This many links weigh less than the shortest time.
LINK_COUNT_BASE = 1 << 20


@dataclass(frozen=True)
class LinkEnd:
    """One WAN link as a building sees it: where it leads, and rate and delay of what leaves here."""

    name: str
    neighbour: str
    plane: int
    rate_bps: float
    delay_ps: int


@dataclass(frozen=True)
class Flow:
    """What one connection carries in one direction, as declared before the first packet.

    source, destination: hosts. channel: which of the connections of that pair of hosts, from 0. size_bytes: per step,
    in emulated bytes; only the proportions count. protocol: "tcp", whose ports these are, "udp", or "roce": UDP whose
    packets go to one port either way, each from the port that the connection's other end sends from, too.
    """

    source: str
    destination: str
    channel: int = 0
    size_bytes: float = 1.0
    source_port: int = 0
    destination_port: int = 0
    dscp: int = 0
    job: str = "job"
    protocol: str = TCP_FLOW

    @property
    def connection(self) -> tuple[str, str, int, int, int]:
        """The same for both directions of a connection."""
        if self.protocol == ROCE:
            first, second = sorted((self.source, self.destination))
            return first, second, self.channel, self.source_port, self.destination_port
        ends = sorted([(self.source, self.source_port), (self.destination, self.destination_port)])
        return ends[0][0], ends[1][0], self.channel, ends[0][1], ends[1][1]

    @property
    def back(self) -> Flow:
        """What carries its acknowledgements."""
        ports = (self.source_port, self.destination_port)
        source_port, destination_port = ports if self.protocol == ROCE else ports[::-1]
        return replace(
            self,
            source=self.destination,
            destination=self.source,
            source_port=source_port,
            destination_port=destination_port,
            size_bytes=0.0,
        )

    def __str__(self) -> str:
        return f"{self.source} to {self.destination} channel {self.channel}"


def flows_from_data(data: Iterable[Mapping[str, Any]]) -> tuple[Flow, ...]:
    """The inverse of dataclasses.asdict for several."""
    return tuple(Flow(**item) for item in data)


def flows_to_data(flows: Iterable[Flow]) -> list[dict[str, Any]]:
    """Flows as dictionaries, ready for JSON; `flows_from_data` undoes it."""
    return [asdict(flow) for flow in flows]


class View:
    """A network as policies see it. down: names of links that carry nothing now. seed: of whatever is drawn."""

    def __init__(
        self,
        topology: Topology,
        flows: Sequence[Flow] = (),
        down: Iterable[str] = (),
        seed: int = 0,
    ) -> None:
        self.topology = topology
        self.flows = tuple(flows)
        self.down = frozenset(down)
        self.seed = seed

    @cached_property
    def buildings(self) -> list[str]:
        """Names, in the topology's order."""
        return [building.name for building in self.topology.buildings]

    @cached_property
    def destinations(self) -> list[str]:
        """Names of the buildings that have hosts, in the topology's order; the others are transit sites."""
        return [building.name for building in self.topology.populated]

    def links(self, here: str) -> list[LinkEnd]:
        """The links of a building that are up, in the topology's order."""
        return self._links[here]

    @cached_property
    def _links(self) -> dict[str, list[LinkEnd]]:
        ends: dict[str, list[LinkEnd]] = {name: [] for name in self.buildings}
        for link in self.topology.wan:
            for here, there, direction in ((link.a, link.b, link.a_to_b), (link.b, link.a, link.b_to_a)):
                if link.name not in self.down:
                    delay_ps = picoseconds(direction.delay_s)
                    ends[here].append(LinkEnd(link.name, there, link.plane, direction.rate_bps, delay_ps))
        return ends

    def towards(self, here: str, there: str) -> list[LinkEnd]:
        """The parallel links to the next building on the path of least delay, by plane. Empty where there is none."""
        neighbour = self.next_hops[here].get(there)
        found = [end for end in self._links[here] if end.neighbour == neighbour]
        return sorted(found, key=lambda end: end.plane)

    def pairs(self) -> Iterator[tuple[str, str]]:
        """All (building, other building with hosts) between which there is a path."""
        for here in self.buildings:
            for there in self.destinations:
                if there in self.next_hops[here]:
                    yield here, there

    def to(self, building: str) -> Match:
        """Packets to a building's hosts."""
        return Match(ipv4_dst=building_network(self.topology.building(building).index))

    def of(self, flow: Flow) -> Match:
        """Packets of a declared flow. Its class is not looked at: an edge may mark it anew."""
        source, destination = (self._hosts[name] for name in (flow.source, flow.destination))
        ends = Match(ipv4_src=f"{source.ip}/32", ipv4_dst=f"{destination.ip}/32")
        ports = [Ports(port) if port else None for port in (flow.source_port, flow.destination_port)]
        if flow.protocol == TCP_FLOW:
            return replace(ends, tcp_src=ports[0], tcp_dst=ports[1])
        return replace(ends, udp_src=ports[0], udp_dst=ports[1])

    def packet(self, flow: Flow) -> Packet:
        """A packet of a declared flow."""
        source, destination = (self._hosts[name].ip for name in (flow.source, flow.destination))
        ports = flow.source_port, flow.destination_port
        protocol = TCP if flow.protocol == TCP_FLOW else UDP
        return Packet(source, destination, protocol, *ports, ip_dscp=flow.dscp)

    @cached_property
    def _hosts(self) -> dict[str, Any]:
        return {host.name: host for host in self.topology.hosts}

    def ends(self, flow: Flow) -> tuple[str, str]:
        """The buildings between which a flow goes."""
        return self._hosts[flow.source].building, self._hosts[flow.destination].building

    @cached_property
    def crossing(self) -> tuple[Flow, ...]:
        """The declared flows between buildings."""
        return tuple(flow for flow in self.flows if len(set(self.ends(flow))) == 2)

    def route(self, here: str, there: str) -> list[str]:
        """The buildings on the path of least delay, both ends included; empty where there is none."""
        path = [here]
        while path[-1] != there:
            if there not in self.next_hops[path[-1]]:
                return []
            path.append(self.next_hops[path[-1]][there])
        return path

    @cached_property
    def next_hops(self) -> dict[str, dict[str, str]]:
        """For each building and each other one the next on the path of least delay: `[here][destination]`.

        Dijkstra's algorithm over buildings; a pair's fastest link in that direction counts. Of equal delays the path
        with fewer links wins, then the next building that stands first in the topology. Every hop brings a packet
        strictly closer to its destination, so there are no loops, whatever the delays (zero included).
        """
        costs: dict[str, dict[str, int]] = {name: {} for name in self.buildings}  # [there][here]
        for here, ends in self._links.items():
            for end in ends:
                cost = end.delay_ps * LINK_COUNT_BASE + 1
                costs[end.neighbour][here] = min(cost, costs[end.neighbour].get(here, cost))
        order = {name: position for position, name in enumerate(self.buildings)}
        hops: dict[str, dict[str, str]] = {name: {} for name in order}
        for destination in order:
            distance = _distances(costs, destination)
            for here in order.keys() - {destination}:
                closer = [
                    there
                    for there in distance
                    if here in costs[there] and distance[there] + costs[there][here] == distance[here]
                ]
                if closer:
                    hops[here][destination] = min(closer, key=order.__getitem__)
        return hops

    def check_connected(self) -> None:
        """NoPathError names two buildings without a path."""
        for here in self.buildings:
            for there in self.buildings:
                if here != there and there not in self.next_hops[here]:
                    raise NoPathError(f"topology {self.topology.name}: no path from {here} to {there}")

    def without(self, down: Iterable[str]) -> View:
        """The same with these links down."""
        return View(self.topology, self.flows, down, self.seed)

    def declaring(self, flows: Sequence[Flow]) -> View:
        """The same with other traffic."""
        return View(self.topology, flows, self.down, self.seed)


def _distances(costs: Mapping[str, Mapping[str, int]], destination: str) -> dict[str, int]:
    """What the cheapest path from each building costs that leads to `destination`, by Dijkstra's algorithm.

    costs: of a link, `[there][here]`. networkx has it, too, but takes a second to import in a guest, in two programs.
    """
    distance: dict[str, int] = {}
    near = [(0, destination)]
    while near:
        cost, there = heapq.heappop(near)
        if there not in distance:
            distance[there] = cost
            for here, more in costs[there].items():
                heapq.heappush(near, (cost + more, here))
    return distance


def building_network(building_index: int) -> str:
    """The network that holds the addresses of a building's hosts and no others, such as "10.1.0.0/16"."""
    return str(IPv4Network(f"{host_address(building_index, 0)}/16", strict=False))


def both_ways(flows: Iterable[Flow]) -> list[Flow]:
    """Flows with those that carry their acknowledgements, where these are not declared themselves."""
    found = {(flow.source, flow.destination, flow.source_port, flow.destination_port): flow for flow in flows}
    for flow in list(found.values()):
        back = flow.back
        found.setdefault((back.source, back.destination, back.source_port, back.destination_port), back)
    return list(found.values())


def picoseconds(seconds: float) -> int:
    """A duration rounded to whole picoseconds, so that sums of delays compare exactly."""
    return round(seconds * PICOSECONDS)

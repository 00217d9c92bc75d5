"""The network as a policy sees it: topology, declared traffic and failed links. This module is pure."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from testbed.net.controller.ecmp_hash import TCP, UDP
from testbed.net.controller.rules import Match, Packet, Ports
from testbed.net.errors import NoPathError
from testbed.spec.topology import Topology, building_network

TCP_FLOW, ROCE = "tcp", "roce"
# Delays are integers in picoseconds, so that equal delays compare equal and sums do not round.
PICOSECONDS = 1e12
# A path's cost is its delay, then its number of links: fewer links than this weigh less than one picosecond.
LINK_COUNT_BASE = 1 << 20


@dataclass(frozen=True)
class LinkEnd:
    """A WAN link as seen from one building: the neighbour, and the rate and delay of the outgoing direction."""

    name: str
    neighbour: str
    plane: int
    rate_bps: float
    delay_ps: int


@dataclass(frozen=True)
class Flow:
    """The traffic of one direction of a connection, as declared in advance.

    Attributes:
        source: The sending host.
        destination: The receiving host.
        channel: Index of the connection among those of this pair of hosts.
        size_bytes: Emulated bytes per step; only ratios between flows matter.
        source_port: Source port; 0 matches any.
        destination_port: Destination port; 0 matches any.
        dscp: The DSCP of its packets.
        job: The job that it belongs to.
        protocol: "tcp", "udp" or "roce". RoCE is UDP in which both directions have the same source port and the same
            destination port.
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
        """A key of the connection, which both of its directions share."""
        if self.protocol == ROCE:
            first, second = sorted((self.source, self.destination))
            return first, second, self.channel, self.source_port, self.destination_port
        ends = sorted([(self.source, self.source_port), (self.destination, self.destination_port)])
        return ends[0][0], ends[1][0], self.channel, ends[0][1], ends[1][1]

    @property
    def back(self) -> Flow:
        """The reverse flow, which carries the acknowledgements."""
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


@dataclass(eq=False)
class View:
    """A network as policies see it.

    Args:
        topology: The topology.
        flows: The declared traffic.
        down: Names of the links that are down.
        seed: The seed of all random choices.
    """

    topology: Topology
    flows: Sequence[Flow] = ()
    down: Collection[str] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        self.flows, self.down = tuple(self.flows), frozenset(self.down)

    @cached_property
    def buildings(self) -> list[str]:
        """The names of all buildings, in the topology's order."""
        return [building.name for building in self.topology.buildings]

    @cached_property
    def destinations(self) -> list[str]:
        """The names of the buildings with hosts, in the topology's order; the others are transit sites."""
        return [building.name for building in self.topology.populated]

    def links(self, here: str) -> list[LinkEnd]:
        """Return the links of a building that are up, in the topology's order."""
        return self._links[here]

    @cached_property
    def _links(self) -> dict[str, list[LinkEnd]]:
        ends: dict[str, list[LinkEnd]] = {name: [] for name in self.buildings}
        for link in self.topology.wan:
            for here, there, direction in link.directions:
                if link.name not in self.down:
                    delay_ps = picoseconds(direction.delay_s)
                    ends[here].append(LinkEnd(link.name, there, link.plane, direction.rate_bps, delay_ps))
        return ends

    def towards(self, here: str, there: str) -> list[LinkEnd]:
        """Return the parallel links to the next building on the least-delay path, by plane; empty without a path."""
        neighbour = self.next_hops[here].get(there)
        found = [end for end in self._links[here] if end.neighbour == neighbour]
        return sorted(found, key=lambda end: end.plane)

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield all pairs (building, other building with hosts) that are connected by a path."""
        for here in self.buildings:
            for there in self.destinations:
                if there in self.next_hops[here]:
                    yield here, there

    def to(self, building: str) -> Match:
        """Return the match for packets to a building's hosts."""
        return Match(ipv4_dst=building_network(self.topology.building(building).index))

    def of(self, flow: Flow) -> Match:
        """Return the match for packets of a declared flow. It ignores the DSCP, which an edge may overwrite."""
        source, destination = (self._hosts[name] for name in (flow.source, flow.destination))
        ends = Match(ipv4_src=f"{source.ip}/32", ipv4_dst=f"{destination.ip}/32")
        ports = [Ports(port) if port else None for port in (flow.source_port, flow.destination_port)]
        if flow.protocol == TCP_FLOW:
            return replace(ends, tcp_src=ports[0], tcp_dst=ports[1])
        return replace(ends, udp_src=ports[0], udp_dst=ports[1])

    def packet(self, flow: Flow) -> Packet:
        """Return a packet of a declared flow."""
        source, destination = (self._hosts[name].ip for name in (flow.source, flow.destination))
        ports = flow.source_port, flow.destination_port
        protocol = TCP if flow.protocol == TCP_FLOW else UDP
        return Packet(source, destination, protocol, *ports, ip_dscp=flow.dscp)

    @cached_property
    def _hosts(self) -> dict[str, Any]:
        return {host.name: host for host in self.topology.hosts}

    def ends(self, flow: Flow) -> tuple[str, str]:
        """Return the source and destination buildings of a flow."""
        return self._hosts[flow.source].building, self._hosts[flow.destination].building

    @cached_property
    def crossing(self) -> tuple[Flow, ...]:
        """The declared flows between different buildings."""
        return tuple(flow for flow in self.flows if len(set(self.ends(flow))) == 2)

    def route(self, here: str, there: str) -> list[str]:
        """Return the buildings on the least-delay path, both ends included; empty without a path."""
        path = [here]
        while path[-1] != there:
            if there not in self.next_hops[path[-1]]:
                return []
            path.append(self.next_hops[path[-1]][there])
        return path

    @cached_property
    def next_hops(self) -> dict[str, dict[str, str]]:
        """The next building on the least-delay path, as `[here][destination]`.

        It is Dijkstra's algorithm over buildings, with the fastest link of each pair in that direction. Among equal
        delays the path with fewer links wins, then the next building that comes first in the topology. Every hop
        brings a packet strictly closer to its destination, so there are no loops even with zero delays.
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
        """Check that all buildings are connected.

        Raises:
            NoPathError: There is no path between two buildings, which the message names.
        """
        for here in self.buildings:
            for there in self.buildings:
                if here != there and there not in self.next_hops[here]:
                    raise NoPathError(f"topology {self.topology.name}: no path from {here} to {there}")


def _distances(costs: Mapping[str, Mapping[str, int]], destination: str) -> dict[str, int]:
    """Return the cost of the cheapest path from each building to `destination`, by Dijkstra's algorithm.

    `costs` has the links' costs as `[there][here]`. networkx is not used because its import takes a second in a guest,
    in two programs.
    """
    distance: dict[str, int] = {}
    queue = [(0, destination)]
    while queue:
        cost, there = heapq.heappop(queue)
        if there not in distance:
            distance[there] = cost
            for here, link_cost in costs[there].items():
                heapq.heappush(queue, (cost + link_cost, here))
    return distance


def with_reverse_flows(flows: Iterable[Flow]) -> list[Flow]:
    """Return the flows and their reverse flows, unless these are declared themselves."""
    found = {(flow.source, flow.destination, flow.source_port, flow.destination_port): flow for flow in flows}
    for flow in list(found.values()):
        back = flow.back
        found.setdefault((back.source, back.destination, back.source_port, back.destination_port), back)
    return list(found.values())


def picoseconds(seconds: float) -> int:
    """Convert seconds to integer picoseconds, so that sums of delays compare exactly."""
    return round(seconds * PICOSECONDS)

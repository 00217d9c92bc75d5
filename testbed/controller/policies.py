"""Transport policies: from a topology and an intent to the rules of every edge switch. Pure.

An edge switch stands between a building's leaf switch and its WAN links. Traffic goes from building to building along
the path of least delay (other buildings may lie on it); a policy says which of the parallel links to the next building
a packet takes. A new policy is one function of type `Policy` and one line in `POLICIES`.

Whatever the policy, the probe addresses of a WAN link take exactly that link, and whatever no rule names is dropped:
nothing is flooded, nothing is learnt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

from testbed.config.topology import Topology, host_address, probe_address
from testbed.controller.errors import ControllerError, NoPathError
from testbed.controller.rules import MAX_SEED, Ecmp, Match, Output, Rule

PROBE_PRIORITY, HOST_PRIORITY, BUILDING_PRIORITY, DROP_PRIORITY = 300, 200, 100, 0
# Delays are compared as whole picoseconds, so that equal delays are equal and sums have no rounding.
PICOSECONDS = 1e12
# A path's cost is its delay, then its number of links. This many links weigh less than the shortest time.
LINK_COUNT_BASE = 1 << 20


@dataclass(frozen=True)
class EdgePorts:
    """OpenFlow port numbers of a building's edge switch: to the leaf switch, to the probe node, to each WAN link end.

    `wan` is keyed by (neighbour building, plane).
    """

    building: str
    dpid: int
    local: int
    probe: int
    wan: Mapping[tuple[str, int], int]


@dataclass(frozen=True)
class LinkEnd:
    """One WAN link as a building's edge sees it: where it leads, its port here, the delay of what leaves here."""

    neighbour: str
    plane: int
    port: int
    delay_ps: int


@dataclass(frozen=True)
class EdgeView:
    """What a policy knows when it makes the rules of one edge: its WAN links, and the next building on each path."""

    links: tuple[LinkEnd, ...]
    next_hop: Mapping[str, str]

    def links_towards(self, building: str) -> list[LinkEnd]:
        """The parallel links to the next building on the path to `building`, by plane."""
        neighbour = self.next_hop[building]
        return sorted((end for end in self.links if end.neighbour == neighbour), key=lambda end: end.plane)


Policy = Callable[[EdgeView, str, Match, int], Sequence[Rule]]
"""From (view of an edge, destination building, match for its addresses, seed) to the rules for that destination."""


def shortest(view: EdgeView, destination: str, match: Match, seed: int) -> Sequence[Rule]:
    """All traffic on the link of least delay, on the lowest plane among equals."""
    best = min(view.links_towards(destination), key=lambda end: end.delay_ps)
    return [_towards(destination, match, [best], seed)]


def ecmp(view: EdgeView, destination: str, match: Match, seed: int) -> Sequence[Rule]:
    """Flows spread over all links of least delay, by a hash of their 5-tuple."""
    ends = view.links_towards(destination)
    least = min(end.delay_ps for end in ends)
    return [_towards(destination, match, [end for end in ends if end.delay_ps == least], seed)]


POLICIES: Mapping[str, Policy] = {"shortest": shortest, "ecmp": ecmp}


def compute_rules(
    policy: str, topology: Topology, edges: Sequence[EdgePorts], seed: int = 0
) -> dict[int, list[Rule]]:
    """The rules of every edge, by datapath id. `seed` chooses which flow goes where under a policy that hashes.

    NoPathError when two buildings are not joined; ControllerError when policy or ports do not fit the topology.
    """
    if policy not in POLICIES:
        raise ControllerError(f"policy: got {policy!r}, expected one of {', '.join(POLICIES)}")
    _check_edges(topology, edges)
    hops = next_hops(topology)
    rules: dict[int, list[Rule]] = {}
    for edge in edges:
        view = EdgeView(_link_ends(topology, edge), hops[edge.building])
        own = [*_probe_rules(topology, edge), *_host_rules(topology, edge)]
        for building in topology.buildings:
            if building.name != edge.building:
                match = Match(ipv4_dst=building_network(building.index))
                own += POLICIES[policy](view, building.name, match, seed % (MAX_SEED + 1))
        rules[edge.dpid] = [*own, Rule(DROP_PRIORITY, Match(), comment="everything else")]
    return rules


def next_hops(topology: Topology) -> dict[str, dict[str, str]]:
    """For each building and each other one the next building on the path of least delay: `[here][destination]`.

    Dijkstra's algorithm over buildings; a pair's fastest link in that direction counts. Of equal delays the path
    with fewer links wins, then the next building that stands first in the topology. Every hop brings a packet
    strictly closer to its destination, so there are no loops, whatever the delays (zero included).
    """
    import networkx  # noqa: PLC0415 (a quarter of a second, which few commands need)

    towards = networkx.DiGraph()  # edges turned round, since the trees grow from the destination
    towards.add_nodes_from(building.name for building in topology.buildings)
    for link in topology.wan:
        for here, there, way in ((link.a, link.b, link.a_to_b), (link.b, link.a, link.b_to_a)):
            cost = _picoseconds(way.delay_s) * LINK_COUNT_BASE + 1
            if not towards.has_edge(there, here) or cost < towards.edges[there, here]["cost"]:
                towards.add_edge(there, here, cost=cost)
    order = {building.name: building.index for building in topology.buildings}
    hops: dict[str, dict[str, str]] = {name: {} for name in order}
    for destination in order:
        distance = networkx.single_source_dijkstra_path_length(towards, destination, weight="cost")
        for here in order:
            if here not in distance:
                raise NoPathError(f"topology {topology.name}: no path from {here} to {destination}")
            closer = [
                there
                for there in towards.predecessors(here)
                if there in distance
                and distance[there] + towards.edges[there, here]["cost"] == distance[here]
            ]
            if here != destination:
                hops[here][destination] = min(closer, key=order.__getitem__)
    return hops


def building_network(building_index: int) -> str:
    """The network that holds the addresses of a building's hosts and no others, such as "10.1.0.0/16"."""
    return str(IPv4Network(f"{host_address(building_index, 0)}/16", strict=False))


def _towards(destination: str, match: Match, ends: Sequence[LinkEnd], seed: int) -> Rule:
    ports = tuple(end.port for end in ends)
    action = Output(ports[0]) if len(ports) == 1 else Ecmp(ports, seed)
    planes = ", ".join(str(end.plane) for end in ends)
    comment = f"to {destination} through {ends[0].neighbour} on plane {planes}"
    return Rule(BUILDING_PRIORITY, match, (action,), comment)


def _host_rules(topology: Topology, edge: EdgePorts) -> list[Rule]:
    return [
        Rule(HOST_PRIORITY, Match(ipv4_dst=f"{host.ip}/32"), (Output(edge.local),), f"host {host.name}")
        for host in topology.building(edge.building).hosts
    ]


def _probe_rules(topology: Topology, edge: EdgePorts) -> list[Rule]:
    """Probes out of exactly their link, and in only from it: a miswired or bypassed link gets no answer."""
    rules = []
    for index, link in enumerate(topology.wan):
        near, far = probe_address(index, "a"), probe_address(index, "b")
        for here, there, mine, theirs in ((link.a, link.b, near, far), (link.b, link.a, far, near)):
            if here == edge.building:
                port = edge.wan[there, link.plane]
                out, back = Match(edge.probe, f"{theirs}/32"), Match(port, f"{mine}/32")
                rules.append(Rule(PROBE_PRIORITY, out, (Output(port),), f"probe out on {link.name}"))
                rules.append(Rule(PROBE_PRIORITY, back, (Output(edge.probe),), f"probe in on {link.name}"))
    return rules


def _link_ends(topology: Topology, edge: EdgePorts) -> tuple[LinkEnd, ...]:
    ends = []
    for link in topology.wan:
        for here, there, way in ((link.a, link.b, link.a_to_b), (link.b, link.a, link.b_to_a)):
            if here == edge.building:
                port = edge.wan[there, link.plane]
                ends.append(LinkEnd(there, link.plane, port, _picoseconds(way.delay_s)))
    return tuple(ends)


def _check_edges(topology: Topology, edges: Sequence[EdgePorts]) -> None:
    """Each building has one edge with a datapath id of its own and a port for each WAN link end, and no others."""
    buildings = sorted(building.name for building in topology.buildings)
    if sorted(edge.building for edge in edges) != buildings:
        raise ControllerError(
            f"edges: got buildings {[edge.building for edge in edges]}, expected one edge for each of {buildings}"
        )
    if len({edge.dpid for edge in edges}) != len(edges):
        raise ControllerError(f"edges: datapath ids {[edge.dpid for edge in edges]} are not all different")
    for edge in edges:
        expected = {(link.b, link.plane) for link in topology.wan if link.a == edge.building}
        expected |= {(link.a, link.plane) for link in topology.wan if link.b == edge.building}
        if set(edge.wan) != expected:
            raise ControllerError(
                f"edge {edge.building}: got WAN ports to {sorted(edge.wan)}, expected {sorted(expected)}"
            )
        ports = [edge.local, edge.probe, *edge.wan.values()]
        if len(set(ports)) != len(ports):
            raise ControllerError(f"edge {edge.building}: ports {ports} are not all different")


def _picoseconds(seconds: float) -> int:
    return round(seconds * PICOSECONDS)

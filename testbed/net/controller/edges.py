"""The edge switches of a fabric: their ports, and the rules that do not depend on the policy.

Packets to the probe addresses of a WAN link take exactly that link. Packets to a building's own hosts go to these
hosts. Packets that match no rule are dropped: there is no flooding and no MAC learning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.net.controller.rules import Match, Output, Rule
from testbed.net.errors import ControllerError
from testbed.spec.topology import Topology, probe_address

PROBE_PRIORITY, HOST_PRIORITY, FLOW_PRIORITY, BUILDING_PRIORITY, DROP_PRIORITY = 400, 300, 200, 100, 0


@dataclass(frozen=True)
class EdgePorts:
    """OpenFlow port numbers of a building's edge switch.

    Attributes:
        building: The building's name.
        dpid: The switch's datapath id.
        local: Port to the leaf switch; None for a transit site, which has none.
        probe: Port to the probe node.
        wan: Port to each WAN link end, by (neighbour building, plane).
    """

    building: str
    dpid: int
    local: int | None
    probe: int
    wan: Mapping[tuple[str, int], int]

    @property
    def entry(self) -> tuple[int, int]:
        """The (datapath id, port) of traffic to and from the building's hosts; raises ControllerError if none."""
        if self.local is None:
            raise ControllerError(f"edge {self.building}: a transit site has no hosts")
        return self.dpid, self.local


def edges_to_data(edges: Sequence[EdgePorts]) -> list[dict[str, Any]]:
    """Convert edges to JSON-compatible dictionaries; the inverse of `edges_from_data`."""
    return [{**vars(edge), "wan": [[*end, port] for end, port in edge.wan.items()]} for edge in edges]


def edges_from_data(data: Sequence[Mapping[str, Any]]) -> list[EdgePorts]:
    """Build edges from dictionaries; the inverse of `edges_to_data`."""
    return [
        EdgePorts(**{**entry, "wan": {(there, plane): port for there, plane, port in entry["wan"]}})
        for entry in data
    ]


def fixed_rules(topology: Topology, edge: EdgePorts) -> list[Rule]:
    """Return the rules that an edge has under any policy, for probes and for its building's hosts.

    Probes leave on exactly their link and are accepted only from it, so a miswired link gets no answer.
    """
    rules = []
    for index, link in enumerate(topology.wan):
        near, far = probe_address(index, "a"), probe_address(index, "b")
        ends = zip(link.directions, ((near, far), (far, near)), strict=True)
        for (here, there, _), (local, remote) in ends:
            if here == edge.building:
                port = edge.wan[there, link.plane]
                out, back = Match(edge.probe, f"{remote}/32"), Match(port, f"{local}/32")
                rules.append(Rule(PROBE_PRIORITY, out, (Output(port),), f"probe out on {link.name}"))
                rules.append(Rule(PROBE_PRIORITY, back, (Output(edge.probe),), f"probe in on {link.name}"))
    for host in topology.building(edge.building).hosts:
        match = Match(ipv4_dst=f"{host.ip}/32")
        rules.append(Rule(HOST_PRIORITY, match, (Output(edge.entry[1]),), f"host {host.name}"))
    return rules


def link_ports(topology: Topology, edge: EdgePorts) -> dict[str, int]:
    """Return the port of each WAN link that ends at an edge, by link name."""
    return {
        link.name: edge.wan[there, link.plane]
        for link in topology.wan
        for here, there, _ in link.directions
        if here == edge.building
    }


def check_edges(topology: Topology, edges: Sequence[EdgePorts]) -> None:
    """Check that each building has one edge with a unique datapath id and one port per WAN link end.

    Raises:
        ControllerError: The edges do not match the topology.
    """
    buildings = sorted(building.name for building in topology.buildings)
    if sorted(edge.building for edge in edges) != buildings:
        raise ControllerError(
            f"edges: got buildings {[edge.building for edge in edges]}, expected one edge for each of {buildings}"
        )
    if len({edge.dpid for edge in edges}) != len(edges):
        raise ControllerError(f"edges: datapath ids {[edge.dpid for edge in edges]} are not all different")
    for edge in edges:
        ends = [(*direction[:2], link.plane) for link in topology.wan for direction in link.directions]
        expected = {(there, plane) for here, there, plane in ends if here == edge.building}
        if set(edge.wan) != expected:
            raise ControllerError(
                f"edge {edge.building}: got WAN ports to {sorted(edge.wan)}, expected {sorted(expected)}"
            )
        if (edge.local is None) != topology.building(edge.building).is_transit:
            raise ControllerError(
                f"edge {edge.building}: got local port {edge.local}, expected one where the building has hosts only"
            )
        ports = [*filter(None, [edge.local]), edge.probe, *edge.wan.values()]
        if len(set(ports)) != len(ports):
            raise ControllerError(f"edge {edge.building}: ports {ports} are not all different")

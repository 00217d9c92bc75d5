"""The plan of a fabric: all names, ports and settings that follow from a topology. This module is pure.

Each building has a leaf switch, or a Clos network of them, and an edge switch. Leaves are kernel bridges in their own
namespaces, without a policy (see `fabric.bridges`). The edge is an Open vSwitch bridge that applies the policy; it has
one port to the building's core, one to a probe node and one per WAN link end. A transit site, which has no hosts, has
only an edge switch and a probe node. All WAN links pass through one namespace, where the link engine forwards frames:

    host eth0 ---- leaf ---- edge ---- [ wan: link engine ] ---- edge ---- leaf ---- host
       shaped     shaped

The link engine implements all properties of a WAN direction, including rate and queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from testbed.net.controller.edges import EdgePorts
from testbed.net.fabric.bridges import Bridge, Cable, End, bridges, cables
from testbed.net.links.ingress import IngressDelay
from testbed.net.links.link_engine import LinkWire
from testbed.net.links.shaping import Shape
from testbed.spec.buildings import Building
from testbed.spec.links import WanLink
from testbed.spec.topology import Topology

LOCAL_PORT, PROBE_PORT, FIRST_WAN_PORT = 1, 2, 3
WAN_NODE = "wan"
HOSTS_NET = "10.0.0.0/8"
LINUX_RTO_MIN_MS = 200


@dataclass(frozen=True)
class WanPort:
    """One end of a WAN link: its interfaces at the edge and in the WAN namespace, and its OpenFlow port."""

    link: WanLink
    link_index: int
    side: str
    building: str
    neighbour: str
    edge_interface: str
    wan_interface: str
    port: int


@dataclass(frozen=True)
class Multipath:
    """The ports of MPTCP's additional paths, at which each host accepts subflows from the hosts after it."""

    ports: tuple[int, ...]
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class EdgePlan:
    """A building's edge switch: bridge, datapath id and ports in the root namespace.

    `local_interface` is the port to the building's core; it is None for a transit site.
    """

    building: Building
    bridge: str
    dpid: int
    local_interface: str | None
    probe_interface: str
    wan: tuple[WanPort, ...]

    @property
    def name(self) -> str:
        """The switch's name in the topology."""
        return self.building.edge

    @property
    def probe(self) -> str:
        """The name of the building's probe node."""
        return probe_node(self.building.name)

    @property
    def interfaces(self) -> tuple[str, ...]:
        """The interfaces of all ports, in the root namespace."""
        return tuple(self.ports)

    @property
    def ports(self) -> dict[str, int]:
        """The OpenFlow port numbers, by interface."""
        local = {} if self.local_interface is None else {self.local_interface: LOCAL_PORT}
        wan = {port.edge_interface: port.port for port in self.wan}
        return {**local, self.probe_interface: PROBE_PORT, **wan}


@dataclass(frozen=True)
class Plan:
    """Everything to be built for a topology; `rdma`: whether hosts have a soft-RoCE device.

    Names in the root namespace begin with `prefix` and fit in 15 characters.
    """

    topology: Topology
    prefix: str
    time_dilation: float = 1.0
    multipath: Multipath | None = None
    link_engine: str = "userspace"
    rdma: bool = False

    @property
    def rto_min_ms(self) -> int:
        """TCP's minimum retransmission timeout: Linux's, times the time dilation."""
        return round(LINUX_RTO_MIN_MS * self.time_dilation)

    @cached_property
    def edges(self) -> tuple[EdgePlan, ...]:
        """All edge switches, in the order of their buildings."""
        return tuple(self._edge(building) for building in self.topology.buildings)

    def _edge(self, building: Building) -> EdgePlan:
        bridge = f"{self.prefix}e{building.index}"
        wan: list[WanPort] = []
        for index, link in enumerate(self.topology.wan):
            for side, (here, there, _) in zip("ab", link.directions, strict=True):
                if here == building.name:
                    port = FIRST_WAN_PORT + len(wan)
                    names = f"{bridge}p{port}", f"w{index}{side}"
                    wan.append(WanPort(link, index, side, here, there, *names, port))
        local_interface = None if building.is_transit else f"{bridge}p{LOCAL_PORT}"
        return EdgePlan(
            building, bridge, building.index + 1, local_interface, f"{bridge}p{PROBE_PORT}", tuple(wan)
        )

    @cached_property
    def bridges(self) -> tuple[Bridge, ...]:
        """All switches except the edges."""
        return tuple(bridges(self.topology))

    @cached_property
    def cables(self) -> tuple[Cable, ...]:
        """All cables within buildings, without those of the edges."""
        return tuple(cables(self.topology))

    @cached_property
    def shapes(self) -> dict[End, Shape]:
        """The shapes of the (node, interface) ends that the link engine does not shape."""
        return {end: shape for cable in self.cables for end, shape in cable.shapes().items()}

    @cached_property
    def ingress_delays(self) -> dict[End, IngressDelay]:
        """The delays of incoming frames at (node, interface) ends without a link engine; only with engine netem."""
        if self.link_engine != "netem":
            return {}
        return {end: delay for cable in self.cables for end, delay in cable.ingress_delays().items()}

    def ingress_delays_of(self, node: str) -> dict[str, IngressDelay]:
        """Return the ingress delays of a node's interfaces."""
        return {interface: delay for (name, interface), delay in self.ingress_delays.items() if name == node}

    def rdma_device(self, host: str) -> str:
        """Return the name of a host's soft-RoCE device."""
        return f"rxe_{host}"

    def probe_mac(self, building: str) -> str:
        """Return the Ethernet address of a building's probe node."""
        return f"02:00:0a:ff:00:{self.topology.building(building).index:02x}"

    def switch_ports(self, switch: str) -> tuple[str | None, tuple[str, ...]]:
        """Return a switch's node (None for the root namespace) and interfaces."""
        for edge in self.edges:
            if switch == edge.name:
                return None, edge.interfaces
        (bridge,) = (bridge for bridge in self.bridges if bridge.name == switch)
        return switch, tuple(port.interface for port in bridge.ports)

    @property
    def wan_ports(self) -> tuple[WanPort, ...]:
        """The WAN link ends of all edges."""
        return tuple(port for edge in self.edges for port in edge.wan)

    def edge_ports(self) -> list[EdgePorts]:
        """Return the edges' ports for the controller."""
        return [
            EdgePorts(
                building=edge.building.name,
                dpid=edge.dpid,
                local=None if edge.local_interface is None else LOCAL_PORT,
                probe=PROBE_PORT,
                wan={(port.neighbour, port.link.plane): port.port for port in edge.wan},
            )
            for edge in self.edges
        ]

    def wires(self) -> list[LinkWire]:
        """Return all wires of the link engine: the WAN links in order, then the cables that need the engine."""
        timed = [cable for cable in self.cables if cable.needs_engine]
        return self.wan_wires() + [cable.wire(number) for number, cable in enumerate(timed)]

    def wan_wires(self) -> list[LinkWire]:
        """Return the WAN links as wires of the link engine, in order."""
        ends = {(port.link_index, port.side): port for port in self.wan_ports}
        wires = []
        for index, link in enumerate(self.topology.wan):
            a, b = ends[index, "a"], ends[index, "b"]
            inner, outer = (a.wan_interface, b.wan_interface), (a.edge_interface, b.edge_interface)
            # A building's core and its edge count as one switch, since nothing limits the cable between them.
            core_a, core_b = (self.topology.building(end).core for end in (link.a, link.b))
            directions = link.a_to_b, link.b_to_a
            wires.append(LinkWire(link.name, *inner, *outer, *directions, switch_a=core_a, switch_b=core_b))
        return wires


def probe_node(building: str) -> str:
    """Return the name of a building's probe node."""
    return f"{building}-probe"

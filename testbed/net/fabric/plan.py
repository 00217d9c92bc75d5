"""From a topology to names, ports and commands: everything about a fabric that can be known before building it. Pure.

Each building is one leaf switch, or a Clos network of them (kernel bridges in namespaces of their own, no policy acts
there: `fabric.bridges`), and an edge switch (Open vSwitch, where the policy acts) with one port to the building's
core, one to a probe node, one per WAN link end. A transit site, which has no hosts, is an edge switch and its probe
node alone. All WAN links pass through one more namespace, where the link engine carries the frames:

    host eth0 ---- leaf ---- edge ---- [ wan: link engine ] ---- edge ---- leaf ---- host
       shaped     shaped

All that a WAN direction is asked to be, rate and queue included, is the link engine's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from testbed.net.controller.edges import EdgePorts
from testbed.net.fabric.bridges import Bridge, Cable, End, bridges, cables
from testbed.net.links.ingress import IngressDelay
from testbed.net.links.link_engine import LinkWire
from testbed.net.links.shaping import Shape
from testbed.spec.links import WanLink
from testbed.spec.topology import Topology

LOCAL_PORT, PROBE_PORT, FIRST_WAN_PORT = 1, 2, 3
WAN_NODE = "wan"
HOSTS_NET = "10.0.0.0/8"
LINUX_RTO_MIN_MS = 200


@dataclass(frozen=True)
class WanPort:
    """One end of a WAN link: interfaces of edge and WAN namespace, OpenFlow port."""

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
    """MPTCP's other paths: each host is reached at these ports as well, by the hosts that come after it."""

    ports: tuple[int, ...]
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class EdgePlan:
    """One building's edge switch: bridge, datapath id and the ports in the root namespace.

    local_interface: the port to the building's core; None for a transit site.
    """

    building: str
    bridge: str
    dpid: int
    local_interface: str | None
    probe_interface: str
    wan: tuple[WanPort, ...]

    @property
    def interfaces(self) -> tuple[str, ...]:
        """All ports' interfaces in the root namespace."""
        return tuple(self.ports)

    @property
    def ports(self) -> dict[str, int]:
        """OpenFlow port numbers by interface."""
        local = {} if self.local_interface is None else {self.local_interface: LOCAL_PORT}
        wan = {port.edge_interface: port.port for port in self.wan}
        return {**local, self.probe_interface: PROBE_PORT, **wan}


@dataclass(frozen=True)
class Plan:
    """Everything to be built for one topology under one name prefix. rdma: whether hosts' cards have verbs."""

    topology: Topology
    prefix: str
    edges: tuple[EdgePlan, ...]
    time_dilation: float = 1.0
    multipath: Multipath | None = None
    link_engine: str = "userspace"
    rdma: bool = False

    @property
    def rto_min_ms(self) -> int:
        """TCP's shortest retransmission timeout: time dilation stretches Linux's."""
        return round(LINUX_RTO_MIN_MS * self.time_dilation)

    @cached_property
    def bridges(self) -> tuple[Bridge, ...]:
        """All switches but the edges."""
        return tuple(bridges(self.topology))

    @cached_property
    def cables(self) -> tuple[Cable, ...]:
        """All that is plugged together within buildings, but for the edges."""
        return tuple(cables(self.topology))

    @cached_property
    def shapes(self) -> dict[End, Shape]:
        """Rates and queues of interfaces (node, name) that are shaped by themselves, not by a link engine."""
        return {end: shape for cable in self.cables for end, shape in cable.shapes().items()}

    @cached_property
    def ingress_delays(self) -> dict[End, IngressDelay]:
        """How frames are held that come in at (node, interface), where no link engine does it: netem's kernels can."""
        if self.link_engine != "netem":
            return {}
        return {end: delay for cable in self.cables for end, delay in cable.ingress_delays().items()}

    def ingress_delays_of(self, node: str) -> dict[str, IngressDelay]:
        """Of a node's interfaces."""
        return {interface: delay for (name, interface), delay in self.ingress_delays.items() if name == node}

    def edge(self, building: str) -> str:
        """Name of a building's edge switch."""
        return self.topology.building(building).edge

    def card(self, host: str) -> str:
        """Name of a host's card with verbs."""
        return f"rxe_{host}"

    def probe(self, building: str) -> str:
        """Name of a building's probe node."""
        return f"{building}-probe"

    def probe_mac(self, building: str) -> str:
        """Ethernet address of a building's probe node."""
        return f"02:00:0a:ff:00:{self.topology.building(building).index:02x}"

    def switch_ports(self, switch: str) -> tuple[str | None, tuple[str, ...]]:
        """(node in whose namespace they are, None for the root one; interfaces) of a switch."""
        for building, edge in zip(self.topology.buildings, self.edges, strict=True):
            if switch == self.edge(building.name):
                return None, edge.interfaces
        (bridge,) = (bridge for bridge in self.bridges if bridge.name == switch)
        return switch, tuple(port.interface for port in bridge.ports)

    @property
    def wan_ports(self) -> tuple[WanPort, ...]:
        """All WAN link ends of all edges."""
        return tuple(port for edge in self.edges for port in edge.wan)

    def edge_ports(self) -> list[EdgePorts]:
        """The edges' ports as the controller takes them."""
        return [
            EdgePorts(
                building=edge.building,
                dpid=edge.dpid,
                local=None if edge.local_interface is None else LOCAL_PORT,
                probe=PROBE_PORT,
                wan={(port.neighbour, port.link.plane): port.port for port in edge.wan},
            )
            for edge in self.edges
        ]

    def wires(self) -> list[LinkWire]:
        """All that a link engine carries: the WAN links in their order, then cables of buildings that take time."""
        timed = [cable for cable in self.cables if cable.takes_time]
        return self.wan_wires() + [cable.wire(number) for number, cable in enumerate(timed)]

    def wan_wires(self) -> list[LinkWire]:
        """The WAN links as a link engine takes them, in their order."""
        ends = {(port.link_index, port.side): port for port in self.wan_ports}
        wires = []
        for index, link in enumerate(self.topology.wan):
            a, b = ends[index, "a"], ends[index, "b"]
            inner, outer = (a.wan_interface, b.wan_interface), (a.edge_interface, b.edge_interface)
            # a building's core and its edge, which nothing limits in between, are one switch
            core_a, core_b = (self.topology.building(end).core for end in (link.a, link.b))
            directions = link.a_to_b, link.b_to_a
            wires.append(LinkWire(link.name, *inner, *outer, *directions, switch_a=core_a, switch_b=core_b))
        return wires


def make_plan(
    topology: Topology,
    prefix: str,
    time_dilation: float = 1.0,
    multipath: Multipath | None = None,
    link_engine: str = "userspace",
    rdma: bool = False,
) -> Plan:
    """Lay out all names and ports. Names in the root namespace begin with `prefix` and keep to 15 characters."""
    edges = []
    for building in topology.buildings:
        bridge = f"{prefix}e{building.index}"
        ports: list[WanPort] = []
        for index, link in enumerate(topology.wan):
            for side, here, there in (("a", link.a, link.b), ("b", link.b, link.a)):
                if here == building.name:
                    number = FIRST_WAN_PORT + len(ports)
                    ports.append(
                        WanPort(
                            link,
                            index,
                            side,
                            here,
                            there,
                            edge_interface=f"{bridge}p{number}",
                            wan_interface=f"w{index}{side}",
                            port=number,
                        )
                    )
        edges.append(
            EdgePlan(
                building.name,
                bridge,
                dpid=building.index + 1,
                local_interface=None if building.is_transit else f"{bridge}p{LOCAL_PORT}",
                probe_interface=f"{bridge}p{PROBE_PORT}",
                wan=tuple(ports),
            )
        )
    return Plan(topology, prefix, tuple(edges), time_dilation, multipath, link_engine, rdma)

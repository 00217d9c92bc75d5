"""From a topology to names, ports and commands: everything about a fabric that can be known before building it. Pure.

Each building is a leaf switch (a kernel bridge in a namespace of its own, no policy acts there) with the hosts, and an
edge switch (Open vSwitch, where the policy acts) with one port to the leaf, one to a probe node, one per WAN link end.
All WAN links pass through one more namespace, where the link engine carries the frames:

    host eth0 ---- leaf ---- edge ---- [ wan: link engine ] ---- edge ---- leaf ---- host
       shaped     shaped

All that a WAN direction is asked to be, rate and queue included, is the link engine's business.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from testbed.config import Host, Topology, WanLink, probe_address
from testbed.links.setup import Setup
from testbed.links.shaping import Shape, shape_commands
from testbed.links.wire import LinkWire

LOCAL_PORT, PROBE_PORT, FIRST_WAN_PORT = 1, 2, 3
WAN_NODE = "wan"
HOSTS_NET = "10.0.0.0/8"
LINUX_RTO_MIN_MS = 200
# In every namespace: no IPv6 chatter on the links; no memory of old connections' metrics, so that each run starts
# alike; and connections that sat out a compute phase keep their window, as training hosts are set up.
HOST_SYSCTLS = {
    "net.ipv6.conf.all.disable_ipv6": "1",
    "net.ipv6.conf.default.disable_ipv6": "1",
    "net.ipv4.tcp_no_metrics_save": "1",
    "net.ipv4.tcp_slow_start_after_idle": "0",
}
LINUX_RECEIVE_BUFFER_BYTES, LINUX_SEND_BUFFER_BYTES = 6 << 20, 4 << 20
LARGEST_BUFFER_BYTES = 1 << 30  # TCP's largest window


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
class EdgePlan:
    """One building's edge switch: bridge, datapath id and the ports in the root namespace."""

    building: str
    bridge: str
    dpid: int
    local_interface: str
    probe_interface: str
    wan: tuple[WanPort, ...]

    @property
    def interfaces(self) -> tuple[str, ...]:
        """All ports' interfaces in the root namespace."""
        return (self.local_interface, self.probe_interface, *(port.edge_interface for port in self.wan))


@dataclass(frozen=True)
class Plan:
    """Everything to be built for one topology under one name prefix."""

    topology: Topology
    prefix: str
    edges: tuple[EdgePlan, ...]
    time_dilation: float = 1.0

    @property
    def rto_min_ms(self) -> int:
        """TCP's shortest retransmission timeout: time dilation stretches Linux's."""
        return round(LINUX_RTO_MIN_MS * self.time_dilation)

    def leaf(self, building: str) -> str:
        """Name of a building's leaf switch."""
        return f"{building}-leaf"

    def edge(self, building: str) -> str:
        """Name of a building's edge switch."""
        return f"{building}-edge"

    def probe(self, building: str) -> str:
        """Name of a building's probe node."""
        return f"{building}-probe"

    def probe_mac(self, building: str) -> str:
        """Ethernet address of a building's probe node."""
        return f"02:00:0a:ff:00:{self.topology.building(building).index:02x}"

    def switch_ports(self, switch: str) -> tuple[str | None, tuple[str, ...]]:
        """(node in whose namespace they are, None for the root one; interfaces) of a switch. KeyError if unknown."""
        for building, edge in zip(self.topology.buildings, self.edges, strict=True):
            if switch == self.edge(building.name):
                return None, edge.interfaces
            if switch == self.leaf(building.name):
                return switch, ("uplink", *(f"p{index}" for index in range(len(building.hosts))))
        raise KeyError(switch)

    @property
    def wan_ports(self) -> tuple[WanPort, ...]:
        """All WAN link ends of all edges."""
        return tuple(port for edge in self.edges for port in edge.wan)

    def wires(self) -> list[LinkWire]:
        """The WAN links as a link engine takes them."""
        ends = {(port.link_index, port.side): port for port in self.wan_ports}
        wires = []
        for index, link in enumerate(self.topology.wan):
            a, b = ends[index, "a"], ends[index, "b"]
            inner, outer = (a.wan_interface, b.wan_interface), (a.edge_interface, b.edge_interface)
            wires.append(LinkWire(link.name, *inner, *outer, link.a_to_b, link.b_to_a))
        return wires


def make_plan(topology: Topology, prefix: str, time_dilation: float = 1.0) -> Plan:
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
                local_interface=f"{bridge}p{LOCAL_PORT}",
                probe_interface=f"{bridge}p{PROBE_PORT}",
                wan=tuple(ports),
            )
        )
    return Plan(topology, prefix, tuple(edges), time_dilation)


def host_setup(plan: Plan, host: Host) -> Setup:
    """One host's namespace: interface, address, static neighbours for every other host, its NIC's rate."""
    topology = plan.topology
    setup = Setup({**HOST_SYSCTLS, **buffer_sysctls(topology)})
    setup.ip += ["link set dev lo up", f"address add {host.ip}/8 dev eth0"]
    setup.add_interface("eth0", topology.mtu)
    if plan.time_dilation != 1:
        setup.ip.append(f"route replace {HOSTS_NET} dev eth0 src {host.ip} rto_min {plan.rto_min_ms}ms")
    setup.ip += [
        f"neigh replace {other.ip} lladdr {other.mac} dev eth0 nud permanent"
        for other in topology.hosts
        if other.name != host.name
    ]
    setup.tc += shape_commands("eth0", nic_shape(host), topology.mtu)
    return setup


def nic_shape(host: Host) -> Shape:
    """Rate and queue of a host's NIC, the same in both directions."""
    return Shape(host.nic_rate_bps, host.nic_queue_bytes)


def buffer_sysctls(topology: Topology) -> dict[str, str]:
    """How far TCP may widen its buffers: to twice the largest bandwidth-delay product, or Linux's own default.

    The window of one connection must cover rate x round trip of its path, and the kernel counts a packet's whole memory
    against a receive buffer, up to twice its payload.
    """
    rate_bps = max(host.nic_rate_bps for host in topology.hosts)
    round_trip_s = max((link.a_to_b.delay_s + link.b_to_a.delay_s for link in topology.wan), default=0.0)
    round_trip_s *= max(1, len(topology.buildings) // 2)  # the farthest way round a ring of buildings
    wanted = min(LARGEST_BUFFER_BYTES, math.ceil(4 * rate_bps / 8 * round_trip_s))
    return {
        "net.ipv4.tcp_rmem": f"4096 131072 {max(LINUX_RECEIVE_BUFFER_BYTES, wanted)}",
        "net.ipv4.tcp_wmem": f"4096 16384 {max(LINUX_SEND_BUFFER_BYTES, wanted)}",
    }


def leaf_setup(plan: Plan, building: str) -> Setup:
    """A leaf switch that neither learns nor floods: every address is put where it belongs."""
    topology = plan.topology
    ports = {host.name: f"p{number}" for number, host in enumerate(topology.building(building).hosts)}
    setup = Setup(dict(HOST_SYSCTLS))
    setup.ip.append("link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0")
    for port in ("uplink", *ports.values()):
        setup.add_interface(port, topology.mtu)
        setup.ip += [
            f"link set dev {port} master br0",
            f"link set dev {port} type bridge_slave learning off flood off mcast_flood off bcast_flood off",
        ]
    setup.ip.append(f"link set dev br0 mtu {topology.mtu} up")
    setup.bridge += [
        f"fdb replace {host.mac} dev {ports.get(host.name, 'uplink')} master static"
        for host in topology.hosts
    ]
    for host in topology.building(building).hosts:
        setup.tc += shape_commands(ports[host.name], nic_shape(host), topology.mtu)
    return setup


def probe_setup(plan: Plan, building: str) -> Setup:
    """A probe node: one address per WAN link end, routes and neighbours that pin each address to its link."""
    setup = Setup({**HOST_SYSCTLS, **buffer_sysctls(plan.topology)})
    setup.ip.append("link set dev lo up")
    setup.add_interface("eth0", plan.topology.mtu)
    for port in plan.wan_ports:
        if port.building != building:
            continue
        mine = probe_address(port.link_index, "a" if port.side == "a" else "b")
        theirs = probe_address(port.link_index, "b" if port.side == "a" else "a")
        setup.ip += [
            f"address add {mine}/32 dev eth0",
            f"route add {theirs}/32 dev eth0 src {mine}",
            f"neigh replace {theirs} lladdr {plan.probe_mac(port.neighbour)} dev eth0 nud permanent",
        ]
    return setup


def wan_setup(plan: Plan) -> Setup:
    """The WAN namespace: the inner ends of all links, up and silent."""
    setup = Setup(dict(HOST_SYSCTLS))
    for port in plan.wan_ports:
        setup.add_interface(port.wan_interface, plan.topology.mtu)
    return setup


def edge_setup(plan: Plan) -> Setup:
    """The edges' ports in the root namespace: silent and up."""
    setup = Setup()
    for edge in plan.edges:
        for interface in edge.interfaces:
            setup.sysctls[f"net.ipv6.conf.{interface}.disable_ipv6"] = "1"
            setup.add_interface(interface, plan.topology.mtu)
    return setup

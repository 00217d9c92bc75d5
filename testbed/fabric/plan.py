"""From a topology to names, ports and commands: everything about a fabric that can be known before building it. Pure.

Each building is a leaf switch (a kernel bridge in a namespace of its own, no policy acts there) with the hosts, and an
edge switch (Open vSwitch, where the policy acts) with one port to the leaf, one to a probe node, one per WAN link end.
All WAN links pass through one more namespace, where the link engine carries the frames:

    host eth0 ---- leaf ---- edge ---- [ wan: link engine ] ---- edge ---- leaf ---- host
       shaped     shaped           shaped             shaped

A WAN direction is shaped right before or right after the engine, as the engine needs it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from testbed.config import Direction, Host, Topology, WanLink, probe_address
from testbed.links.shaping import Shape, shape_commands
from testbed.links.wire import Impairment, LinkWire

LOCAL_PORT, PROBE_PORT, FIRST_WAN_PORT = 1, 2, 3
WAN_NODE = "wan"
# In every namespace: no IPv6 chatter on the links; no memory of old connections' metrics, so that each run starts
# alike; and connections that sat out a compute phase keep their window, as training hosts are set up.
HOST_SYSCTLS = {
    "net.ipv6.conf.all.disable_ipv6": "1",
    "net.ipv6.conf.default.disable_ipv6": "1",
    "net.ipv4.tcp_no_metrics_save": "1",
    "net.ipv4.tcp_slow_start_after_idle": "0",
}
OFFLOADS = ("tx", "tso", "gso", "gro", "sg")


@dataclass(frozen=True)
class WanPort:
    """One end of a WAN link: interfaces of edge and WAN namespace, OpenFlow port, shape of what leaves here.

    `far_interface` is where what leaves here comes out of the engine.
    """

    link: WanLink
    link_index: int
    side: str
    building: str
    neighbour: str
    edge_interface: str
    wan_interface: str
    far_interface: str
    port: int
    shape: Shape


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
    shaped_after: bool

    def shaper(self, port: WanPort) -> str:
        """The interface that shapes what leaves at `port`: in the WAN namespace if `shaped_after`, else in the root."""
        return port.far_interface if self.shaped_after else port.edge_interface

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

    @property
    def wan_ports(self) -> tuple[WanPort, ...]:
        """All WAN link ends of all edges."""
        return tuple(port for edge in self.edges for port in edge.wan)

    def wires(self) -> list[LinkWire]:
        """The WAN links as a link engine takes them."""
        return [
            LinkWire(
                link.name, f"w{index}a", f"w{index}b", _impairment(link.a_to_b), _impairment(link.b_to_a)
            )
            for index, link in enumerate(self.topology.wan)
        ]


def make_plan(topology: Topology, prefix: str, shaped_after: bool = False) -> Plan:
    """Lay out all names and ports; `shaped_after` as the link engine has it.

    Names in the root namespace begin with `prefix` and keep to 15 characters.
    """
    edges = []
    for building in topology.buildings:
        bridge = f"{prefix}e{building.index}"
        ports: list[WanPort] = []
        for index, link in enumerate(topology.wan):
            for side, here, there, out in (
                ("a", link.a, link.b, link.a_to_b),
                ("b", link.b, link.a, link.b_to_a),
            ):
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
                            far_interface=f"w{index}{'b' if side == 'a' else 'a'}",
                            port=number,
                            shape=Shape(out.rate_bps, out.queue_bytes),
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
    return Plan(topology, prefix, tuple(edges), shaped_after)


def interface_commands(interface: str, mtu: int) -> list[str]:
    """MTU and offloads of one interface, then up. Offloads are off: userspace paths carry frames as they are."""
    switches = " ".join(f"{offload} off" for offload in OFFLOADS)
    return [
        f"ip link set {interface} mtu {mtu}",
        f"ethtool -K {interface} {switches}",
        f"ip link set {interface} up",
    ]


def known_sysctls(settings: Mapping[str, str]) -> dict[str, str]:
    """Those kernel parameters that this kernel was built with."""
    return {
        key: value for key, value in settings.items() if os.path.exists("/proc/sys/" + key.replace(".", "/"))
    }


def sysctl_commands(settings: Mapping[str, str]) -> list[str]:
    """Commands that set kernel parameters, where this kernel has them."""
    return [f"sysctl -qw {key}={value}" for key, value in known_sysctls(settings).items()]


def host_commands(topology: Topology, host: Host) -> list[str]:
    """One host's namespace: interface, static neighbours for every other host, its NIC's rate."""
    neighbours = "\n".join(
        f"neigh replace {other.ip} lladdr {other.mac} dev eth0 nud permanent"
        for other in topology.hosts
        if other.name != host.name
    )
    return [
        *sysctl_commands(HOST_SYSCTLS),
        "ip link set lo up",
        *interface_commands("eth0", topology.mtu),
        f"ip -batch - <<'END'\n{neighbours}\nEND",
        *shape_commands("eth0", nic_shape(host), topology.mtu),
    ]


def nic_shape(host: Host) -> Shape:
    """Rate and queue of a host's NIC, the same in both directions."""
    return Shape(host.nic_rate_bps, host.nic_queue_bytes)


def leaf_commands(plan: Plan, building: str) -> list[str]:
    """A leaf switch that neither learns nor floods: every address is put where it belongs."""
    topology = plan.topology
    ports = {host.name: f"p{number}" for number, host in enumerate(topology.building(building).hosts)}
    commands = [
        *sysctl_commands(HOST_SYSCTLS),
        "ip link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
    ]
    for port in ("uplink", *ports.values()):
        commands += [
            *interface_commands(port, topology.mtu),
            f"ip link set {port} master br0",
            f"ip link set {port} type bridge_slave learning off flood off mcast_flood off bcast_flood off",
        ]
    commands.append(f"ip link set br0 mtu {topology.mtu} up")
    entries = "\n".join(
        f"fdb replace {host.mac} dev {ports.get(host.name, 'uplink')} master static"
        for host in topology.hosts
    )
    commands.append(f"bridge -batch - <<'END'\n{entries}\nEND")
    for host in topology.building(building).hosts:
        commands += shape_commands(ports[host.name], nic_shape(host), topology.mtu)
    return commands


def probe_commands(plan: Plan, building: str) -> list[str]:
    """A probe node: one address per WAN link end, routes and neighbours that pin each address to its link."""
    commands = [*sysctl_commands(HOST_SYSCTLS), *interface_commands("eth0", plan.topology.mtu)]
    for port in plan.wan_ports:
        if port.building != building:
            continue
        mine = probe_address(port.link_index, "a" if port.side == "a" else "b")
        theirs = probe_address(port.link_index, "b" if port.side == "a" else "a")
        commands += [
            f"ip address add {mine}/32 dev eth0",
            f"ip route add {theirs}/32 dev eth0 src {mine}",
            f"ip neigh replace {theirs} lladdr {plan.probe_mac(port.neighbour)} dev eth0 nud permanent",
        ]
    return commands


def wan_commands(plan: Plan) -> list[str]:
    """The WAN namespace: the inner ends of all links, up and silent."""
    commands = sysctl_commands(HOST_SYSCTLS)
    for port in plan.wan_ports:
        commands += interface_commands(port.wan_interface, plan.topology.mtu)
    return commands


def edge_commands(plan: Plan) -> list[str]:
    """The edges' ports in the root namespace: silent and up."""
    commands = []
    for edge in plan.edges:
        for interface in edge.interfaces:
            commands += sysctl_commands({f"net.ipv6.conf.{interface}.disable_ipv6": "1"})
            commands += interface_commands(interface, plan.topology.mtu)
    return commands


def wan_shape_commands(plan: Plan) -> list[str]:
    """Rates and queues of the WAN links; on edges to be set once the ports are Open vSwitch's, which clears them."""
    return [
        command
        for port in plan.wan_ports
        for command in shape_commands(plan.shaper(port), port.shape, plan.topology.mtu)
    ]


def _impairment(direction: Direction) -> Impairment:
    return Impairment(direction.delay_s, direction.jitter_s, direction.loss)

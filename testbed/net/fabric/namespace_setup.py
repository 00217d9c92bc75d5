"""The settings of each namespace of a fabric: addresses, neighbours, forwarding, rates, TCP. This module is pure.

A `Setup` makes the settings; `NamespaceSettings` are those that are read back.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed.net.fabric.bridges import NIC, Bridge
from testbed.net.fabric.plan import HOSTS_NET, WAN_NODE, Multipath, Plan
from testbed.net.links.ingress import CUT_THROUGH_DEVICE, IngressDelay, add_ingress_delays, ingress_device
from testbed.net.links.setup import Setup
from testbed.net.links.shaping import Shape, qdisc_kinds, shape_commands
from testbed.spec.buildings import Building, Host
from testbed.spec.link_direction import ETHERNET_HEADER_BYTES
from testbed.spec.topology import Topology, probe_address
from testbed.spec.transport import MAX_SUBFLOWS

# Disable IPv6, which would send packets on the links. Do not cache TCP metrics, so that all runs start the same. Keep
# the congestion window over a compute phase, as on training hosts. Retransmit a lost SYN with its ECN bits, or DCTCP
# would fall back to Reno for the whole connection.
HOST_SYSCTLS = {
    "net.ipv6.conf.all.disable_ipv6": "1",
    "net.ipv6.conf.default.disable_ipv6": "1",
    "net.ipv4.tcp_no_metrics_save": "1",
    "net.ipv4.tcp_slow_start_after_idle": "0",
    "net.ipv4.tcp_ecn_fallback": "0",
}


def host_setup(plan: Plan, host: Host) -> Setup:
    """Return a host's setup: interface, address, static neighbours for all other hosts, and the NIC's rate."""
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
    if plan.multipath is not None:
        setup.sysctls["net.mptcp.enabled"] = "1"
        setup.ip += _multipath_commands(plan, plan.multipath, host)
    if shape := plan.shapes.get((host.name, NIC)):
        setup.tc += shape_commands(NIC, shape, topology.mtu)
    add_ingress_delays(setup, plan.ingress_delays_of(host.name))
    if plan.rdma:
        setup.soft_roce.append((plan.rdma_device(host.name), NIC))
    return setup


def _multipath_commands(plan: Plan, multipath: Multipath, host: Host) -> list[str]:
    """Return the MPTCP endpoints of a host: one address for all paths, with a port for each, which edges match on.

    Both ends of a connection announce their ports, and the kernel would use both. Only the connecting end may use them,
    so a rule prohibits these ports towards the hosts after this one.
    """
    low, high = min(multipath.ports), max(multipath.ports)
    commands = [f"mptcp limits set subflows {MAX_SUBFLOWS} add_addr_accepted {len(multipath.ports)}"]
    commands += [
        f"mptcp endpoint add {host.ip} port {port} id {number} signal"
        for number, port in enumerate(multipath.ports, start=1)
    ]
    if host.name in multipath.hosts:
        later = multipath.hosts[multipath.hosts.index(host.name) + 1 :]
        commands += [
            f"rule add to {other.ip}/32 ipproto tcp dport {low}-{high} prohibit"
            for other in plan.topology.hosts
            if other.name in later
        ]
    return commands


def bridge_setup(plan: Plan, bridge: Bridge) -> Setup:
    """Return a bridge's setup: static forwarding entries, without learning or flooding."""
    mtu = plan.topology.mtu
    setup = Setup(dict(HOST_SYSCTLS))
    setup.ip.append("link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0")
    for port in bridge.ports:
        setup.add_interface(port.interface, mtu)
        setup.ip += [
            f"link set dev {port.interface} master br0",
            f"link set dev {port.interface} type bridge_slave"
            " learning off flood off mcast_flood off bcast_flood off",
        ]
        setup.bridge += [f"fdb replace {mac} dev {port.interface} master static" for mac in port.macs]
        if shape := plan.shapes.get((bridge.name, port.interface)):
            setup.tc += shape_commands(port.interface, shape, mtu)
    setup.ip.append(f"link set dev br0 mtu {mtu} up")
    add_ingress_delays(setup, plan.ingress_delays_of(bridge.name))
    return setup


def probe_setup(plan: Plan, building: str) -> Setup:
    """Return a probe node's setup: an address per WAN link end, with routes and neighbours that pin it to the link."""
    setup = Setup({**HOST_SYSCTLS, **buffer_sysctls(plan.topology)})
    setup.ip.append("link set dev lo up")
    setup.add_interface("eth0", plan.topology.mtu)
    for port in plan.wan_ports:
        if port.building != building:
            continue
        local = probe_address(port.link_index, "a" if port.side == "a" else "b")
        remote = probe_address(port.link_index, "b" if port.side == "a" else "a")
        setup.ip += [
            f"address add {local}/32 dev eth0",
            f"route add {remote}/32 dev eth0 src {local}",
            f"neigh replace {remote} lladdr {plan.probe_mac(port.neighbour)} dev eth0 nud permanent",
        ]
    return setup


def wan_setup(plan: Plan) -> Setup:
    """Return the WAN namespace's setup: the inner ends of all links, up and without IPv6."""
    setup = Setup(dict(HOST_SYSCTLS))
    for wire in plan.wires():
        for interface in (wire.inner_a, wire.inner_b):
            setup.add_interface(interface, plan.topology.mtu)
    return setup


def edge_setup(plan: Plan) -> Setup:
    """Return the setup of the edges' ports in the root namespace: up and without IPv6."""
    setup = Setup()
    for edge in plan.edges:
        for interface in edge.interfaces:
            setup.sysctls[f"net.ipv6.conf.{interface}.disable_ipv6"] = "1"
            setup.add_interface(interface, plan.topology.mtu)
    return setup


ROOT_NAME = "the root namespace"


@dataclass(frozen=True)
class NamespaceSettings:
    """The expected settings of a namespace.

    Attributes:
        name: Its name.
        pid: A process in it; None for the root namespace.
        interfaces: Its interfaces.
        mtu: The MTU of all interfaces.
        shapes: The shape of each interface that has one.
        sysctls: Kernel parameters.
        rto_min_ms: TCP's minimum RTO on the route to other hosts; None for Linux's default.
        bridge: Whether the interfaces are bridge ports, which must neither learn nor flood.
        ingress_delays: The ingress delay of each interface that has one.
        engine_disciplines: The kinds of qdiscs that the link engine has added to each interface.
    """

    name: str
    pid: int | None
    interfaces: tuple[str, ...]
    mtu: int
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    sysctls: Mapping[str, str] = field(default_factory=dict)
    rto_min_ms: int | None = None
    bridge: bool = False
    ingress_delays: Mapping[str, IngressDelay] = field(default_factory=dict)
    engine_disciplines: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def has_sockets(self) -> bool:
        """Whether the namespace has connections; if so, its kernel parameters are also compared by value."""
        return self.pid is None or self.interfaces == (NIC,)


def namespace_settings(plan: Plan, pids: Mapping[str, int]) -> Iterator[NamespaceSettings]:
    """Yield the expected settings of every namespace of a fabric."""
    engine_disciplines = _engine_disciplines(plan)
    shapes: dict[str, dict[str, Shape]] = defaultdict(dict)
    for (node, interface), shape in plan.shapes.items():
        shapes[node][interface] = shape

    def expected(node: str | None, interfaces: Iterable[str], **more: Any) -> NamespaceSettings:
        name = ROOT_NAME if node is None else node
        return NamespaceSettings(
            name,
            None if node is None else pids[node],
            tuple(interfaces),
            plan.topology.mtu,
            shapes[name],
            ingress_delays=plan.ingress_delays_of(name),
            engine_disciplines=engine_disciplines[node],
            **more,
        )

    basic = HOST_SYSCTLS
    yield expected(None, [name for edge in plan.edges for name in edge.interfaces])
    inner = [name for wire in plan.wires() for name in (wire.inner_a, wire.inner_b)]
    yield expected(WAN_NODE, inner, sysctls=basic)
    for bridge in plan.bridges:
        yield expected(bridge.name, [port.interface for port in bridge.ports], sysctls=basic, bridge=True)
    for edge in plan.edges:
        yield expected(edge.probe, [NIC], sysctls=basic)
    sysctls = {**basic, **buffer_sysctls(plan.topology)}
    rto_min_ms = plan.rto_min_ms if plan.time_dilation != 1 else None
    for host in plan.topology.hosts:
        yield expected(host.name, [NIC], sysctls=sysctls, rto_min_ms=rto_min_ms)


def _engine_disciplines(plan: Plan) -> dict[str | None, dict[str, list[str]]]:
    """Return the kinds of qdiscs that the link engine adds, by namespace and interface."""
    found: dict[str | None, dict[str, list[str]]] = defaultdict(dict)
    if plan.link_engine != "netem":
        return found
    wan = found[WAN_NODE] = {CUT_THROUGH_DEVICE: ["netem"]}
    for wire in plan.wires():
        for inner, node, outer, direction in (
            (wire.inner_a, wire.node_a, wire.outer_a, wire.a_to_b),
            (wire.inner_b, wire.node_b, wire.outer_b, wire.b_to_a),
        ):
            wan |= {inner: ["ingress", "netem"], ingress_device(inner): ["netem"]}
            found[node][outer] = sorted(qdisc_kinds(Shape.from_direction(direction)))
    return found


LINUX_RECEIVE_BUFFER_BYTES, LINUX_SEND_BUFFER_BYTES = 6 << 20, 4 << 20
LIMIT_OUTPUT_BYTES = 1 << 20  # per connection
MAX_BUFFER_BYTES = 1 << 30  # TCP's maximum window


def buffer_sysctls(topology: Topology) -> dict[str, str]:
    """Return the TCP buffer limits for a topology.

    A receive buffer has its maximum size from the start. Linux's auto-tuning grows it according to the data read in one
    round trip, which newer kernels measure in microseconds, excluding unread data. Where acknowledgements queue behind
    data on a short path, the window would then stay a third too small (Linux 6.12 and 7.3; 6.1 is not affected).
    """
    receive_bytes = _receive_buffer_bytes(topology)
    return {
        "net.ipv4.tcp_rmem": f"4096 {receive_bytes} {receive_bytes}",
        "net.ipv4.tcp_wmem": f"4096 16384 {send_buffer_bytes(topology)}",
        # TCP small queues: Linux's default up to 6.17, which later versions quadruple
        "net.ipv4.tcp_limit_output_bytes": str(LIMIT_OUTPUT_BYTES),
    }


def _receive_buffer_bytes(topology: Topology) -> int:
    return max(LINUX_RECEIVE_BUFFER_BYTES, _buffer_bytes(topology))


def receive_window_bytes(topology: Topology) -> int:
    """Return the receive window in payload bytes: half the buffer, since packets count about twice their payload."""
    return _receive_buffer_bytes(topology) // 2


def send_buffer_bytes(topology: Topology) -> int:
    """Return the maximum send buffer of a connection; to the sender, its content counts as sent."""
    return max(LINUX_SEND_BUFFER_BYTES, _buffer_bytes(topology))


def _buffer_bytes(topology: Topology) -> int:
    """Return twice the largest bandwidth-delay product, plus frames held by switches.

    The window of a connection must cover the path's rate x round trip and a frame in each store-and-forward switch. The
    kernel counts a packet's whole memory against a receive buffer, up to twice its payload.
    """
    rate_bps = max(host.nic.rate_bps for host in topology.hosts)
    round_trip_s = max((link.round_trip_s for link in topology.wan), default=0.0)
    max_links = max(1, len(topology.buildings) // 2)  # the longest shortest path in a ring of buildings
    round_trip_s *= max_links
    round_trip_s += 4 * max(_delay_inside_s(building) for building in topology.populated)
    tiers = 6 if any(building.clos for building in topology.buildings) else 2
    held_bytes = (tiers + max_links) * (topology.mtu + ETHERNET_HEADER_BYTES)
    return min(MAX_BUFFER_BYTES, math.ceil(4 * (rate_bps / 8 * round_trip_s + held_bytes)))


def _delay_inside_s(building: Building) -> float:
    """Return the largest delay from a host to its building's edge."""
    tiers = (building.clos.leaf_uplink, building.clos.spine_uplink) if building.clos else ()
    return max(host.nic.delay_s for host in building.hosts) + sum(link.delay_s for link in tiers)

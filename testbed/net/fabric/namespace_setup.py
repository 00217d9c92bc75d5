"""Settings of each namespace of a fabric: addresses, neighbours, forwarding, rates, TCP. Pure."""

from __future__ import annotations

import math

from testbed.net.fabric.bridges import CARD, Bridge
from testbed.net.fabric.plan import HOSTS_NET, Multipath, Plan
from testbed.net.links.ingress import add_ingress_delays
from testbed.net.links.setup import Setup
from testbed.net.links.shaping import shape_commands
from testbed.spec.buildings import Building, Host
from testbed.spec.links import ETHERNET_HEADER_BYTES
from testbed.spec.topology import Topology, probe_address
from testbed.spec.transport import MAX_SUBFLOWS

# In every namespace: no IPv6 chatter on the links; no memory of old connections' metrics, so that each run starts
# alike; connections that sat out a compute phase keep their window, as training hosts are set up; and a SYN that is
# lost is sent again with its ECN bits, else DCTCP falls back to Reno for the whole connection.
HOST_SYSCTLS = {
    "net.ipv6.conf.all.disable_ipv6": "1",
    "net.ipv6.conf.default.disable_ipv6": "1",
    "net.ipv4.tcp_no_metrics_save": "1",
    "net.ipv4.tcp_slow_start_after_idle": "0",
    "net.ipv4.tcp_ecn_fallback": "0",
}


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
    if plan.multipath is not None:
        setup.sysctls["net.mptcp.enabled"] = "1"
        setup.ip += _multipath_commands(plan, plan.multipath, host)
    if shape := plan.shapes.get((host.name, CARD)):
        setup.tc += shape_commands(CARD, shape, topology.mtu)
    add_ingress_delays(setup, plan.ingress_delays_of(host.name))
    if plan.rdma:
        setup.soft_roce.append((plan.card(host.name), CARD))
    return setup


def _multipath_commands(plan: Plan, multipath: Multipath, host: Host) -> list[str]:
    """One address for all paths, another port for each: that is what edges tell them apart by.

    Both ends of a connection announce their ports, and the kernel would use both. Only the end that has dialled may:
    to the hosts after this one these ports are out of bounds.
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
    """A switch that neither learns nor floods: every address is put where it belongs."""
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
    for wire in plan.wires():
        for interface in (wire.inner_a, wire.inner_b):
            setup.add_interface(interface, plan.topology.mtu)
    return setup


def edge_setup(plan: Plan) -> Setup:
    """The edges' ports in the root namespace: silent and up."""
    setup = Setup()
    for edge in plan.edges:
        for interface in edge.interfaces:
            setup.sysctls[f"net.ipv6.conf.{interface}.disable_ipv6"] = "1"
            setup.add_interface(interface, plan.topology.mtu)
    return setup


LINUX_RECEIVE_BUFFER_BYTES, LINUX_SEND_BUFFER_BYTES = 6 << 20, 4 << 20
IN_CARD_BYTES = 1 << 20  # of one connection, at the most
LARGEST_BUFFER_BYTES = 1 << 30  # TCP's largest window


def buffer_sysctls(topology: Topology) -> dict[str, str]:
    """How far TCP may widen its buffers.

    A receive buffer has its largest size from the start: Linux would widen it by what was read in one round trip, which
    newer versions count in microseconds and without what waits. Where acknowledgements queue behind data on a short
    path, a window then stays a third too small (6.12 and 7.3; not 6.1, where this makes no difference).
    """
    received = _receive_buffer_bytes(topology)
    return {
        "net.ipv4.tcp_rmem": f"4096 {received} {received}",
        "net.ipv4.tcp_wmem": f"4096 16384 {send_buffer_bytes(topology)}",
        # how much of one connection may wait in its card: Linux's own up to 6.17, then four times as much
        "net.ipv4.tcp_limit_output_bytes": str(IN_CARD_BYTES),
    }


def _receive_buffer_bytes(topology: Topology) -> int:
    return max(LINUX_RECEIVE_BUFFER_BYTES, _wanted_bytes(topology))


def receive_window_bytes(topology: Topology) -> int:
    """Payload that a receiver lets be under way: packets count with all of their memory, about twice that."""
    return _receive_buffer_bytes(topology) // 2


def send_buffer_bytes(topology: Topology) -> int:
    """Of a connection, at the most: what is in it was sent, as its sender sees it."""
    return max(LINUX_SEND_BUFFER_BYTES, _wanted_bytes(topology))


def _wanted_bytes(topology: Topology) -> int:
    """Twice the largest bandwidth-delay product.

    The window of one connection must cover rate x round trip of its path and a frame in each switch on it, which
    has all of that before it sends any; and the kernel counts a packet's whole memory against a receive buffer, up to
    twice its payload.
    """
    rate_bps = max(host.nic.rate_bps for host in topology.hosts)
    round_trip_s = max((link.round_trip_s for link in topology.wan), default=0.0)
    farthest = max(1, len(topology.buildings) // 2)  # the way round a ring of buildings
    round_trip_s *= farthest
    round_trip_s += 4 * max(_delay_inside_s(building) for building in topology.populated)
    tiers = 6 if any(building.clos for building in topology.buildings) else 2
    frames = (tiers + farthest) * (topology.mtu + ETHERNET_HEADER_BYTES)
    return min(LARGEST_BUFFER_BYTES, math.ceil(4 * (rate_bps / 8 * round_trip_s + frames)))


def _delay_inside_s(building: Building) -> float:
    """From a host up to its building's edge."""
    tiers = (building.clos.leaf_uplink, building.clos.spine_uplink) if building.clos else ()
    return max(host.nic.delay_s for host in building.hosts) + sum(link.delay_s for link in tiers)

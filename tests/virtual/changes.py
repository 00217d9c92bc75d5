"""What somebody may do to a running network: one lie for every kind of object that the kernel has there."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass

from testbed.net.fabric.network import Fabric
from testbed.net.links.netns import run_script
from testbed.net.links.shaping import Shape, shape_commands
from testbed.spec.topology import building_network

OPENFLOW = "ovs-ofctl -O OpenFlow13"
MAIN = "route change 10.0.0.0/8 dev eth0 proto kernel scope link src"
INGRESS = "protocol all pref 20 matchall action mirred egress redirect dev"
TABLE = "from pyroute2.nftables.main import NFTables; NFTables(nfgen_family=2).table({what!r}, name='lie')"


@dataclass(frozen=True)
class Lie:
    """What is done where (a node's name; none: the root namespace), how it is undone, what must be said of it.

    unheard: the kernel tells nobody of it, so that it is seen while it lasts, and not when it is undone at once.
    """

    name: str
    where: str
    plant: str
    undo: str
    named: str
    unheard: bool = False


def all_lies(fabric: Fabric) -> list[Lie]:
    """For a network of two buildings, `east` and `west`, of two hosts each, on netem and the kernel's datapath."""
    return [
        *_classes(fabric),
        *_queues(fabric),
        *_filters(),
        *_addresses(fabric),
        *_interfaces(fabric),
        *_parameters(),
        *_edges(fabric),
    ]


def _classes(fabric: Fabric) -> list[Lie]:
    port = fabric.plan.edges[0].wan[0].edge_interface

    def htb(name: str, node: str, device: str, minor: str, **times: float) -> Lie:
        """A class of HTB with some of its settings so many times as large, from the commands that set it."""
        shape = (
            fabric.plan.shapes[node, device] if node else Shape.from_direction(fabric.topology.wan[0].a_to_b)
        )
        commands = shape_commands(device, shape, fabric.topology.mtu)
        (honest,) = (line for line in commands if f"classid {minor} " in line)
        false = honest
        for word, by in times.items():
            before = re.search(rf"\b{word} (\d+)", false)
            assert before is not None
            changed = f"{word} {int(int(before[1]) * by)}"
            false = false.replace(before[0], changed, 1)
        plant, undo = (f"tc {line.replace('class add', 'class change')}" for line in (false, honest))
        return Lie(name, node, plant, undo, f"class {minor} of {device}: {next(iter(times))}")

    return [
        htb("a leaf port's class halved", "east-leaf", "p0", "1:10", rate=0.5),
        htb("a leaf port's ceiling halved", "east-leaf", "p1", "1:10", rate=0.5, ceil=0.5),
        htb("a leaf port's whole rate halved", "east-leaf", "p0", "1:1", rate=0.5, ceil=0.5),
        htb("a card's class slowed", "west1", "eth0", "1:10", rate=0.8, ceil=0.8),
        htb("bursts of a card", "east1", "eth0", "1:10", burst=160_000, cburst=160_000),
        htb("a card's quantum", "east1", "eth0", "1:10", quantum=2),
        htb("a WAN link's rate", "", port, "1:10", rate=0.7, ceil=0.7),
        Lie(
            "a class more",
            "east1",
            "tc class add dev eth0 parent 1:1 classid 1:77 htb rate 1mbit burst 9000 cburst 9000 quantum 9000",
            "tc class del dev eth0 classid 1:77",
            "class 1:77 of eth0: added",
        ),
    ]


def _queues(fabric: Fabric) -> list[Lie]:
    shown = run_script(fabric.pids["wan"], ["tc qdisc show dev w0b"])
    limit = re.search(r"netem.* limit (\d+)", shown)
    assert limit is not None
    fibre = f"tc qdisc change dev w0b root netem limit {limit[1]} delay"
    honest = f"{fibre} 2000us"
    hold = "tc qdisc change dev in-eth0 root netem limit 1000000 rate"
    rate = round(fabric.topology.hosts[0].nic.rate_bps / 8)
    fifo = "tc qdisc change dev p0 parent 1:10 handle 110: bfifo limit"
    tbf = "root tbf rate 20mbit burst 20000 limit 200000"
    whole = fabric.plan.shapes["east-leaf", "p0"].queue_bytes
    return [
        Lie(
            "a leaf port's queue", "east-leaf", f"{fifo} 20000", f"{fifo} {whole}", "bfifo 110: of p0: limit"
        ),
        Lie(
            "a tbf on an uplink",
            "east-leaf",
            f"tc qdisc add dev uplink {tbf}",
            "tc qdisc del dev uplink root",
            "of uplink: added",
        ),
        Lie(
            "a tbf on a fibre",
            "wan",
            f"tc qdisc add dev br0 {tbf}",
            "tc qdisc del dev br0 root",
            "of br0: added",
        ),
        Lie("a fibre's delay", "wan", f"{fibre} 5ms", honest, "of w0b: delay"),
        Lie("a fibre's loss", "wan", f"{honest} loss 1%", honest, "of w0b: loss"),
        Lie("a fibre's duplicates", "wan", f"{honest} duplicate 1%", honest, "of w0b: duplicate"),
        Lie("a fibre's room", "wan", honest.replace(limit[1], "9"), honest, "of w0b: limit"),
        Lie(
            "a hold at half the rate",
            "east1",
            f"{hold} {rate // 2}bps",
            f"{hold} {rate}bps",
            "of in-eth0: rate",
        ),
        Lie(
            "no hold",
            "east1",
            "tc qdisc del dev eth0 ingress",
            f"tc qdisc add dev eth0 handle ffff: ingress; tc filter add dev eth0 parent ffff: {INGRESS} in-eth0",
            "ingress ffff: of eth0: gone",
        ),
    ]


def _filters() -> list[Lie]:
    return [
        Lie(
            "a filter before others",
            "east1",
            "tc filter add dev eth0 parent ffff: protocol ip pref 5 u32 match u32 0 0 action pass",
            "tc filter del dev eth0 parent ffff: pref 5",
            "filter of preference 5 at ffff: of eth0: added",
        ),
        Lie(
            "a filter that drops on the way out",
            "east-leaf",
            "tc qdisc add dev uplink clsact; tc filter add dev uplink egress protocol ip pref 7 matchall action drop",
            "tc qdisc del dev uplink clsact",
            "filter of preference 7 at ffff:fff3 of uplink: added",
        ),
        Lie(
            "a filter gone",
            "east-leaf",
            "tc filter del dev p1 parent ffff: pref 20",
            f"tc filter add dev p1 parent ffff: {INGRESS} in-p1",
            "filter of preference 20 at ffff: of p1: gone",
        ),
    ]


def _addresses(fabric: Fabric) -> list[Lie]:
    hosts = {host.name: host for host in fabric.topology.hosts}
    own, mate, far = hosts["east1"], hosts["east2"], hosts["west1"]
    permanent = "dev eth0 nud permanent"
    entry = f"bridge fdb replace {mate.mac} dev p1 master static"
    through = f"bridge fdb replace {far.mac} dev"
    window = f"{MAIN} {mate.ip} initcwnd 2 window 20000"
    return [
        Lie(
            "a path's MTU",
            "east1",
            f"ip route add {far.ip}/32 dev eth0 src {own.ip} mtu 1500",
            f"ip route del {far.ip}/32",
            f"route to {far.ip}/32 of eth0: added",
        ),
        Lie(
            "the route's MTU",
            "east2",
            f"ip {MAIN} {mate.ip} mtu 4000",
            f"ip {MAIN} {mate.ip}",
            "of eth0: mtu",
        ),
        Lie("the route's window", "east2", f"ip {window}", f"ip {MAIN} {mate.ip}", "of eth0: window"),
        Lie(
            "a way shut",
            "west1",
            f"ip route add blackhole {own.ip}",
            f"ip route del {own.ip}",
            f"{own.ip}/32: added",
        ),
        Lie(
            "a rule",
            "east1",
            f"ip rule add to {far.ip} prohibit",
            f"ip rule del to {far.ip} prohibit",
            "rule 32765",
        ),
        Lie(
            "an address",
            "east1",
            "ip address add 10.99.0.1/32 dev eth0",
            "ip address del 10.99.0.1/32 dev eth0",
            "address 10.99.0.1/32 of eth0: added",
        ),
        Lie(
            "a neighbour elsewhere",
            "east1",
            f"ip neigh replace {far.ip} lladdr {mate.mac} {permanent}",
            f"ip neigh replace {far.ip} lladdr {far.mac} {permanent}",
            f"neighbour {far.ip} of eth0: lladdr",
        ),
        Lie(
            "a neighbour gone",
            "west1",
            f"ip neigh del {mate.ip} dev eth0",
            f"ip neigh replace {mate.ip} lladdr {mate.mac} {permanent}",
            f"neighbour {mate.ip} of eth0",
        ),
        Lie(
            "a forwarding entry gone",
            "east-leaf",
            f"bridge fdb del {mate.mac} dev p1 master",
            entry,
            f"forwarding entry {mate.mac} of p1: gone",
        ),
        Lie(
            "a forwarding entry elsewhere",
            "east-leaf",
            f"{through} p0 master static",
            f"{through} uplink master static",
            f"forwarding entry {far.mac} of p0: added",
        ),
    ]


def _interfaces(fabric: Fabric) -> list[Lie]:
    port = fabric.plan.edges[0].wan[0].edge_interface

    def link(
        name: str, where: str, device: str, false: str, honest: str, what: str, unheard: bool = False
    ) -> Lie:
        plant, undo = (f"ip link set dev {device} {setting}" for setting in (false, honest))
        return Lie(name, where, plant, undo, f"{device}: {what}", unheard)

    port_of = "type bridge_slave"
    ageing = "type bridge ageing_time"
    return [
        link("a host's MTU", "east1", "eth0", "mtu 8000", "mtu 9000", "mtu"),
        link("a leaf port's MTU", "east-leaf", "p0", "mtu 5000", "mtu 9000", "mtu"),
        link("a fibre's MTU", "wan", "w0a", "mtu 3000", "mtu 9000", "mtu"),
        link("an edge port's MTU", "", port, "mtu 3000", "mtu 9000", "mtu"),
        link("a card's queue length", "east1", "eth0", "txqueuelen 5", "txqueuelen 1000", "txqlen"),
        link("an uplink's queue length", "west-leaf", "uplink", "txqueuelen 5", "txqueuelen 1000", "txqlen"),
        link(
            "a port that learns",
            "east-leaf",
            "p0",
            f"{port_of} learning on",
            f"{port_of} learning off",
            "learning",
        ),
        link(
            "a port that floods",
            "east-leaf",
            "p1",
            f"{port_of} flood on",
            f"{port_of} flood off",
            "unicast_flood",
        ),
        link(
            "a port shut off", "wan", "w1b", f"{port_of} isolated on", f"{port_of} isolated off", "isolated"
        ),
        link(
            "a bridge that forgets", "east-leaf", "br0", f"{ageing} 100", f"{ageing} 30000", "br_ageing_time"
        ),
        link("a plane down", "wan", "w1a", "down", "up", "flags"),
        link("a card that takes all", "east1", "eth0", "promisc on", "promisc off", "flags"),
        link(
            "the largest segment",
            "east1",
            "eth0",
            "gso_max_size 20000",
            "gso_max_size 65536",
            "gso",
            unheard=True,
        ),
        Lie("an interface more", "east1", "ip link add lie type ifb", "ip link del lie", "lie: added"),
        Lie(
            "offloads for sending",
            "east1",
            "ethtool -K eth0 sg on tso on gso on",
            "ethtool -K eth0 tso off gso off sg off",
            "offloads of eth0:",
        ),
        Lie(
            "an offload for receiving",
            "west1",
            "ethtool -K eth0 gro on",
            "ethtool -K eth0 gro off",
            "offloads of eth0:",
        ),
        Lie(
            "a packet filter",
            "east1",
            f"{sys.executable} -c {shlex.quote(TABLE.format(what='add'))} 2>&1",
            f"{sys.executable} -c {shlex.quote(TABLE.format(what='del'))} 2>&1",
            "nftables: generation",
        ),
    ]


def _parameters() -> list[Lie]:
    def parameter(name: str, value: str, where: str = "east1") -> Lie:
        path, kept = f"/proc/sys/{name.replace('.', '/')}", f"/tmp/{name}"
        plant = f"cat {path} > {kept}; echo '{value}' > {path}"
        return Lie(
            f"{name} in {where or 'the root namespace'}", where, plant, f"cat {kept} > {path}", f"{name}: "
        )

    return [
        parameter("net.ipv4.tcp_limit_output_bytes", "3000"),
        parameter("net.ipv4.tcp_sack", "0"),
        parameter("net.ipv4.tcp_rmem", "4096 8192 16384"),
        parameter("net.ipv4.tcp_congestion_control", "reno"),
        parameter("net.ipv4.tcp_slow_start_after_idle", "1"),
        parameter("net.ipv4.ip_forward", "1", "west-probe"),
        parameter("net.ipv4.conf.eth0.rp_filter", "1"),
        parameter("net.ipv4.neigh.eth0.base_reachable_time_ms", "5"),
        parameter("net.ipv4.conf.p0.proxy_arp", "1", "east-leaf"),
        parameter("net.core.netdev_max_backlog", "20", ""),
        parameter("net.core.dev_weight", "4", ""),
        parameter("net.ipv4.tcp_mem", "100 200 300", ""),
    ]


def _edges(fabric: Fabric) -> list[Lie]:
    edge = fabric.plan.edges[0]
    bridge, port = edge.bridge, edge.wan[0]
    far, west = fabric.topology.hosts[-1].ip, building_network(1)
    rule = f"priority=60000,ip,nw_dst={far}"
    police = f"ovs-vsctl set interface {port.edge_interface} ingress_policing_rate={{0}} ingress_policing_burst={{0}}"
    return [
        Lie(
            "a rule of the edge more",
            "",
            f"{OPENFLOW} add-flow {bridge} {rule},actions=drop",
            f"{OPENFLOW} --strict del-flows {bridge} {rule}",
            f"nw_dst={far}",
        ),
        Lie(
            "rules of the edge gone",
            "",
            f"{OPENFLOW} dump-flows --no-stats {bridge} > /tmp/flows; {OPENFLOW} del-flows {bridge} ip,nw_dst={west}",
            f"{OPENFLOW} add-flows {bridge} /tmp/flows",
            f"nw_dst={west}",
        ),
        Lie(
            "a group of the edge more",
            "",
            f"{OPENFLOW} add-group {bridge} group_id=99,type=all,bucket=actions=output:{port.port}",
            f"{OPENFLOW} del-groups {bridge} group_id=99",
            "group 99: added",
            unheard=True,
        ),
        Lie(
            "a port of the edge that forwards nothing",
            "",
            f"{OPENFLOW} mod-port {bridge} {port.port} no-forward",
            f"{OPENFLOW} mod-port {bridge} {port.port} forward",
            "NO_FWD",
        ),
        Lie(
            "a port of the edge that is policed",
            "",
            police.format(5000),
            police.format(0),
            f"ingress ffff: of {port.edge_interface}: added",
        ),
    ]

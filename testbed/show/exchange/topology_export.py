"""Export of a topology to Mininet and containerlab, as plain Linux hosts and routers.

These programs do not include a controller. So each building is one router with its hosts attached, and static routes
follow shortest paths, with ECMP over parallel links. No switch floods, so links may form loops.
"""

from __future__ import annotations

import heapq
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from testbed.spec.hardware import UNSET_HARDWARE
from testbed.spec.link_direction import PACKET_FAULTS, Direction
from testbed.spec.scale import Scale
from testbed.spec.topology import Topology, TopologySpec

GATEWAY = "169.254.1.1"  # gateway of every host, on the loopback of every router


@dataclass(frozen=True)
class Port:
    """An interface of a node, and the shaping of its egress traffic."""

    node: str
    number: int
    shape: Direction


Cable = tuple[Port, Port]
"""Two ports, each of which shapes what it sends."""


@dataclass(frozen=True)
class RoutedNetwork:
    """A network of hosts and routers.

    `hosts` has addresses by name. `commands` has, per node, the commands to run once its interfaces exist; `{N}` is the
    name of interface N.
    """

    name: str
    mtu: int
    routers: tuple[str, ...]
    hosts: dict[str, str]
    cables: tuple[Cable, ...]
    commands: dict[str, list[str]]
    size_scale: float


def fitting_scale(spec: TopologySpec, most_bps: float) -> float:
    """Return the divisor that brings all rates to at most `most_bps`; 1 if none is above."""
    topology = spec.resolve()
    rates = [host.nic.rate_bps for host in topology.hosts]
    rates += [way.rate_bps for way in topology.wan_directions]
    return max(1.0, max(rates) / most_bps)


def build_routed_network(spec: TopologySpec, size_scale: float) -> RoutedNetwork:
    """Build the network, with rates divided by `size_scale`."""
    topology = spec.resolve(Scale(size_scale))
    numbers: dict[str, Iterator[int]] = defaultdict(lambda: itertools.count(1))

    def port(node: str, shape: Direction) -> Port:
        return Port(node, next(numbers[node]), shape)

    cables = [(port(host.name, host.nic), port(host.building, host.nic)) for host in topology.hosts]
    cables += [(port(link.a, link.a_to_b), port(link.b, link.b_to_a)) for link in topology.wan]
    commands: dict[str, list[str]] = defaultdict(list)
    for node, command in _commands(topology, cables):
        commands[node].append(command)
    names = tuple(building.name for building in topology.buildings)
    hosts = {host.name: host.ip for host in topology.hosts}
    return RoutedNetwork(topology.name, topology.mtu, names, hosts, tuple(cables), commands, size_scale)


def _commands(topology: Topology, cables: list[Cable]) -> Iterator[tuple[str, str]]:
    inside, wan = cables[: len(topology.hosts)], cables[len(topology.hosts) :]
    for building in topology.buildings:
        yield building.name, "sysctl -qw net.ipv4.ip_forward=1 net.ipv4.fib_multipath_hash_policy=1"
        yield building.name, f"ip addr add {GATEWAY}/32 dev lo"
    for cable, host in zip(inside, topology.hosts, strict=True):
        own, router = (f"{{{port.number}}}" for port in cable)
        yield host.name, f"ip addr add {host.ip}/32 dev {own}"
        yield host.name, f"ip route add {GATEWAY} dev {own}"
        yield host.name, f"ip route add 10.0.0.0/8 via {GATEWAY}"
        yield host.building, f"ip route add {host.ip}/32 dev {router}"
    for number, cable in enumerate(wan):
        for address, port in enumerate(cable, 1):
            yield port.node, f"ip addr add {_address(number, address)}/30 dev {{{port.number}}}"
    networks = {building.name: f"10.{building.index}.0.0/16" for building in topology.buildings}
    for building in topology.buildings:
        for target, links in next_links(topology, building.name).items():
            ends = ((number, 2 if wan[number][0].node == building.name else 1) for number in links)
            hops = [f"nexthop via {_address(*end)}" for end in ends]
            yield building.name, f"ip route add {networks[target]} {' '.join(hops)}"


def _address(link: int, end: int) -> str:
    return f"10.254.{link}.{end}"


def shape_settings(way: Direction) -> dict[str, Any]:
    """Return a direction's settings in bit/s, microseconds, percent and bytes."""
    return {
        "rate_bps": round(way.rate_bps),
        "delay_us": round(way.delay_s * 1e6),
        "jitter_us": round(way.jitter_s * 1e6),
        "loss_percent": way.mean_loss * 100,
        "queue_bytes": way.queue_bytes,
    }


def list_losses(spec: TopologySpec) -> list[str]:
    """Describe the features of a topology that plain routers lack."""
    topology, buildings = spec.resolve(), spec.buildings.values()
    directions = topology.wan_directions
    *others, last = (fault.noun for fault in PACKET_FAULTS.values())
    cut_through = any(building.switching == "cut_through" for building in buildings)
    lacking = {
        "tiers of switches inside buildings: replaced by one router": any(one.clos for one in buildings),
        "inference nodes: their hosts are all on one router": any(one.nodes for one in buildings),
        "regions": any(one.region for one in buildings),
        "hosts' accelerators": any(host.hardware != UNSET_HARDWARE for host in topology.hosts),
        "cut-through switching: routers store and forward": cut_through,
        f"{', '.join(others)} and {last} of packets": any(way.faults for way in directions),
        "bursts of loss: as many losses at random": any(way.loss_bursts for way in directions),
        "ECN marks": any(way.ecn_bytes for way in directions),
        "pause frames of switches: queues drop instead": bool(topology.pauses),
    }
    return [words for words, is_used in lacking.items() if is_used]


def _notes(spec: TopologySpec, network: RoutedNetwork, other: str) -> list[str]:
    """Describe everything that an exported network lacks."""
    is_scaled = network.size_scale != 1
    rates = [f"rates, which are divided by {network.size_scale:g}"] if is_scaled else []
    return [*list_losses(spec), *rates, other]


def shortest_s(topology: Topology) -> dict[tuple[str, str], float]:
    """Return the shortest one-way delay between each pair of buildings, in seconds."""
    return {
        (source, target): delay_s
        for source in (building.name for building in topology.buildings)
        for target, (delay_s, _) in _shortest_paths(topology, source).items()
    }


def next_links(topology: Topology, source: str) -> Mapping[str, list[int]]:
    """Return, per other building, the numbers of the links through which packets leave `source`, all parallel ones."""
    found: dict[str, list[int]] = {}
    for target, (_, neighbour) in _shortest_paths(topology, source).items():
        if target != source:
            found[target] = [
                number for number, link in enumerate(topology.wan) if {link.a, link.b} == {source, neighbour}
            ]
    return found


def _shortest_paths(topology: Topology, source: str) -> dict[str, tuple[float, str]]:
    """Return, per building, the shortest delay and the next hop; ties go to the first by name."""
    delays: dict[str, dict[str, float]] = defaultdict(dict)
    for link in topology.wan:
        for here, there, way in link.directions:
            delays[here][there] = min(way.delay_s, delays[here].get(there, way.delay_s))
    found: dict[str, tuple[float, str]] = {}
    heap = [(0.0, 0, source, source)]
    while heap:
        delay_s, hops, here, first = heapq.heappop(heap)
        if here in found:
            continue
        found[here] = delay_s, first
        for there, own_s in delays[here].items():
            if there not in found:
                heapq.heappush(heap, (delay_s + own_s, hops + 1, there, there if here == source else first))
    return found


MININET_MOST_BPS = 1e9  # limit of Mininet's TCLink

SCRIPT = '''#!/usr/bin/env python3
"""The network {name} for Mininet: a router per building with its hosts, and links between routers.

    sudo python3 {file}            # opens Mininet's prompt
    sudo python3 {file} --ping     # pings between all hosts

Rates are divided by {scale:g}. Made by `testbed export`.
"""

import json
import math
import re
import sys

from mininet.cli import CLI
from mininet.link import TCLink
from mininet.log import setLogLevel
from mininet.net import Mininet
from mininet.node import Node

PACKET_BYTES = 1500
NETWORK = json.loads("""
{network}
""")


def shape(port):
    """Return TCLink's parameters; netem's limit counts packets in flight as well as queued ones."""
    waiting = port["queue_bytes"] + port["rate_bps"] * port["delay_us"] / 8e6
    return {{
        "bw": port["rate_bps"] / 1e6,
        "delay": "%dus" % port["delay_us"] if port["delay_us"] else None,
        "jitter": "%dus" % port["jitter_us"] if port["jitter_us"] else None,
        "loss": port["loss_percent"] or None,
        "max_queue_size": math.ceil(waiting / PACKET_BYTES),
    }}


def build():
    """Build the network with its addresses and routes."""
    net = Mininet(controller=None, link=TCLink)
    for name in NETWORK["routers"]:
        net.addHost(name, cls=Node, ip=None)
    for name in NETWORK["hosts"]:
        net.addHost(name, ip=None)
    interfaces = {{}}
    for number, (a, b) in enumerate(NETWORK["cables"]):
        names = ["c%da" % number, "c%db" % number]
        for port, name in zip((a, b), names):
            interfaces[port["node"], port["number"]] = name
        net.addLink(a["node"], b["node"], intfName1=names[0], intfName2=names[1], params1=shape(a), params2=shape(b))
    net.build()
    net.start()
    for name, commands in NETWORK["commands"].items():
        node = net.get(name)
        for command in commands:
            said = node.cmd(re.sub(r"\\{{(\\d+)\\}}", lambda found: interfaces[name, int(found[1])], command))
            if said.strip():
                print("%s: %s: %s" % (name, command, said.strip()), file=sys.stderr)
    for name, address in NETWORK["hosts"].items():  # for Mininet's own commands
        interface = net.get(name).defaultIntf()
        interface.ip, interface.prefixLen = address, "32"
    return net


def main():
    """Start the network, use it, and stop it."""
    setLogLevel("info")
    net = build()
    try:
        if "--ping" in sys.argv[1:]:
            hosts = [net.get(name) for name in NETWORK["hosts"]]
            return 1 if net.ping(hosts) > 0 else 0
        CLI(net)
        return 0
    finally:
        net.stop()


if __name__ == "__main__":
    sys.exit(main())
'''


def export_mininet(spec: TopologySpec, path: Path, size_scale: float | None = None) -> list[str]:
    """Write a Mininet script; describe what it leaves out; `size_scale` is None to fit TCLink's limit."""
    routed = build_routed_network(spec, size_scale or fitting_scale(spec, MININET_MOST_BPS))
    network = {
        "routers": routed.routers,
        "hosts": routed.hosts,
        "cables": [
            [{"node": port.node, "number": port.number, **shape_settings(port.shape)} for port in cable]
            for cable in routed.cables
        ],
        "commands": routed.commands,
    }
    text = SCRIPT.format(
        name=routed.name,
        file=path.name,
        scale=routed.size_scale,
        network=json.dumps(network, indent=1).replace("\\", "\\\\"),
    )
    path.write_text(text)
    path.chmod(0o755)
    return _notes(spec, routed, "packets of more than 1500 bytes")


IMAGE = "ghcr.io/nicolaka/netshoot:latest"  # has iproute2, ping and iperf3
ENDING = ".clab.yml"
NETEM_FILE = "netem.sh"
SCALE_LABEL, KIND_LABEL = "testbed-size-scale", "testbed-kind"
HOST, BUILDING = "host", "building"
CONTAINERLAB_MOST_BPS = 1e9
"""Limit to which rates are divided: about what a container's port on a laptop carries."""


def export_containerlab(
    spec: TopologySpec, folder: Path, size_scale: float | None = None
) -> tuple[list[Path], list[str]]:
    """Write a lab; return its files and what they omit; `size_scale` is None to fit CONTAINERLAB_MOST_BPS."""
    folder.mkdir(parents=True, exist_ok=True)
    network = build_routed_network(spec, size_scale or fitting_scale(spec, CONTAINERLAB_MOST_BPS))
    nodes = {name: _node(network, name, HOST) for name in network.hosts}
    nodes |= {name: _node(network, name, BUILDING) for name in network.routers}
    links = [{"endpoints": [f"{port.node}:eth{port.number}" for port in cable]} for cable in network.cables]
    defaults = {"kind": "linux", "image": IMAGE, "labels": {SCALE_LABEL: f"{network.size_scale!r}"}}
    document = {"name": network.name, "topology": {"defaults": defaults, "nodes": nodes, "links": links}}
    path, netem = folder / f"{network.name}{ENDING}", folder / NETEM_FILE
    path.write_text(yaml.safe_dump(document, sort_keys=False, width=120))
    netem.write_text("\n".join(_netem(network)) + "\n")
    netem.chmod(0o755)
    return [path, netem], _notes(spec, network, "queue sizes: netem's default applies")


def _node(network: RoutedNetwork, name: str, kind: str) -> dict[str, Any]:
    interfaces = [f"eth{port.number}" for cable in network.cables for port in cable if port.node == name]
    commands = [re.sub(r"\{(\d+)\}", r"eth\1", command) for command in network.commands[name]]
    mtu = [f"ip link set {interface} mtu {network.mtu}" for interface in interfaces]
    return {"labels": {KIND_LABEL: kind}, "exec": [*mtu, *commands]}


def _netem(network: RoutedNetwork) -> Iterator[str]:
    yield "#!/bin/sh"
    yield f"# Delays, losses and rates of {network.name}'s interfaces, on egress; run it after `containerlab deploy`."
    yield "set -eu"
    for cable in network.cables:
        for port in cable:
            shape = shape_settings(port.shape)
            options = [f"--delay {shape['delay_us']}us", f"--rate {max(round(shape['rate_bps'] / 1e3), 1)}"]
            if shape["jitter_us"]:
                options.append(f"--jitter {shape['jitter_us']}us")
            if shape["loss_percent"]:
                options.append(f"--loss {shape['loss_percent']:.6g}")
            node, interface = f"clab-{network.name}-{port.node}", f"eth{port.number}"
            yield f"containerlab tools netem set -n {node} -i {interface} {' '.join(options)}"

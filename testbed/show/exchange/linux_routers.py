"""A topology as plain Linux hosts and routers: names, addresses, routes, and what each interface is shaped to.

For programs that bring no controller: one router per building, its hosts plugged straight into it, static routes over
the shortest ways, parallel links by turns. No switch floods, so that links may form loops.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from testbed.show.exchange.routes import next_links
from testbed.spec.hardware import UNSET_HARDWARE
from testbed.spec.link_direction import Direction
from testbed.spec.scale import Scale
from testbed.spec.topology import Topology, TopologySpec

GATEWAY = "169.254.1.1"  # of every host: an address of every router, on no interface of its own


@dataclass(frozen=True)
class Port:
    """An interface: of which node, and what leaves it."""

    node: str
    number: int
    shape: Direction


@dataclass(frozen=True)
class Cable:
    """Two ports, each shaping what it sends."""

    a: Port
    b: Port
    between_buildings: bool


@dataclass(frozen=True)
class Routed:
    """hosts: their addresses.

    commands: for each node, once its interfaces are there; `{N}` stands for the name of its interface number N.
    """

    name: str
    mtu: int
    routers: tuple[str, ...]
    hosts: dict[str, str]
    cables: tuple[Cable, ...]
    commands: dict[str, list[str]]
    size_scale: float


def fitting_scale(spec: TopologySpec, most_bps: float) -> float:
    """By what rates are divided so that none is above this; 1 where none is."""
    topology = spec.resolve()
    rates = [host.nic.rate_bps for host in topology.hosts]
    rates += [way.rate_bps for link in topology.wan for _, _, way in link.ways]
    return max(1.0, max(rates) / most_bps)


def routed(spec: TopologySpec, size_scale: float) -> Routed:
    """Rates divided by this."""
    topology = spec.resolve(Scale(size_scale))
    count: dict[str, int] = {}

    def port(node: str, shape: Direction) -> Port:
        count[node] = count.get(node, 0) + 1
        return Port(node, count[node], shape)

    cables = [
        Cable(port(host.name, host.nic), port(host.building, host.nic), between_buildings=False)
        for host in topology.hosts
    ]
    cables += [
        Cable(port(link.a, link.a_to_b), port(link.b, link.b_to_a), between_buildings=True)
        for link in topology.wan
    ]
    commands: dict[str, list[str]] = {}
    for node, command in _commands(topology, cables):
        commands.setdefault(node, []).append(command)
    names = tuple(building.name for building in topology.buildings)
    hosts = {host.name: host.ip for host in topology.hosts}
    return Routed(topology.name, topology.mtu, names, hosts, tuple(cables), commands, size_scale)


def _commands(topology: Topology, cables: list[Cable]) -> Iterator[tuple[str, str]]:
    inside, wan = cables[: len(topology.hosts)], cables[len(topology.hosts) :]
    for building in topology.buildings:
        yield building.name, "sysctl -qw net.ipv4.ip_forward=1 net.ipv4.fib_multipath_hash_policy=1"
        yield building.name, f"ip addr add {GATEWAY}/32 dev lo"
    for cable, host in zip(inside, topology.hosts, strict=True):
        own, router = f"{{{cable.a.number}}}", f"{{{cable.b.number}}}"
        yield host.name, f"ip addr add {host.ip}/32 dev {own}"
        yield host.name, f"ip route add {GATEWAY} dev {own}"
        yield host.name, f"ip route add 10.0.0.0/8 via {GATEWAY}"
        yield host.building, f"ip route add {host.ip}/32 dev {router}"
    for number, cable in enumerate(wan):
        for port, address in ((cable.a, 1), (cable.b, 2)):
            yield port.node, f"ip addr add {_address(number, address)}/30 dev {{{port.number}}}"
    networks = {building.name: f"10.{building.index}.0.0/16" for building in topology.buildings}
    for building in topology.buildings:
        for target, links in next_links(topology, building.name).items():
            hops = []
            for number in links:
                cable = wan[number]
                there = 2 if cable.a.node == building.name else 1
                hops.append(f"nexthop via {_address(number, there)}")
            yield building.name, f"ip route add {networks[target]} {' '.join(hops)}"


def _address(link: int, end: int) -> str:
    return f"10.254.{link}.{end}"


def shape_of(way: Direction) -> dict[str, Any]:
    """What programs take: bit/s, microseconds, percent, bytes."""
    return {
        "rate_bps": round(way.rate_bps),
        "delay_us": round(way.delay_s * 1e6),
        "jitter_us": round(way.jitter_s * 1e6),
        "loss_percent": way.mean_loss * 100,
        "queue_bytes": way.queue_bytes,
    }


def lost(spec: TopologySpec) -> Iterator[str]:
    """What of a topology plain routers do not have, in words."""
    topology = spec.resolve()
    if any(building.clos for building in spec.buildings.values()):
        yield "tiers of switches inside buildings: one router stands for them"
    if any(building.nodes for building in spec.buildings.values()):
        yield "inference nodes: hosts and cards are alike, on one router"
    if any(building.region for building in spec.buildings.values()):
        yield "regions"
    if any(host.hardware != UNSET_HARDWARE for host in topology.hosts):
        yield "what computes in hosts"
    if any(building.switching == "cut_through" for building in spec.buildings.values()):
        yield "switches that cut through: routers have all of a frame first"
    ways = [way for link in topology.wan for _, _, way in link.ways]
    if any(way.duplicate or way.reorder or way.corrupt for way in ways):
        yield "packets that arrive twice, overtake, or are corrupt"
    if any(way.loss_bursts for way in ways):
        yield "bursts of loss: lost at random, as many"
    if any(way.ecn_bytes for way in ways):
        yield "queues that mark packets (ECN)"
    if topology.pauses:
        yield "switches that pause who sends to them: queues drop what they cannot hold"

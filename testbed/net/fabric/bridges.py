"""The switches of a building that no policy touches: their ports, what lies behind each, who is cabled to whom. Pure.

Kernel bridges that neither learn nor flood: every address is put where it belongs. In a Clos network a packet goes up
to the spine, and down from the core to the spine, that its destination's number gives (D-mod-k routing: Leiserson 1996,
"The network architecture of the Connection Machine CM-5"; its name from Zahavi 2010): many paths, no packet overtakes
another of its flow, and no address has two places. A cable that takes time passes through the WAN namespace, where the
link engine is all that it is; another is a plain pair of interfaces, shaped at both ends. What comes in at an end is
held for its own time on the cable, store and forward, where the kernel can do that; a cut-through switch does not wait
for what stays in its building, unless the cable that it comes by is slower than one that it may leave by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from testbed.net.links.ingress import IngressDelay
from testbed.net.links.link_engine import LinkWire
from testbed.net.links.shaping import Shape
from testbed.spec.buildings import Building, Clos, Host
from testbed.spec.link_direction import Direction
from testbed.spec.topology import Topology, building_network

UPLINK = "uplink"  # of the core, to the edge
CARD = "eth0"
HELD_BYTES = 1 << 30

End = tuple[str, str]  # node, interface


@dataclass(frozen=True)
class Port:
    """A port of a bridge, and the Ethernet addresses behind it."""

    interface: str
    macs: tuple[str, ...]


@dataclass(frozen=True)
class Bridge:
    """A switch: its node is named like it."""

    name: str
    building: str
    ports: tuple[Port, ...]


@dataclass(frozen=True)
class Cable:
    """Two ends that are plugged together; `direction` holds for both directions, None for one without any limit.

    cut_through_a, cut_through_b: the network to which the node at that end sends frames on while they come in; None for
    none. carried: a link engine carries it even without delay, since switches of its network pause who sends to them.
    """

    a: End
    b: End
    direction: Direction | None
    mac_a: str | None = None
    cut_through_a: str | None = None
    cut_through_b: str | None = None
    carried: bool = False

    @property
    def name(self) -> str:
        """Unique within a topology."""
        return f"{self.a[0]}-{self.b[0]}"

    @property
    def takes_time(self) -> bool:
        """Whether a link engine has to carry it."""
        return self.direction is not None and (self.carried or self.direction.delay_s > 0)

    def shapes(self) -> dict[End, Shape]:
        """What its ends are shaped to, where no link engine does it."""
        if self.direction is None:
            return {}
        ends = [self.a, self.b]
        if self.takes_time:
            # a host's own card feeds a link that may be paused no quicker than that carries it
            ends = [end for end in ends if self.carried and end[1] == CARD]
        shape = Shape.from_direction(self.direction)
        return {end: held(end, shape) for end in ends}

    def ingress_delays(self) -> dict[End, IngressDelay]:
        """How frames are held that come in at its ends, where no link engine does it."""
        if self.direction is None or self.takes_time:
            return {}
        rate_bps = self.direction.rate_bps
        return {
            self.a: IngressDelay(rate_bps, self.cut_through_a),
            self.b: IngressDelay(rate_bps, self.cut_through_b),
        }

    def wire(self, number: int) -> LinkWire:
        """As a link engine takes it; `number` counts those of a fabric."""
        assert self.direction is not None
        there = self.direction
        if self.carried and self.a[1] == CARD:  # what a paused host has handed over waits in its memory
            there = replace(there, queue_bytes=max(there.queue_bytes, HELD_BYTES))
        return LinkWire(
            self.name,
            *(f"t{number}a", f"t{number}b"),
            *(self.a[1], self.b[1]),
            there,
            self.direction,
            node_a=self.a[0],
            node_b=self.b[0],
            cut_through_a=self.cut_through_a,
            cut_through_b=self.cut_through_b,
            switch_a=None if self.a[1] == CARD else self.a[0],
            switch_b=self.b[0],
        )


def held(end: End, shape: Shape) -> Shape:
    """At a host's own card what cannot be sent yet waits in the host's memory, as with cards that fetch when they can.

    TCP holds back by itself (small queues); but a segment that is dropped here, with nothing else under way, waits
    200 ms for a timer that counts as no retransmission.
    """
    if end[1] != CARD:
        return shape
    return replace(shape, queue_bytes=max(shape.queue_bytes, HELD_BYTES), queue_packets=None)


def bridges(topology: Topology) -> Iterator[Bridge]:
    """All of a topology, by building; a transit site has none."""
    for building in topology.populated:
        far = [host for host in topology.hosts if host.building != building.name]
        if building.clos is None:
            ports = [Port(f"p{number}", (host.mac,)) for number, host in enumerate(building.hosts)]
            yield Bridge(building.core, building.name, (*ports, Port(UPLINK, _macs(far))))
        else:
            yield from _clos_bridges(building, building.clos, far)


def _clos_bridges(building: Building, clos: Clos, far: list[Host]) -> Iterator[Bridge]:
    for number, leaf in enumerate(building.leaves):
        own = building.leaf_hosts(number)
        ports = [Port(f"p{index}", (host.mac,)) for index, host in enumerate(own)]
        others = _without(building, own) + far
        ports += [Port(f"u{spine}", _macs(_through(others, spine, clos))) for spine in range(clos.spines)]
        yield Bridge(leaf, building.name, tuple(ports))
    down = []
    for number, name in enumerate(building.spines):
        zone, spine = divmod(number, clos.spines)
        own = building.zone_hosts(zone)
        ports = [
            Port(f"d{leaf}", _macs(building.leaf_hosts(zone * clos.leaves + leaf)))
            for leaf in range(clos.leaves)
        ]
        yield Bridge(name, building.name, (*ports, Port("u0", _macs(_without(building, own) + far))))
        down.append(Port(f"d{number}", _macs(_through(own, spine, clos))))
    yield Bridge(building.core, building.name, (*down, Port(UPLINK, _macs(far))))


def _without(building: Building, own: Sequence[Host]) -> list[Host]:
    """The building's other hosts."""
    names = {host.name for host in own}
    return [host for host in building.hosts if host.name not in names]


def _through(hosts: Sequence[Host], spine: int, clos: Clos) -> list[Host]:
    """Those that a spine of each zone leads to."""
    return [host for host in hosts if host.index % clos.spines == spine]


def _macs(hosts: Sequence[Host]) -> tuple[str, ...]:
    return tuple(host.mac for host in hosts)


def cables(topology: Topology) -> Iterator[Cable]:
    """All between hosts and switches and among switches of a building; not those of the edges."""
    carried = topology.pauses
    for building in topology.buildings:
        own = list(_cables(building))
        rates: dict[str, float] = {}
        for cable in own:
            assert cable.direction is not None
            for node, _ in (cable.a, cable.b):
                rates[node] = max(rates.get(node, 0.0), cable.direction.rate_bps)
        for cable in own:
            early = [_early(building, cable, node, rates) for node, _ in (cable.a, cable.b)]
            yield replace(cable, cut_through_a=early[0], cut_through_b=early[1], carried=carried)


def card_cables(topology: Topology) -> dict[str, Cable]:
    """Those between hosts' cards and their switches, by host."""
    return {cable.a[0]: cable for cable in cables(topology) if cable.a[1] == CARD}


def _early(building: Building, cable: Cable, node: str, rates: Mapping[str, float]) -> str | None:
    """Where what comes by this cable need not be whole before the node sends it on; rates: each node's quickest."""
    assert cable.direction is not None
    whole = node not in building.cut_through or cable.direction.rate_bps < rates[node]
    return None if whole else building_network(building.index)


def _cables(building: Building) -> Iterator[Cable]:
    for leaf, name in enumerate(building.leaves):
        for port, host in enumerate(building.leaf_hosts(leaf)):
            yield Cable((host.name, CARD), (name, f"p{port}"), host.nic, host.mac)
    if (clos := building.clos) is None:
        return
    for number, name in enumerate(building.leaves):
        zone, leaf = divmod(number, clos.leaves)
        for spine in range(clos.spines):
            above = building.spines[zone * clos.spines + spine]
            yield Cable((name, f"u{spine}"), (above, f"d{leaf}"), clos.leaf_uplink)
    for number, name in enumerate(building.spines):
        yield Cable((name, "u0"), (building.core, f"d{number}"), clos.spine_uplink)

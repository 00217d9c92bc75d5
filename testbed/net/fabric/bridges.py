"""The kernel bridges and cables within a building: ports, static forwarding entries and shaping. This module is pure.

The bridges neither learn nor flood: all forwarding entries are static. A Clos network uses D-mod-k routing (Leiserson
1996, "The network architecture of the Connection Machine CM-5"; the name is from Zahavi 2010): the destination's index
selects the spine, both upwards and downwards from the core. So there are many paths, but packets of a flow are not
reordered, and every address has one location.

A cable with delay passes through the WAN namespace, where the link engine emulates it. Any other cable is a veth pair
that is shaped at both ends. Where the kernel supports it, the receiving end holds a frame for its serialisation time
(store and forward). A cut-through switch forwards frames that stay in its building at once, unless the incoming cable
is slower than a possible outgoing one.
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

UPLINK = "uplink"  # the core's interface to the edge
NIC = "eth0"
HOST_QUEUE_BYTES = 1 << 30

End = tuple[str, str]  # node, interface


@dataclass(frozen=True)
class Port:
    """A port of a bridge, and the Ethernet addresses that it leads to."""

    interface: str
    macs: tuple[str, ...]


@dataclass(frozen=True)
class Bridge:
    """A kernel bridge; its node has the same name."""

    name: str
    building: str
    ports: tuple[Port, ...]


@dataclass(frozen=True)
class Cable:
    """A cable between two interfaces.

    Attributes:
        a: One end.
        b: The other end.
        direction: The properties of both directions; None for an unlimited cable.
        mac_a: The Ethernet address of end a, if it is given.
        cut_through_a: The network to which the node at end a forwards frames cut-through; None for store and forward.
        cut_through_b: The same for end b.
        paused: Whether the network uses PAUSE frames, which the link engine emulates; it then emulates the cable even
            without delay.
    """

    a: End
    b: End
    direction: Direction | None
    mac_a: str | None = None
    cut_through_a: str | None = None
    cut_through_b: str | None = None
    paused: bool = False

    @property
    def name(self) -> str:
        """The cable's name, unique within a topology."""
        return f"{self.a[0]}-{self.b[0]}"

    @property
    def needs_engine(self) -> bool:
        """Whether the link engine has to emulate the cable."""
        return self.direction is not None and (self.paused or self.direction.delay_s > 0)

    def shapes(self) -> dict[End, Shape]:
        """Return the shape of each end that the link engine does not shape."""
        if self.direction is None:
            return {}
        ends = [self.a, self.b]
        if self.needs_engine:
            # A host's NIC must not feed a link that may be paused faster than the link's rate.
            ends = [end for end in ends if self.paused and end[1] == NIC]
        shape = Shape.from_direction(self.direction)
        return {end: with_host_queue(end, shape) for end in ends}

    def ingress_delays(self) -> dict[End, IngressDelay]:
        """Return how long each end holds incoming frames, if the link engine does not delay them."""
        if self.direction is None or self.needs_engine:
            return {}
        rate_bps = self.direction.rate_bps
        return {
            self.a: IngressDelay(rate_bps, self.cut_through_a),
            self.b: IngressDelay(rate_bps, self.cut_through_b),
        }

    def wire(self, number: int) -> LinkWire:
        """Return the cable as a wire of the link engine; `number` is its index among those of the fabric."""
        assert self.direction is not None
        there = self.direction
        if self.paused and self.a[1] == NIC:  # frames of a paused host wait in its memory
            there = replace(there, queue_bytes=max(there.queue_bytes, HOST_QUEUE_BYTES))
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
            switch_a=None if self.a[1] == NIC else self.a[0],
            switch_b=self.b[0],
        )


def with_host_queue(end: End, shape: Shape) -> Shape:
    """Enlarge the queue of a host's NIC, since frames that cannot be sent yet wait in the host's memory.

    Real NICs fetch frames when they can send them. TCP limits its own queue (TCP small queues), but a segment dropped
    here with nothing else in flight would wait 200 ms for a timer that does not count as a retransmission.
    """
    if end[1] != NIC:
        return shape
    return replace(shape, queue_bytes=max(shape.queue_bytes, HOST_QUEUE_BYTES), queue_packets=None)


def bridges(topology: Topology) -> Iterator[Bridge]:
    """Yield all bridges of a topology, by building; a transit site has none."""
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
        others = _other_hosts(building, own) + far
        ports += [Port(f"u{spine}", _macs(_hosts_via(others, spine, clos))) for spine in range(clos.spines)]
        yield Bridge(leaf, building.name, tuple(ports))
    down = []
    for number, name in enumerate(building.spines):
        zone, spine = divmod(number, clos.spines)
        own = building.zone_hosts(zone)
        ports = [
            Port(f"d{leaf}", _macs(building.leaf_hosts(zone * clos.leaves + leaf)))
            for leaf in range(clos.leaves)
        ]
        yield Bridge(name, building.name, (*ports, Port("u0", _macs(_other_hosts(building, own) + far))))
        down.append(Port(f"d{number}", _macs(_hosts_via(own, spine, clos))))
    yield Bridge(building.core, building.name, (*down, Port(UPLINK, _macs(far))))


def _other_hosts(building: Building, own: Sequence[Host]) -> list[Host]:
    """Return the building's hosts that are not in `own`."""
    names = {host.name for host in own}
    return [host for host in building.hosts if host.name not in names]


def _hosts_via(hosts: Sequence[Host], spine: int, clos: Clos) -> list[Host]:
    """Return the hosts that are reached through a given spine of each zone."""
    return [host for host in hosts if host.index % clos.spines == spine]


def _macs(hosts: Sequence[Host]) -> tuple[str, ...]:
    return tuple(host.mac for host in hosts)


def cables(topology: Topology) -> Iterator[Cable]:
    """Yield the cables of hosts and switches within buildings, without those of the edges."""
    paused = topology.pauses
    for building in topology.buildings:
        own = list(_cables(building))
        rates: dict[str, float] = {}
        for cable in own:
            assert cable.direction is not None
            for node, _ in (cable.a, cable.b):
                rates[node] = max(rates.get(node, 0.0), cable.direction.rate_bps)
        for cable in own:
            near, far = (_cut_through_network(building, cable, node, rates) for node, _ in (cable.a, cable.b))
            yield replace(cable, cut_through_a=near, cut_through_b=far, paused=paused)


def nic_cables(topology: Topology) -> dict[str, Cable]:
    """Return the cables between hosts' NICs and their switches, by host."""
    return {cable.a[0]: cable for cable in cables(topology) if cable.a[1] == NIC}


def _cut_through_network(
    building: Building, cable: Cable, node: str, rates: Mapping[str, float]
) -> str | None:
    """Return the network to which a node forwards a cable's frames cut-through; `rates`: the fastest cable of each."""
    assert cable.direction is not None
    store_and_forward = node not in building.cut_through or cable.direction.rate_bps < rates[node]
    return None if store_and_forward else building_network(building.index)


def _cables(building: Building) -> Iterator[Cable]:
    for leaf, name in enumerate(building.leaves):
        for port, host in enumerate(building.leaf_hosts(leaf)):
            yield Cable((host.name, NIC), (name, f"p{port}"), host.nic, host.mac)
    if (clos := building.clos) is None:
        return
    for number, name in enumerate(building.leaves):
        zone, leaf = divmod(number, clos.leaves)
        for spine in range(clos.spines):
            above = building.spines[zone * clos.spines + spine]
            yield Cable((name, f"u{spine}"), (above, f"d{leaf}"), clos.leaf_uplink)
    for number, name in enumerate(building.spines):
        yield Cable((name, "u0"), (building.core, f"d{number}"), clos.spine_uplink)

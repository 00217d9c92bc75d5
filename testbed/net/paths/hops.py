"""The hops of a path between two hosts: delays, rates, serialisation, and a packet-level view. This module is pure."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from testbed.comm.transport.channels import StripeSettings
from testbed.comm.transport.wire import PACKET_HEADERS_BYTES
from testbed.net.controller.policy_view import View
from testbed.net.fabric.bridges import cables
from testbed.net.links.ingress import CUT_THROUGH_S
from testbed.net.paths.congestion import Growth
from testbed.spec.buildings import Host
from testbed.spec.link_direction import ETHERNET_HEADER_BYTES, Direction, QueueClass
from testbed.spec.topology import Topology

NETEM = "netem"  # the link engine with which every cable stores and forwards frames

Planes = Callable[[Sequence[Direction]], Direction]
"""A function that reduces the parallel links to the next building to the one that a message is assumed to take."""


@dataclass(frozen=True)
class Hop:
    """A hop of a path.

    Attributes:
        name: The hop's name.
        links: A link, or parallel links.
        held: Whether the hop is store and forward.
        early_s: The latency of a cut-through hop in seconds.
    """

    name: str
    links: Sequence[Direction]
    held: bool = True
    early_s: float = 0.0

    def with_plane(self, planes: Planes) -> Hop:
        """Return the hop with parallel links reduced to one by `planes`."""
        return self if len(self.links) == 1 else replace(self, links=[planes(self.links)])


@dataclass(frozen=True)
class Passage:
    """The properties of a path from host to host: total delay in seconds, lowest rate and serialisation."""

    delay_s: float
    rate_bps: float
    serialisation: Serialisation


def passage(topology: Topology, hops: Sequence[Hop]) -> Passage:
    """Compute the properties of a path over hops of one link each."""
    rates_bps = tuple([hop.links[0].rate_bps for hop in hops])
    delay_s = sum([hop.links[0].delay_s + hop.early_s for hop in hops])
    held = tuple([hop.held for hop in hops])
    return Passage(delay_s, min(rates_bps), serialisation_of(rates_bps, held, packet_payload_bytes(topology)))


def packet_payload_bytes(topology: Topology) -> int:
    """Return the payload of a full packet in bytes."""
    return topology.mtu + ETHERNET_HEADER_BYTES - PACKET_HEADERS_BYTES


class Paths:
    """The paths between a topology's hosts, along the shortest paths between buildings.

    With a link engine other than netem, only hops of the engine are store and forward: WAN links, and cables that need
    the engine.
    """

    def __init__(self, topology: Topology, link_engine: str = NETEM) -> None:
        self.topology, self._all_hold = topology, link_engine == NETEM
        self._view = View(topology)
        self._cables = {(cable.a[0], cable.b[0]): cable for cable in cables(topology)}
        self._hosts = {host.name for host in topology.hosts}
        self._buildings = {building.name: building for building in topology.buildings}
        self._wan: dict[tuple[str, str], list[Direction]] = defaultdict(list)
        for here, there, direction in (way for link in topology.wan for way in link.directions):
            self._wan[here, there].append(direction)

    def between(self, one: Host, other: Host) -> list[Hop]:
        """Return the hops from one host to another, in order."""
        route = itertools.pairwise(self._view.route(one.building, other.building))
        up, down = self.inside(one, other)
        return [*up, *(Hop(f"WAN {here} to {there}", self._wan[here, there]) for here, there in route), *down]

    def nodes(self, one: Host, other: Host) -> tuple[list[str], list[str]]:
        """Return each host with the switches above it on the path, up to the core or the first common switch."""
        up, down = self._ascent(one, other), self._ascent(other, other)
        if one.building == other.building:
            meet = next(n for n, (a, b) in enumerate(zip(up, down, strict=True)) if n and a == b)
            up, down = up[: meet + 1], down[: meet + 1]
        return up, down

    def inside(self, one: Host, other: Host) -> tuple[list[Hop], list[Hop]]:
        """Return the hops within buildings: up from the first host, and down to the second."""
        up, down = self.nodes(one, other)
        stays = one.building == other.building
        upward = [self._hop(*ends, up=True, stays=stays) for ends in itertools.pairwise(up)]
        downward = [self._hop(*ends, up=False, stays=stays) for ends in itertools.pairwise(down)]
        return upward, downward[::-1]

    def _hop(self, below: str, above: str, *, up: bool, stays: bool) -> Hop:
        name = f"{below} to {above}" if up else f"{above} to {below}"
        if below in self._hosts:
            name = f"{below} sending" if up else f"{below} receiving"
        cable = self._cables[below, above]
        assert cable.direction is not None
        network = cable.cut_through_b if up else cable.cut_through_a
        if stays and self._all_hold and network is not None:
            return Hop(name, [cable.direction], held=False, early_s=CUT_THROUGH_S)
        # a cable that is only shaped does not delay a frame when it is idle
        return Hop(name, [cable.direction], held=self._all_hold or cable.needs_engine)

    def _ascent(self, host: Host, target: Host) -> list[str]:
        """Return a host and the switches above it on the path to a target, up to the core."""
        building = self._buildings[host.building]
        leaf = building.leaf_of(host)
        found = [host.name, building.leaves[leaf]]
        if clos := building.clos:
            # D-mod-k routing: the target's index selects the spine within the zone
            found += [
                building.spines[leaf // clos.leaves * clos.spines + target.index % clos.spines],
                building.core,
            ]
        return found


@dataclass(frozen=True)
class Serialisation:
    """The store-and-forward hops of a path.

    Attributes:
        byte_s: Seconds per byte on the wire of each hop, in order.
        packet_bytes: The payload of a full packet.
    """

    byte_s: tuple[float, ...] = ()
    packet_bytes: int = 1

    def whole_s(self, size_bytes: float) -> float:
        """Return the seconds from a message's first bit sent to its last bit received, without delays."""
        return _whole_s(self.byte_s, self.packet_bytes, size_bytes)

    def beyond_s(self, size_bytes: float) -> float:
        """Return `whole_s` minus the message's bytes at the slowest hop, with a full packet's share of headers."""
        if not self.byte_s:
            return 0.0
        wire_bytes = size_bytes * (1 + PACKET_HEADERS_BYTES / self.packet_bytes)
        return max(0.0, self.whole_s(size_bytes) - wire_bytes * max(self.byte_s))


NO_SERIALISATION = Serialisation()


@lru_cache(maxsize=1 << 12)
def serialisation_of(
    rates_bps: tuple[float, ...], held: tuple[bool, ...], packet_bytes: int
) -> Serialisation:
    """Compute a path's serialisation from its hops' rates and whether each is store and forward.

    A cut-through hop followed by a hop that is no faster adds no serialisation. The slowest hop always counts.
    """
    slowest = min(range(len(held)), key=lambda hop: (rates_bps[hop], not held[hop]))
    counted = [rate for hop, rate in enumerate(rates_bps) if held[hop] or hop == slowest]
    return Serialisation(tuple(8 / rate for rate in counted), packet_bytes)


@lru_cache(maxsize=1 << 16)
def _whole_s(byte_s: tuple[float, ...], packet_bytes: int, size_bytes: float) -> float:
    """Find the critical path over frames and hops: each frame follows the previous one and its own previous hop.

    All frames but the last are full. n full frames have passed the first hops when one has passed each of these and the
    others have passed the slowest. The last frame follows them from some hop on.
    """
    packets = max(1, math.ceil(size_bytes / packet_bytes))
    last_bytes = size_bytes - (packets - 1) * packet_bytes + PACKET_HEADERS_BYTES
    rest = sum(byte_s)
    if packets == 1:
        return last_bytes * rest
    full_bytes = packet_bytes + PACKET_HEADERS_BYTES
    latest_s = passed = slowest = 0.0
    for hop_byte_s in byte_s:
        passed += hop_byte_s
        slowest = max(slowest, hop_byte_s)
        full_s = full_bytes * (passed + (packets - 2) * slowest)
        latest_s = max(latest_s, full_s + last_bytes * rest)
        rest -= hop_byte_s
    return latest_s


class PacketHop(NamedTuple):
    """One direction of a link or cable, for the packet-level model.

    Attributes:
        name: The hop's name.
        rate_bps: The rate of frames.
        delay_s: The propagation delay in seconds.
        queue_bytes: The length of the queue, or of each class's queue.
        loss: The share of frames lost, 0 to 1.
        held: Whether the hop is store and forward.
        early_s: The latency of a cut-through hop in seconds.
        classes: The traffic classes with their own queues.
        number: The index of the connection's class.
    """

    name: str
    rate_bps: float
    delay_s: float
    queue_bytes: float
    loss: float = 0.0
    held: bool = True
    early_s: float = 0.0
    classes: tuple[QueueClass, ...] = ()
    number: int = 0


class PacketPath(NamedTuple):
    """The path of one connection in one direction, for the packet-level model.

    Attributes:
        hops: The hops of data packets.
        back: The hops of acknowledgements.
        growth: The window growth of its congestion control; None for BBR.
        payload_bytes: The payload of a full packet.
        window_bytes: The maximum window, given by socket buffers.
        stripes: How messages are striped over this and other connections.
    """

    hops: tuple[PacketHop, ...]
    back: tuple[PacketHop, ...]
    growth: type[Growth] | None
    payload_bytes: int
    window_bytes: float = math.inf
    stripes: StripeSettings | None = None

    @property
    def frame_bytes(self) -> int:
        """The size of a full packet on the wire."""
        return self.payload_bytes + PACKET_HEADERS_BYTES


def is_plain(hops: Sequence[Hop]) -> bool:
    """Return whether the packet-level model covers all link properties: queueing, drops and independent losses."""
    return not any(link.pause or link.loss_bursts or link.is_random for hop in hops for link in hop.links)


def packet_hops(hops: Sequence[Hop]) -> tuple[PacketHop, ...]:
    """Convert hops of one link each; the first hop's queue is unlimited, since it is in the host's memory."""
    found = []
    for index, hop in enumerate(hops):
        (direction,) = hop.links
        queue_bytes = float(direction.queue_bytes) if index and not direction.queue_packets else math.inf
        found.append(
            PacketHop(
                hop.name,
                direction.rate_bps,
                direction.delay_s,
                queue_bytes,
                direction.mean_loss,
                hop.held,
                hop.early_s,
            )
        )
    return tuple(found)

"""The hops of a path between two hosts: delays, rates, serialisation, packet-level view. Pure."""

from __future__ import annotations

import math
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
from testbed.spec.link_direction import Direction, QueueClass
from testbed.spec.links import ETHERNET_HEADER_BYTES
from testbed.spec.topology import Topology

NETEM = "netem"  # the link engine with which every cable holds frames

Planes = Callable[[Sequence[Direction]], Direction]
"""Of the parallel links to the next building, what stands for the one that a message takes."""


@dataclass(frozen=True)
class Hop:
    """A link, or parallel ones. held: it has all of a frame before it passes it on; early_s: what it takes if not."""

    name: str
    links: Sequence[Direction]
    held: bool = True
    early_s: float = 0.0

    def by(self, planes: Planes) -> Hop:
        """The same with one link: one that stands for the parallel ones, as `planes` says."""
        return self if len(self.links) == 1 else replace(self, links=[planes(self.links)])


@dataclass(frozen=True)
class Passage:
    """A path from host to host: its delays in seconds, its lowest rate, what its hops hold frames for."""

    delay_s: float
    rate_bps: float
    serialisation: Serialisation


def passage(topology: Topology, hops: Sequence[Hop]) -> Passage:
    """The figures of a path over hops of one link each."""
    rates_bps = tuple([hop.links[0].rate_bps for hop in hops])
    delay_s = sum([hop.links[0].delay_s + hop.early_s for hop in hops])
    held = tuple([hop.held for hop in hops])
    return Passage(delay_s, min(rates_bps), serialisation_of(rates_bps, held, packet_payload_bytes(topology)))


def packet_payload_bytes(topology: Topology) -> int:
    """Payload of a full packet, in bytes."""
    return topology.mtu + ETHERNET_HEADER_BYTES - PACKET_HEADERS_BYTES


class Paths:
    """Paths of a topology's hosts, by the shortest path between buildings.

    link_engine: where it is not netem, only what it carries itself holds frames: WAN links, cables that take time.
    """

    def __init__(self, topology: Topology, link_engine: str = NETEM) -> None:
        self.topology, self._all_hold = topology, link_engine == NETEM
        self._next = View(topology).next_hops
        self._cables = {(cable.a[0], cable.b[0]): cable for cable in cables(topology)}
        self._buildings = {building.name: building for building in topology.buildings}
        self._wan: dict[tuple[str, str], list[Direction]] = {}
        for link in topology.wan:
            self._wan.setdefault((link.a, link.b), []).append(link.a_to_b)
            self._wan.setdefault((link.b, link.a), []).append(link.b_to_a)

    def between(self, one: Host, other: Host) -> list[Hop]:
        """The hops from one host to another, in order."""
        found = []
        here, target = one.building, other.building
        while here != target:
            there = self._next[here][target]
            found.append(Hop(f"WAN {here} to {there}", self._wan[here, there]))
            here = there
        up, down = self.inside(one, other)
        return [*up, *found, *down]

    def nodes(self, one: Host, other: Host) -> tuple[list[str], list[str]]:
        """Each host, and the switches above it that are on the way: up to the core, or to where both meet."""
        up, down = self._tower(one, other), self._tower(other, other)
        if one.building == other.building:
            meet = next(n for n, (a, b) in enumerate(zip(up, down, strict=True)) if n and a == b)
            up, down = up[: meet + 1], down[: meet + 1]
        return up, down

    def inside(self, one: Host, other: Host) -> tuple[list[Hop], list[Hop]]:
        """Those within buildings: up from the one, and down to the other."""
        up, down = self.nodes(one, other)
        stays = one.building == other.building
        rising = [
            self._hop(
                f"{up[n]} to {up[n + 1]}" if n else f"{one.name} sending",
                up[n],
                up[n + 1],
                up=True,
                stays=stays,
            )
            for n in range(len(up) - 1)
        ]
        falling = [
            self._hop(
                f"{down[n + 1]} to {down[n]}" if n else f"{other.name} receiving",
                down[n],
                down[n + 1],
                up=False,
                stays=stays,
            )
            for n in range(len(down) - 1)
        ]
        return rising, falling[::-1]

    def _hop(self, name: str, below: str, above: str, *, up: bool, stays: bool) -> Hop:
        cable = self._cables[below, above]
        assert cable.direction is not None
        early = stays and self._all_hold and (cable.cut_through_b if up else cable.cut_through_a) is not None
        if early:
            return Hop(name, [cable.direction], held=False, early_s=CUT_THROUGH_S)
        # what is shaped by itself delays no frame that finds it idle
        return Hop(name, [cable.direction], held=self._all_hold or cable.needs_engine)

    def _tower(self, host: Host, target: Host) -> list[str]:
        """A host and the switches above it on the way to a target."""
        building = self._buildings[host.building]
        leaf = building.leaf_of(host)
        found = [host.name, building.leaves[leaf]]
        if clos := building.clos:
            # of each zone's spines the one that the target's number gives: D-mod-k
            found += [
                building.spines[leaf // clos.leaves * clos.spines + target.index % clos.spines],
                building.core,
            ]
        return found


@dataclass(frozen=True)
class Serialisation:
    """The hops of a path that hold frames. byte_s: seconds per byte on the wire of each, in their order.

    packet_bytes: payload of a full packet.
    """

    byte_s: tuple[float, ...] = ()
    packet_bytes: int = 1

    def whole_s(self, size_bytes: float) -> float:
        """From when a message's first frame begins to leave until all of it has come, but for delays."""
        return _whole_s(self.byte_s, self.packet_bytes, size_bytes)

    def beyond_s(self, size_bytes: float) -> float:
        """What of that is more than the message's bytes at the slowest hop, a full packet's share of headers each."""
        if not self.byte_s:
            return 0.0
        frames = size_bytes * (1 + PACKET_HEADERS_BYTES / self.packet_bytes)
        return max(0.0, self.whole_s(size_bytes) - frames * max(self.byte_s))


NOTHING_HELD = Serialisation()


@lru_cache(maxsize=1 << 12)
def serialisation_of(
    rates_bps: tuple[float, ...], held: tuple[bool, ...], packet_bytes: int
) -> Serialisation:
    """Of a path over hops of these rates, of which those hold frames; the slowest takes its time in any case.

    A frame that a hop sends on while it comes in, to a hop no quicker, is there when it would have been without it.
    """
    slowest = min(range(len(held)), key=lambda hop: (rates_bps[hop], not held[hop]))
    kept = [rate for hop, rate in enumerate(rates_bps) if held[hop] or hop == slowest]
    return Serialisation(tuple(8 / rate for rate in kept), packet_bytes)


@lru_cache(maxsize=1 << 16)
def _whole_s(byte_s: tuple[float, ...], packet_bytes: int, size_bytes: float) -> float:
    """The longest path through all frames and hops, each frame after the one before it and after its own hop before.

    All but the last frame are full: n of them are through the first hops when one has been through each and the others
    through the slowest of those. The last one follows them from some hop on.
    """
    packets = max(1, math.ceil(size_bytes / packet_bytes))
    last_bytes = size_bytes - (packets - 1) * packet_bytes + PACKET_HEADERS_BYTES
    rest = sum(byte_s)
    if packets == 1:
        return last_bytes * rest
    full_bytes = packet_bytes + PACKET_HEADERS_BYTES
    latest_s = come = slowest = 0.0
    for own in byte_s:
        come += own
        slowest = max(slowest, own)
        full_s = full_bytes * (come + (packets - 2) * slowest)
        latest_s = max(latest_s, full_s + last_bytes * rest)
        rest -= own
    return latest_s


class PacketHop(NamedTuple):
    """One direction of a link, or of a cable. rate_bps: of frames; loss: share of them, 0 to 1.

    held: whether it has all of a frame before it passes it on; early_s: what it takes if not. classes: that have queues
    of their own in front, as long as that each; number: of these the connection's.
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
    """Of one connection, in one direction. growth: of its congestion control; None: BBR.

    payload_bytes: of a full packet. window_bytes: that its sockets have at the most. back: what acknowledgements take.
    stripes: how messages are dealt out to it and others.
    """

    hops: tuple[PacketHop, ...]
    back: tuple[PacketHop, ...]
    growth: type[Growth] | None
    payload_bytes: int
    window_bytes: float = math.inf
    stripes: StripeSettings | None = None

    @property
    def frame_bytes(self) -> int:
        """Of a full packet on the wire."""
        return self.payload_bytes + PACKET_HEADERS_BYTES


def is_plain(hops: Sequence[Hop]) -> bool:
    """Whether all that happens to packets on links is known here: they wait, are dropped or lost, one by one."""
    directions = [direction for hop in hops for direction in hop.links]
    return not any(
        own.pause or own.jitter_s or own.loss_bursts or own.duplicate or own.reorder or own.corrupt
        for own in directions
    )


def packet_hops(hops: Sequence[Hop]) -> tuple[PacketHop, ...]:
    """Of a path's, of one link each. What a host's own card cannot send yet waits in the host's memory."""
    found = []
    for place, hop in enumerate(hops):
        (direction,) = hop.links
        queue_bytes = float(direction.queue_bytes) if place and not direction.queue_packets else math.inf
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

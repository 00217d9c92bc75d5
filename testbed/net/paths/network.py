"""A topology as a model sees it: what each pair of ranks' bytes go through, and how much of them that carries."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from random import Random

from testbed.caches import IdentityCache
from testbed.comm.transport.channels import StripeSettings
from testbed.comm.transport.wire import HEADER_BYTES
from testbed.net.fabric.namespace_setup import send_buffer_bytes
from testbed.net.paths.alpha_beta import frame_per_payload, nearest_plane
from testbed.net.paths.datagram_recovery import LossyDatagrams
from testbed.net.paths.hops import NETEM, NOTHING_HELD, PacketPath, Paths, Serialisation, passage
from testbed.net.paths.losses import LossyConnection
from testbed.spec.buildings import Host
from testbed.spec.link_direction import QueueClass
from testbed.spec.topology import Topology

PartShares = Mapping[str, float]
"""The parts that bytes go through at once, and how many do for each byte of a message: 1 on a path of its own."""


@dataclass(frozen=True)
class Path:
    """From one rank to another: delays in seconds, the names of all that it goes through, what losses do.

    serialisation: of the hops that hold frames.
    """

    delay_s: float
    parts: tuple[str, ...]
    lossy: LossyConnection | LossyDatagrams | None = None
    serialisation: Serialisation = NOTHING_HELD

    def latency_s(self, size_bytes: float) -> float:
        """From when a message's last byte leaves until all of it is there."""
        return self.delay_s + self.serialisation.beyond_s(size_bytes)

    @cached_property
    def shares(self) -> PartShares:
        """All of the bytes go through each part."""
        return dict.fromkeys(self.parts, 1.0)


@dataclass(frozen=True)
class LossDelay:
    """What losses do to messages that are spread evenly over paths: by the mean, or as `draw` has it for each."""

    draw: Random | None = None

    def arrival_s(self, paths: Sequence[Path], size_bytes: float, busy_s: float = 0.0) -> float:
        """From when its last byte leaves until all of it is there: it is late when any of its parts is.

        busy_s: what its pair still sends when it begins.
        """
        part_bytes = size_bytes / len(paths)
        latency_s = max(path.latency_s(part_bytes) for path in paths)
        lossy = [own for path in paths if (own := path.lossy) and not (self.draw and own.begins)]
        chances = [(own, own.late_chance(part_bytes, busy_s)) for own in lossy]
        if not chances:
            return latency_s
        if self.draw is None:
            in_time = math.prod(1 - chance for _, chance in chances)
            return latency_s + (1 - in_time) * max(own.mended_s for own, _ in chances)
        late = [own.mended_s for own, chance in chances if self.draw.random() < chance]
        return latency_s + max(late, default=0.0)


Ends = tuple[int, int]
"""A rank that sends, and the one that it sends to."""

ANY = -1
"""In place of a DSCP: whatever it is."""

Members = tuple[int, ...]
"""The ranks of a group."""


class CachedHash:
    """Values that take a while to hash, hashed once."""

    def __init__(self, values: tuple[object, ...]) -> None:
        self._values, self._hash = values, hash(values)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, CachedHash) and self._values == other._values)


@dataclass(frozen=True)
class Network:
    """capacities: payload bytes per second of every part; queues: bytes that wait in front of it at the most.

    paths: between ranks, as if alone.
    parallel: where a policy spreads traffic, by its ends and DSCP, the paths that its bytes take side by side.
    classes: where a part's traffic has several queues, the part that each of them is.
    header_bytes: that a message has in front of its payload; overheads: and how much for each byte, by ends.
    send_buffer_bytes: of each connection, at the most. sends_at_once: a window's bytes are, not paced.
    first_pace: packets a round trip with which connections that are paced begin, where their path may be quicker; 0
    where nothing is known of that.
    written_above: by ends, which messages leave only when their receiver has said where to, and are done with at their
    sender when word has come back: those of more bytes. asks: whether every message leaves only when its receiver
    has been asked and has granted it. dealing: by ends, how messages are cut and dealt out to parallel paths; those of
    others take all at once. packets: of a step played packet by packet, by ends and DSCP, what each connection's
    take; by ends and ANY, of pairs in the same building. seed: of what connections draw by themselves. routed: whether
    paths are those that packets take, link by link; of `network_of` parallel links are one.
    """

    capacities: Mapping[str, float]
    paths: Mapping[Ends, Path]
    parallel: Mapping[tuple[Ends, int], tuple[Path, ...]] = field(default_factory=dict)
    queues: Mapping[str, float] = field(default_factory=dict)
    classes: Mapping[str, tuple[tuple[str, QueueClass], ...]] = field(default_factory=dict)
    header_bytes: int = 0
    overheads: Mapping[Ends, float] = field(default_factory=dict)
    send_buffer_bytes: float = 0.0
    sends_at_once: bool = True
    routed: bool = False
    first_pace: float = 0.0
    written_above: Mapping[Ends, float] = field(default_factory=dict)
    asks: bool = False
    dealing: Mapping[Ends, StripeSettings] = field(default_factory=dict)
    packets: Mapping[tuple[Ends, int], tuple[PacketPath, ...]] = field(default_factory=dict)
    seed: int = 0

    @cached_property
    def likeness(self) -> Hashable:
        """Equal for networks that are the same, with all in the same order: whoever is asked first is part of that."""
        values = [getattr(self, field.name) for field in fields(self)]
        return CachedHash(
            tuple(tuple(value.items()) if isinstance(value, dict) else value for value in values)
        )

    @cached_property
    def mends(self) -> bool:
        """Whether packets are lost, and its transport mends that itself."""
        paths = (path for several in self.parallel.values() for path in several)
        return any(isinstance(path.lossy, LossyDatagrams) for path in paths)

    @cached_property
    def begins(self) -> bool:
        """Whether packets are lost, and windows are known from a connection's first packet on."""
        paths = (path for several in self.parallel.values() for path in several)
        return any(path.lossy is not None and path.lossy.begins for path in paths)

    @cached_property
    def looks_for_rates(self) -> bool:
        """Whether packets are paced by rates that are measured."""
        return any(path.growth is None for paths in self.packets.values() for path in paths)

    def packet_paths(self, ends: Ends, dscp: int) -> tuple[PacketPath, ...]:
        """What a message's packets take, one for each connection."""
        return self.packets.get((ends, dscp)) or self.packets[ends, ANY]

    def is_written(self, ends: Ends, size_bytes: float) -> bool:
        """Whether a message is."""
        return size_bytes > self.written_above.get(ends, math.inf)

    def whole_bytes(self, ends: Ends, size_bytes: float) -> float:
        """Of a message, with all that goes with it."""
        return self.loading_bytes(ends, size_bytes) + self.header_bytes

    def loading_bytes(self, ends: Ends, size_bytes: float) -> float:
        """What so much payload loads the network with, but for messages' headers."""
        return size_bytes * (1 + self.overheads.get(ends, 0.0))

    def paths_of(self, ends: Ends, dscp: int) -> tuple[Path, ...]:
        """Those that a message takes side by side, one or more."""
        return self.parallel.get((ends, dscp)) or (self.paths[ends],)


def payload_per_bit(topology: Topology) -> float:
    """Bytes of payload that go with each bit on the wire."""
    return 1 / 8 / frame_per_payload(topology)


def network_of(topology: Topology, hosts: Sequence[Host], link_engine: str = NETEM) -> Network:
    """Of ranks on these hosts; figures as in `topology`. link_engine: which hops hold frames is its to say.

    Parallel links count as one, with the rates of all; one connection gets no more than the quickest of them.
    """
    made = partial(_network_of, topology, hosts, link_engine)
    return _networks.of((topology, *hosts), made, link_engine)


_networks: IdentityCache[Network] = IdentityCache(2)  # a search asks for the same one again and again


def _network_of(topology: Topology, hosts: Sequence[Host], link_engine: str) -> Network:
    between = Paths(topology, link_engine).between
    per_second = payload_per_bit(topology)
    capacities: dict[str, float] = {}
    queues: dict[str, float] = {}
    paths = {}
    for source, one in enumerate(hosts):
        for target, other in enumerate(hosts):
            if source == target:
                continue
            parts = []
            hops = between(one, other)
            for name, links in ((hop.name, hop.links) for hop in hops):
                capacities[name] = per_second * sum(link.rate_bps for link in links)
                queues[name] = sum(link.queue_bytes for link in links)
                parts.append(name)
                if len(links) > 1:
                    own = f"{name}, {one.name} to {other.name}"
                    capacities[own] = per_second * max(link.rate_bps for link in links)
                    parts.append(own)
            nearest = passage(topology, [hop.by(nearest_plane) for hop in hops])
            paths[source, target] = Path(nearest.delay_s, tuple(parts), serialisation=nearest.serialisation)
    return Network(
        capacities,
        paths,
        queues=queues,
        header_bytes=HEADER_BYTES,
        send_buffer_bytes=send_buffer_bytes(topology),
    )

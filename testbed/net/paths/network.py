"""A topology as a performance model sees it: the path of each pair of ranks, and the capacity of its parts."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from random import Random

from testbed.caches import IdentityCache
from testbed.comm.transport.channels import StripeSettings
from testbed.comm.transport.wire import HEADER_BYTES
from testbed.net.fabric.namespace_setup import send_buffer_bytes
from testbed.net.paths.alpha_beta import frame_per_payload, nearest_plane
from testbed.net.paths.datagram_recovery import LossyDatagrams
from testbed.net.paths.hops import NETEM, NO_SERIALISATION, PacketPath, Paths, Serialisation, passage
from testbed.net.paths.losses import LossyConnection
from testbed.spec.buildings import Host
from testbed.spec.link_direction import QueueClass
from testbed.spec.topology import Topology

PartShares = Mapping[str, float]
"""The parts that a message's bytes pass through, and the share of bytes on each: 1 on a single path."""


@dataclass(frozen=True)
class Path:
    """A path from one rank to another.

    Attributes:
        delay_s: The total delay in seconds.
        parts: The names of the parts that it passes through.
        lossy: The effect of losses; None without losses.
        serialisation: The serialisation at its store-and-forward hops.
    """

    delay_s: float
    parts: tuple[str, ...]
    lossy: LossyConnection | LossyDatagrams | None = None
    serialisation: Serialisation = NO_SERIALISATION

    def latency_s(self, size_bytes: float) -> float:
        """Return the seconds from a message's last byte sent to its complete arrival."""
        return self.delay_s + self.serialisation.beyond_s(size_bytes)

    @cached_property
    def shares(self) -> PartShares:
        """The share of bytes on each part: all of them."""
        return dict.fromkeys(self.parts, 1.0)


@dataclass(frozen=True)
class LossDelay:
    """The delay that losses cause to messages spread evenly over paths: the mean, or drawn per message from `draw`."""

    draw: Random | None = None

    def arrival_s(self, paths: Sequence[Path], size_bytes: float, busy_s: float = 0.0) -> float:
        """Return the seconds from a message's last byte sent to its complete arrival.

        Args:
            paths: The paths that the message is spread over; it is late if any of its parts is late.
            size_bytes: The message's size.
            busy_s: The time that the pair still needs for earlier messages when this one starts.
        """
        part_bytes = size_bytes / len(paths)
        latency_s = max(path.latency_s(part_bytes) for path in paths)
        lossy = [own for path in paths if (own := path.lossy) and not (self.draw and own.simulates_window)]
        chances = [(own, own.late_probability(part_bytes, busy_s)) for own in lossy]
        if not chances:
            return latency_s
        if self.draw is None:
            in_time = math.prod(1 - chance for _, chance in chances)
            return latency_s + (1 - in_time) * max(own.recovery_s for own, _ in chances)
        late = [own.recovery_s for own, chance in chances if self.draw.random() < chance]
        return latency_s + max(late, default=0.0)


Ends = tuple[int, int]
"""A sending rank and a receiving rank."""

ANY = -1
"""A wildcard in place of a DSCP."""

Members = tuple[int, ...]
"""The ranks of a group."""


class CachedHash:
    """A tuple whose hash is computed once, for values that are slow to hash."""

    def __init__(self, values: tuple[object, ...]) -> None:
        self._values, self._hash = values, hash(values)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, CachedHash) and self._values == other._values)


@dataclass(frozen=True)
class Network:
    """The network as a performance model sees it.

    Attributes:
        capacities: The capacity of each part, in payload bytes per second.
        paths: The path between each pair of ranks.
        parallel: If a policy spreads traffic, the parallel paths, by ends and DSCP.
        queues: The maximum queue in front of each part, in bytes.
        classes: For a part with several queues, the part that represents each traffic class.
        header_bytes: The header in front of each message's payload.
        overheads: Protocol overhead per payload byte, by ends.
        send_buffer_bytes: The maximum send buffer of each connection.
        sends_at_once: Whether a window is sent in a burst rather than paced.
        routed: Whether paths use individual links; `network_of` treats parallel links as one.
        first_pace: The initial rate of pacing connections in packets per round trip; 0 if unknown.
        write_threshold_bytes: The message size above which the rendezvous protocol applies, by ends: the receiver
            first provides the destination, and the send completes when an acknowledgement has returned.
        needs_grants: Whether every message needs a grant from its receiver before it is sent.
        stripe_settings: How messages are striped over parallel paths, by ends; other messages use all paths at once.
        packets: For a packet-level simulation, the path of each connection, by ends and DSCP; by ends and ANY for
            pairs in the same building.
        seed: The seed of connections' random choices.
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
    write_threshold_bytes: Mapping[Ends, float] = field(default_factory=dict)
    needs_grants: bool = False
    stripe_settings: Mapping[Ends, StripeSettings] = field(default_factory=dict)
    packets: Mapping[tuple[Ends, int], tuple[PacketPath, ...]] = field(default_factory=dict)
    seed: int = 0

    @cached_property
    def likeness(self) -> Hashable:
        """A key that is equal for identical networks, including the order of mappings, which affects results."""
        values = [getattr(self, field.name) for field in fields(self)]
        return CachedHash(
            tuple(tuple(value.items()) if isinstance(value, dict) else value for value in values)
        )

    @cached_property
    def recovers_losses(self) -> bool:
        """Whether packets are lost and the transport itself recovers them."""
        return any(isinstance(lossy, LossyDatagrams) for lossy in self._losses)

    @cached_property
    def simulates_window(self) -> bool:
        """Whether packets are lost and windows are simulated from a connection's first packet on."""
        return any(lossy.simulates_window for lossy in self._losses)

    @property
    def _losses(self) -> Iterator[LossyConnection | LossyDatagrams]:
        return (path.lossy for paths in self.parallel.values() for path in paths if path.lossy is not None)

    @cached_property
    def paces_by_measured_rates(self) -> bool:
        """Whether connections pace packets by measured rates, as BBR does."""
        return any(path.growth is None for paths in self.packets.values() for path in paths)

    def packet_paths(self, ends: Ends, dscp: int) -> tuple[PacketPath, ...]:
        """Return the packet-level path of each connection between two ranks."""
        return self.packets.get((ends, dscp)) or self.packets[ends, ANY]

    def is_written(self, ends: Ends, size_bytes: float) -> bool:
        """Return whether a message uses the rendezvous protocol (see `write_threshold_bytes`)."""
        return size_bytes > self.write_threshold_bytes.get(ends, math.inf)

    def whole_bytes(self, ends: Ends, size_bytes: float) -> float:
        """Return the bytes of a message with its header and protocol overhead."""
        return self.loading_bytes(ends, size_bytes) + self.header_bytes

    def loading_bytes(self, ends: Ends, size_bytes: float) -> float:
        """Return the bytes of a payload with protocol overhead, without message headers."""
        return size_bytes * (1 + self.overheads.get(ends, 0.0))

    def paths_of(self, ends: Ends, dscp: int) -> tuple[Path, ...]:
        """Return the parallel paths that a message takes, at least one."""
        return self.parallel.get((ends, dscp)) or (self.paths[ends],)


def payload_per_bit(topology: Topology) -> float:
    """Return the bytes of payload per bit on the wire."""
    return 1 / 8 / frame_per_payload(topology)


def network_of(topology: Topology, hosts: Sequence[Host], link_engine: str = NETEM) -> Network:
    """Return the network of ranks on these hosts, unscaled.

    Parallel links count as one with the sum of their rates, but one connection gets at most the fastest link's rate.

    Args:
        topology: The topology.
        hosts: The host of each rank.
        link_engine: The link engine, which determines the store-and-forward hops.
    """
    build = partial(_build_network, topology, hosts, link_engine)
    return _networks.of((topology, *hosts), build, link_engine)


_networks: IdentityCache[Network] = IdentityCache(2)  # a search requests the same one repeatedly


def _build_network(topology: Topology, hosts: Sequence[Host], link_engine: str) -> Network:
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
            nearest = passage(topology, [hop.with_plane(nearest_plane) for hop in hops])
            paths[source, target] = Path(nearest.delay_s, tuple(parts), serialisation=nearest.serialisation)
    return Network(
        capacities,
        paths,
        queues=queues,
        header_bytes=HEADER_BYTES,
        send_buffer_bytes=send_buffer_bytes(topology),
    )

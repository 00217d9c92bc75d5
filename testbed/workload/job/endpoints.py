"""The data that ranks need to join a job: addresses, transport, socket settings, background traffic. JSON-ready.

Every rank's process imports this module, so it imports neither file models nor network plans.
`testbed.workload.job.endpoint_resolution` creates these data from a scenario.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from testbed.comm.transport import (
    PROTOCOLS,
    CostedTransport,
    MeshSettings,
    OperationCosts,
    SocketSettings,
    Software,
    TrafficClass,
    Transport,
    TransportKind,
    operation_costs,
    with_protocol,
)
from testbed.comm.transport.bootstrap import BootstrapReport
from testbed.comm.transport.bootstraps import BOOTSTRAPS
from testbed.comm.transport.bootstraps import Job as BootstrapJob
from testbed.comm.transport.kinds import transport_kind
from testbed.comm.transport.mesh import Mesh
from testbed.comm.transport.socket_view import SocketView, find_socket_view
from testbed.comm.transport.wire import ConnectionKey
from testbed.spec.keywords import BDP, PLANNED

if TYPE_CHECKING:
    from testbed.net.paths.alpha_beta import RingStep


Planned = tuple[int, int, int, int, float]
"""Rank, peer, DSCP, connection of the pair, and the bit/s that the network's policy plans for its traffic."""


@dataclass(frozen=True)
class SocketRule:
    """Settings of some connections, in emulated figures; None leaves a setting unchanged, or matches everything."""

    dscps: tuple[int, ...] | None = None
    distance: str | None = None
    congestion_control: str | None = None
    pacing_bps: float | str | None = None
    buffer_bytes: int | str | None = None

    def fits(self, dscp: int, distance: str) -> bool:
        """Return whether the rule applies to a connection."""
        building = "same_building" if distance == "same_zone" else distance
        return (self.dscps is None or dscp in self.dscps) and self.distance in (None, distance, building)


@dataclass(frozen=True)
class SocketRules:
    """An ordered list of rules. For each setting, the first matching rule that has it wins.

    Attributes:
        rules: The rules.
        bdp_bytes: Bandwidth-delay product per rank and peer, if a rule needs it.
        planned: Rates that the policy plans, if a rule needs them.
    """

    rules: tuple[SocketRule, ...] = ()
    bdp_bytes: tuple[tuple[int, ...], ...] = ()
    planned: tuple[Planned, ...] = ()

    def settings(
        self, usual: SocketSettings, rank: int, peer: int, key: ConnectionKey, distance: str
    ) -> SocketSettings:
        """Return the settings for this rank's end of a connection, given the defaults."""
        found: dict[str, Any] = {}
        for rule in self.rules:
            if rule.fits(key.traffic.dscp, distance):
                for name in ("congestion_control", "pacing_bps", "buffer_bytes"):
                    if (value := getattr(rule, name)) is not None:
                        found.setdefault(name, value)
        if not found:
            return usual
        buffer_bytes = found.get("buffer_bytes")
        if buffer_bytes == BDP:
            # one product in flight, and one so that neither end waits for the other to read, acknowledge or wake up
            buffer_bytes = 2 * self.bdp_bytes[rank][peer]
        pacing_bps = found.get("pacing_bps")
        if pacing_bps == PLANNED:
            wanted = rank, peer, key.traffic.dscp, key.channel
            pacing_bps = next((entry[-1] for entry in self.planned if entry[:-1] == wanted), None)
        return replace(
            usual,
            congestion_control=found.get("congestion_control", usual.congestion_control),
            window_bytes=buffer_bytes,
            pacing_bps=pacing_bps,
        )

    def try_out(self, usual: SocketSettings) -> None:
        """Raise TransportError for settings that this host's kernel rejects, before any connection is opened."""
        for rule in self.rules:
            if rule.congestion_control is not None:
                settings = replace(usual, congestion_control=rule.congestion_control)
                with settings.make() as trial:
                    settings.apply(trial)


LISTEN_PORT = 29_500
BOOTSTRAP_PORT = 29_499
SUBFLOW_PORT = 29_501  # MPTCP's second subflow to a rank; further subflows follow
SOURCE_PORT_BASE, SOURCE_PORTS = 33_000, 19_997
MAX_CHANNELS = 256
BOOTSTRAP_TIMEOUT_S = 30.0
THIS_NAMESPACE = 0  # used instead of the pid of a process in a rank's network namespace


@dataclass(frozen=True)
class RankEndpoint:
    """One rank: its host, building and listening address, and a process in its host's network namespace."""

    rank: int
    host: str
    building: int
    ip: str
    namespace_pid: int
    port: int = LISTEN_PORT


@dataclass(frozen=True)
class JobEndpoints:
    """All ranks of a job and how they connect, in emulated figures.

    Attributes:
        token: Secret by which ranks of the job recognize each other.
        ranks: Endpoint of each rank.
        seed: Seed of port numbers and operation costs.
        timeout_s: Time without progress after which communication fails.
        kind: Kind of transport.
        options: Options of the transport.
        bootstrap: How ranks find each other.
        congestion_control: Default congestion control; None for the kernel's.
        sockets: Socket settings by connection.
        distances: By rank, its distance to each rank.
        software: Protocol and modelled cost of software; no cost if software takes real time.
        bdp_bytes: Per rank and peer, bytes in flight that fill the idle path.
        path_bps: Per rank and peer, rate of the path's narrowest link.
        round_trips_s: Per rank and peer, time of a packet and its acknowledgement on the idle path.
        port_bps: Rate of each rank's NIC. This attribute and the three before it are set only for transports that need
            them.
    """

    token: str
    ranks: tuple[RankEndpoint, ...]
    seed: int
    timeout_s: float
    kind: str = "tcp"
    options: dict[str, Any] = field(default_factory=dict)
    bootstrap: str = "static"
    congestion_control: str | None = None
    sockets: SocketRules = field(default_factory=SocketRules)
    distances: tuple[tuple[str, ...], ...] = ()
    software: Software = field(default_factory=Software)
    bdp_bytes: tuple[tuple[int, ...], ...] = ()
    path_bps: tuple[tuple[float, ...], ...] = ()
    round_trips_s: tuple[tuple[float, ...], ...] = ()
    port_bps: tuple[float, ...] = ()

    @property
    def buildings(self) -> list[int]:
        """The building of each rank."""
        return [endpoint.building for endpoint in self.ranks]

    def source_port(self, rank: int, peer: int, key: ConnectionKey) -> int:
        """Return the local port of a connection that `rank` dials to `peer`, distinct for each connection of a pair.

        The result is 0, for any port, if ranks share an address: there is no path to hash, and others use its ports as
        well.
        """
        size = len(self.ranks)
        if self.ranks[rank].ip == self.ranks[peer].ip:
            return 0
        offset = self._port_offset
        number = key.traffic.dscp * MAX_CHANNELS + key.channel
        # modulo a prime, so that connections of a pair never share a port
        return SOURCE_PORT_BASE + (offset + rank * size + peer + number * size * size) % SOURCE_PORTS

    @cached_property
    def _port_offset(self) -> int:
        return random.Random(f"{self.seed}/ports").randrange(1000)

    def distance(self, rank: int, peer: int) -> str:
        """Return the distance between two ranks."""
        return self.distances[rank][peer]

    @cached_property
    def transport(self) -> TransportKind:
        """The kind of transport, with its options; raises PluginError if a plug-in does not load."""
        return transport_kind(self.kind, self.options)

    def look_up(self) -> None:
        """Resolve all plug-ins once, before ranks are forked; raise PluginError if one does not load."""
        _ = self.transport, BOOTSTRAPS.find(self.bootstrap), PROTOCOLS.find(self.software.protocol)

    def channels(self, rank: int, peer: int) -> int:
        """Return the number of connections, or MPTCP subflows, over which traffic between two ranks is spread."""
        return self.transport.channels(self.distance(rank, peer))

    def overhead(self, rank: int, peer: int) -> float:
        """Return the overhead in bytes that the transport adds for each byte between two ranks."""
        return self.transport.overhead(self.distance(rank, peer))

    def connection(self, rank: int, peer: int, traffic: TrafficClass, channel: int) -> ConnectionKey:
        """Return the connection of a channel between two ranks, for a traffic class; MPTCP has one for all channels."""
        return self.transport.connection(traffic, channel, self.distance(rank, peer))

    def settings(
        self, rank: int, peer: int, key: ConnectionKey, usual: SocketSettings | None = None
    ) -> SocketSettings:
        """Return the socket settings of the end of a connection at `rank`; `usual` are the defaults."""
        return self.sockets.settings(usual or SocketSettings(), rank, peer, key, self.distance(rank, peer))

    def slowest_byte_s(
        self, rank: int, peer: int, key: ConnectionKey, step: RingStep, *, paced: bool, ruled: bool = True
    ) -> float:
        """Return the minimum time per byte that a connection's socket settings allow.

        Args:
            rank: Rank that sends.
            peer: Rank that receives.
            key: The connection.
            step: The connection's path.
            paced: Whether pacing counts.
            ruled: Whether the transport's own limits count.
        """
        settings = self.settings(rank, peer, key)
        found = [0.0]
        if ruled:
            found.append(self.transport.slowest_byte_s(self.distance(rank, peer), step.round_trip_s))
        if settings.pacing_bps is not None and paced:
            found.append(8 / settings.pacing_bps)
        if settings.window_bytes is not None:
            packet_bytes = step.serialisation.packet_bytes
            found.append(step.round_trip_s(packet_bytes) / settings.window_bytes)
        return max(found)


@dataclass(frozen=True)
class JoinedRank:
    """A rank that has joined its job.

    Attributes:
        sockets: The rank's sockets.
        transport: Transport to use: with protocol and modelled cost on top of the sockets, if any.
        bootstrap: How the ranks found each other.
        costs: Costs of operations; None if they have none.
    """

    sockets: SocketView
    transport: Transport
    bootstrap: BootstrapReport
    costs: OperationCosts | None = None


def join_job(wiring: JobEndpoints, rank: int, incarnation: int = 0) -> JoinedRank:
    """Find the other ranks and open this rank's transport.

    Args:
        wiring: Endpoints of the job.
        rank: This rank.
        incarnation: Number of times that this rank was lost and restarted before.

    Raises:
        TransportError: If ranks do not find each other, or the kernel rejects a socket setting.
        PluginError: If a plug-in does not load.
    """
    begun_s = time.monotonic()
    addresses_by_rank = [(endpoint.ip, endpoint.port) for endpoint in wiring.ranks]
    master = (wiring.ranks[0].ip, BOOTSTRAP_PORT)
    bootstrap = BOOTSTRAPS.find(wiring.bootstrap)
    addresses, report = bootstrap.find(
        BootstrapJob(rank, master, addresses_by_rank, wiring.token, BOOTSTRAP_TIMEOUT_S)
    )

    def socket_of(rank: int, peer: int, key: ConnectionKey, usual: SocketSettings) -> SocketSettings:
        return wiring.settings(rank, peer, key, usual)

    settings = MeshSettings(
        token=wiring.token,
        congestion_control=wiring.congestion_control,
        multipath=wiring.transport.multipath,
        # fixed ports, so that runs with the same seed hash flows onto the same paths
        source_port=wiring.source_port,
        bootstrap_timeout_s=BOOTSTRAP_TIMEOUT_S,
        socket_of=socket_of if wiring.sockets.rules else None,
        incarnation=incarnation,
        port_bps=wiring.port_bps[rank] if wiring.port_bps else math.inf,
        bdp_bytes=wiring.bdp_bytes[rank] if wiring.bdp_bytes else None,
        path_bps=wiring.path_bps[rank] if wiring.path_bps else None,
        round_trips_s=wiring.round_trips_s[rank] if wiring.round_trips_s else None,
    )
    wiring.sockets.try_out(settings.sockets)
    transport = wiring.transport.make(rank, addresses, settings, wiring.distances[rank])
    sockets = find_socket_view(transport)
    if bootstrap.connects_all and isinstance(sockets, Mesh):
        sockets.connect()
        report.connections += len(sockets.counters)
    report.time_s = time.monotonic() - begun_s
    software = wiring.software
    if software.costs_messages:
        each = software.message_s, software.byte_s, software.note_s, software.handover_s
        transport = CostedTransport(transport, *each)
    transport = with_protocol(transport, software.protocol, software.slots)
    return JoinedRank(sockets, transport, report, operation_costs(software, wiring.seed, rank))


@dataclass(frozen=True)
class BackgroundHost:
    """One host of another job, which sends background traffic.

    Attributes:
        job: Name of the other job.
        host: Name of the host.
        ip: Its address.
        namespace_pid: A process in its network namespace.
        targets: Addresses that it sends to.
        connections: Connections to each target.
        dscp: DSCP of its packets.
        congestion_control: Its congestion control; None for the kernel's.
        source_port: Local port of its first connection.
    """

    job: str
    host: str
    ip: str
    namespace_pid: int
    targets: tuple[str, ...]
    connections: int
    dscp: int
    congestion_control: str | None
    source_port: int

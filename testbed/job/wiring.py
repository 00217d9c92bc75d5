"""How the ranks of a job are joined: where each is, and the transport between them. Ready for JSON."""

from __future__ import annotations

import contextlib
import random
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from testbed.config import Host, Topology, TransportSpec, distance
from testbed.fabric.plan import Multipath
from testbed.job.socket_rules import SocketRules
from testbed.paths.alpha_beta import Step
from testbed.scale import Scale
from testbed.transport import (
    CostedTransport,
    MeshSettings,
    SocketSettings,
    StripedTransport,
    StripeSettings,
    TcpTransport,
    TrafficClass,
    Transport,
    with_protocol,
)
from testbed.transport.bootstrap import BootstrapReport, bootstrap
from testbed.transport.lanes import LEAST_SEGMENT_BYTES
from testbed.transport.wire import ConnectionKey
from testbed.virtual import clock_here

LISTEN_PORT = 29_500
BOOTSTRAP_PORT = 29_499
SUBFLOW_PORT = 29_501  # of MPTCP's second way to a rank; the others follow
SOURCE_PORT_BASE, SOURCE_PORTS = 33_000, 19_997
MOST_LANES = 256
BOOTSTRAP_TIMEOUT_S = 30.0
THIS_NAMESPACE = 0  # in place of a process in a rank's network namespace


@dataclass(frozen=True)
class RankPlace:
    """One rank: its host and building, the address it listens on, a process in its host's network namespace."""

    rank: int
    host: str
    building: int
    ip: str
    namespace_pid: int
    port: int = LISTEN_PORT


@dataclass(frozen=True)
class Wiring:
    """All ranks of a job and what is between them. Figures are emulated ones.

    stripes: settings of a striped transport by distance. distances: per rank, what is between it and each rank.
    per_message_s, per_byte_s: modelled cost of software; zero where software costs what it costs.
    """

    token: str
    ranks: tuple[RankPlace, ...]
    seed: int
    timeout_s: float
    kind: str = "tcp"
    protocol: str = "eager"
    bootstrap: str = "static"
    congestion_control: str | None = None
    subflows: int = 1
    sockets: SocketRules = field(default_factory=SocketRules)
    stripes: dict[str, dict[str, Any]] = field(default_factory=dict)
    distances: tuple[tuple[str, ...], ...] = ()
    per_message_s: float = 0.0
    per_byte_s: float = 0.0

    @property
    def buildings(self) -> list[int]:
        """The building of each rank."""
        return [place.building for place in self.ranks]

    def source_port(self, rank: int, peer: int, key: ConnectionKey) -> int:
        """The local port of a connection that `rank` dials to a peer, another for each of a pair's connections."""
        size = len(self.ranks)
        offset = random.Random(f"{self.seed}/ports").randrange(1000)
        number = key.traffic.dscp * MOST_LANES + key.lane
        # a prime, so that two numbers of one pair never come to the same
        return SOURCE_PORT_BASE + (offset + rank * size + peer + number * size * size) % SOURCE_PORTS

    def distance(self, rank: int, peer: int) -> str:
        """How far two ranks are apart."""
        return self.distances[rank][peer]

    def lanes(self, rank: int, peer: int) -> int:
        """How many connections for data two ranks have, of MPTCP how many ways one goes."""
        if self.kind != "striped":
            return self.subflows
        return int(self.stripes[self.distance(rank, peer)]["connections"])

    def connection(self, rank: int, peer: int, traffic: TrafficClass, lane: int) -> ConnectionKey:
        """Of two ranks, for traffic of a class, on one of their lanes: MPTCP's are all of one connection."""
        striped = self.kind == "striped"
        return ConnectionKey(traffic, lane, self.lanes(rank, peer)) if striped else ConnectionKey(traffic)

    def stripe(self, rank: int, peer: int) -> Mapping[str, Any] | None:
        """How two ranks' messages are spread over their connections; None where they are not."""
        return self.stripes[self.distance(rank, peer)] if self.kind == "striped" else None

    def settings(
        self, rank: int, peer: int, key: ConnectionKey, usual: SocketSettings | None = None
    ) -> SocketSettings:
        """Of a connection's sockets on the side of `rank`, where they would be `usual` ones."""
        return self.sockets.settings(usual or SocketSettings(), rank, peer, key, self.distance(rank, peer))

    def slowest_byte_s(self, rank: int, peer: int, key: ConnectionKey, step: Step, *, paced: bool) -> float:
        """What a byte takes at least on one connection, as its sockets allow.

        step: of the connection's path. paced: whether pacing counts.
        """
        settings, stripe = self.settings(rank, peer, key), self.stripe(rank, peer)
        found = [0.0]
        if settings.pacing_bps is not None and paced:
            found.append(8 / settings.pacing_bps)
        if settings.window_bytes is not None:
            packet_bytes = step.serialisation.packet_bytes
            found.append(step.round_trip_s(packet_bytes) / settings.window_bytes)
        if stripe is not None:
            segment_bytes, most = stripe["segment_bytes"], stripe["outstanding"]
            # a segment is acknowledged when all of it has come
            found.append(step.round_trip_s(segment_bytes) / (segment_bytes * most))
        return max(found)

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Wiring:
        """The inverse of dataclasses.asdict, after a way through JSON."""
        document["ranks"] = tuple(RankPlace(**item) for item in document["ranks"])
        document["sockets"] = SocketRules.from_document(document["sockets"])
        document["distances"] = tuple(map(tuple, document["distances"]))
        return cls(**document)


def places_on(topology: Topology, hosts: Sequence[Host], pids: Mapping[str, int]) -> list[RankPlace]:
    """One rank on each of these hosts; `pids`: a process in the namespace of each host."""
    index = {building.name: building.index for building in topology.buildings}
    return [
        RankPlace(rank, host.name, index[host.building], host.ip, pids[host.name])
        for rank, host in enumerate(hosts)
    ]


@contextlib.contextmanager
def loopback_places(ranks: int) -> Iterator[list[RankPlace]]:
    """Places of ranks on this machine, at ports that are free."""
    with contextlib.ExitStack() as stack:
        places = []
        for rank in range(ranks):
            probe = stack.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            places.append(RankPlace(rank, "localhost", 0, "127.0.0.1", THIS_NAMESPACE, port))
        stack.close()
        yield places


def stripes_of(spec: TransportSpec, scale: Scale) -> dict[str, dict[str, Any]]:
    """The striped transport's settings by distance; segments shrink as messages do."""
    found = {}
    for name in type(spec.stripes).model_fields:
        stripe = getattr(spec.stripes, name)
        segment_bytes = max(LEAST_SEGMENT_BYTES, round(scale.emulated_bytes(stripe.segment_bytes)))
        fast_bytes = round(scale.emulated_bytes(StripeSettings.fast_bytes))
        found[name] = asdict(
            StripeSettings(stripe.connections, segment_bytes, stripe.outstanding, stripe.mode, fast_bytes)
        )
    return found


def multipath_of(spec: TransportSpec, hosts: Sequence[Host]) -> Multipath | None:
    """MPTCP's other ways between the ranks on these hosts, of which the later ones dial; None where there are none."""
    if spec.kind != "mptcp" or spec.subflows == 1:
        return None
    ports = tuple(range(SUBFLOW_PORT, SUBFLOW_PORT + spec.subflows - 1))
    return Multipath(ports, tuple(host.name for host in hosts))


def wiring_of(
    spec: TransportSpec,
    scale: Scale,
    topology: Topology | None,
    places: Sequence[RankPlace],
    seed: int,
    timeout_s: float | None = None,
    congestion_control: str | None = None,
    sockets: SocketRules | None = None,
) -> Wiring:
    """From what a scenario says, in real figures. topology: emulated; None for ranks on this machine's loopback.

    timeout_s: real; None: as `spec` says. congestion_control: None leaves the kernel's.
    """
    message_s, byte_s = software_cost(spec, scale)
    ranks = len(places)
    hosts = {host.name: host for host in topology.hosts} if topology else {}
    return Wiring(
        token=secrets.token_hex(8),
        ranks=tuple(places),
        seed=seed,
        timeout_s=scale.emulated_s(spec.timeout_s if timeout_s is None else timeout_s),
        kind=spec.kind,
        protocol=spec.protocol,
        bootstrap=spec.bootstrap,
        congestion_control=congestion_control,
        subflows=spec.subflows if spec.kind == "mptcp" else 1,
        sockets=sockets or SocketRules(),
        stripes=stripes_of(spec, scale),
        distances=distances_of(topology, [hosts[place.host] for place in places])
        if topology
        else (("same_rack",) * ranks,) * ranks,
        per_message_s=message_s,
        per_byte_s=byte_s,
    )


def software_cost(spec: TransportSpec, scale: Scale) -> tuple[float, float]:
    """What a message and a byte cost, emulated: where software takes no time of its own, else nothing on top."""
    return modelled_cost(spec, scale) if clock_here() == "free" else (0.0, 0.0)


def modelled_cost(spec: TransportSpec, scale: Scale) -> tuple[float, float]:
    """What a message and a byte cost the software of real hosts, as the scenario has it; emulated."""
    cost = spec.software_cost
    per_byte_s = scale.real_bytes(cost.per_gigabyte_s / 1e9)
    return scale.emulated_s(cost.per_message_s), scale.emulated_s(per_byte_s)


def distances_of(topology: Topology, hosts: Sequence[Host]) -> tuple[tuple[str, ...], ...]:
    """Per rank, how far every rank is."""
    return tuple(tuple(distance(topology, one, other) for other in hosts) for one in hosts)


@dataclass(frozen=True)
class Joined:
    """A rank's sockets; the transport to use, the same unless there is a protocol or cost on top; how it came about."""

    sockets: TcpTransport | StripedTransport
    transport: Transport
    bootstrap: BootstrapReport


def join(wiring: Wiring, rank: int) -> Joined:
    """Find the other ranks, in the way that the wiring says. TransportError."""
    begun_s = time.monotonic()
    size = len(wiring.ranks)
    report = BootstrapReport("static")
    addresses = [(place.ip, place.port) for place in wiring.ranks]
    if wiring.bootstrap != "static":
        first = wiring.ranks[0]
        master = (first.ip, BOOTSTRAP_PORT)
        addresses, report = bootstrap(
            wiring.bootstrap, rank, size, master, addresses[rank], wiring.token, BOOTSTRAP_TIMEOUT_S
        )

    def socket_of(rank: int, peer: int, key: ConnectionKey, usual: SocketSettings) -> SocketSettings:
        return wiring.settings(rank, peer, key, usual)

    settings = MeshSettings(
        token=wiring.token,
        congestion_control=wiring.congestion_control,
        multipath=wiring.kind == "mptcp",
        # given ports, so that a run with the same seed hashes its flows onto the same paths
        source_port=wiring.source_port,
        bootstrap_timeout_s=BOOTSTRAP_TIMEOUT_S,
        socket_of=socket_of if wiring.sockets.rules else None,
    )
    wiring.sockets.try_out(settings.sockets)
    sockets: TcpTransport | StripedTransport
    if wiring.kind == "striped":
        stripes = {name: StripeSettings(**options) for name, options in wiring.stripes.items()}
        far = wiring.distances[rank]
        sockets = StripedTransport(rank, addresses, settings, lambda peer: stripes[far[peer]])
    else:
        sockets = TcpTransport(rank, addresses, settings)
    if wiring.bootstrap == "star":
        sockets.connect()
        report.connections += len(sockets.counters)
    report.time_s = time.monotonic() - begun_s
    transport: Transport = sockets
    if wiring.per_message_s or wiring.per_byte_s:
        transport = CostedTransport(transport, wiring.per_message_s, wiring.per_byte_s)
    return Joined(sockets, with_protocol(transport, wiring.protocol), report)

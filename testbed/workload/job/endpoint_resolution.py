"""From what a scenario says to how the ranks of a job, and the hosts of others, are joined."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from testbed.clock import clock_here
from testbed.comm.transport import PROTOCOLS, Registration, Slots, Software
from testbed.comm.transport.kinds import TRANSPORTS, transport_kind
from testbed.comm.transport.kinds.base import source_file
from testbed.comm.transport.kinds.striped import MIN_OUTSTANDING, PACKET_BYTES
from testbed.net.fabric.plan import Multipath
from testbed.net.paths.alpha_beta import empty_paths
from testbed.net.paths.hops import Paths
from testbed.plugins import attribute_errors
from testbed.spec.base_model import StrictModel
from testbed.spec.buildings import Host
from testbed.spec.cluster_sharing import BackgroundTrafficSpec
from testbed.spec.scale import Scale
from testbed.spec.topology import Topology
from testbed.spec.transport import LAZY, RegistrationSpec, StagingSpec, TransportSpec, distance
from testbed.workload.job.endpoints import (
    SUBFLOW_PORT,
    THIS_NAMESPACE,
    BackgroundHost,
    JobEndpoints,
    RankEndpoint,
    SocketRules,
)

# above those of ranks; the same in every run with the same seed, as hashes go by ports
BACKGROUND_PORT_BASE = 54_000
BACKGROUND_PORTS = 5_000


def endpoints_on(topology: Topology, hosts: Sequence[Host], pids: Mapping[str, int]) -> list[RankEndpoint]:
    """One rank on each of these hosts; `pids`: a process in the namespace of each host."""
    index = {building.name: building.index for building in topology.buildings}
    return [
        RankEndpoint(rank, host.name, index[host.building], host.ip, pids[host.name])
        for rank, host in enumerate(hosts)
    ]


@contextlib.contextmanager
def loopback_endpoints(ranks: int) -> Iterator[list[RankEndpoint]]:
    """Endpoints of ranks on this machine, at ports that are free."""
    with contextlib.ExitStack() as stack:
        endpoints = []
        for rank in range(ranks):
            probe = stack.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            endpoints.append(RankEndpoint(rank, "localhost", 0, "127.0.0.1", THIS_NAMESPACE, port))
        stack.close()
        yield endpoints


def options_of(spec: TransportSpec, scale: Scale) -> dict[str, Any]:
    """What the kind of transport is made with, emulated: its own keys of `transport`, and `options`. PluginError."""
    kind = TRANSPORTS.find(spec.kind)
    with attribute_errors(f"transport {spec.kind}", source_file(kind)):
        own = {key: getattr(spec, key) for key in kind.config_keys}
        plain = {
            key: value.model_dump() if isinstance(value, StrictModel) else value for key, value in own.items()
        }
        return kind.emulated({**plain, **(spec.options or {})}, scale)


def multipath_of(spec: TransportSpec, hosts: Sequence[Host]) -> Multipath | None:
    """MPTCP's other subflows between the ranks on these hosts, of which the later ones dial; None without any."""
    added = transport_kind(spec.kind, options_of(spec, Scale())).added_subflows
    if not added:
        return None
    return Multipath(tuple(range(SUBFLOW_PORT, SUBFLOW_PORT + added)), tuple(host.name for host in hosts))


def wants_rdma(spec: TransportSpec) -> bool:
    """Whether its ranks' hosts need network cards with verbs. PluginError."""
    return TRANSPORTS.find(spec.kind).verbs


def resolve_endpoints(
    spec: TransportSpec,
    scale: Scale,
    topology: Topology | None,
    endpoints: Sequence[RankEndpoint],
    seed: int,
    timeout_s: float | None = None,
    congestion_control: str | None = None,
    sockets: SocketRules | None = None,
) -> JobEndpoints:
    """From what a scenario says, in real figures. topology: emulated; None for ranks on this machine's loopback.

    timeout_s: real; None: as `spec` says. congestion_control: None leaves the kernel's.
    """
    ranks = len(endpoints)
    by_name = {host.name: host for host in topology.hosts} if topology else {}
    hosts = [by_name[endpoint.host] for endpoint in endpoints] if topology else []
    products: tuple[tuple[int, ...], ...] = ()
    narrowest: tuple[tuple[float, ...], ...] = ()
    empty: tuple[tuple[float, ...], ...] = ()
    if topology is not None and TRANSPORTS.find(spec.kind).asks_network:
        paths = empty_paths(Paths(topology), hosts)
        products = tuple(tuple(round(path.bdp_bytes) for path in row) for row in paths)
        narrowest = tuple(tuple(path.rate_bps for path in row) for row in paths)
        empty = tuple(tuple(path.round_trip_s for path in row) for row in paths)
    return JobEndpoints(
        token=secrets.token_hex(8),
        ranks=tuple(endpoints),
        seed=seed,
        timeout_s=scale.emulated_s(spec.timeout_s if timeout_s is None else timeout_s),
        kind=spec.kind,
        options=options_of(spec, scale),
        bootstrap=spec.bootstrap,
        congestion_control=congestion_control,
        sockets=sockets or SocketRules(),
        distances=distances_of(topology, hosts) if topology else (("same_rack",) * ranks,) * ranks,
        software=software_of(spec, scale),
        bdp_bytes=products,
        path_bps=narrowest,
        round_trips_s=empty,
        port_bps=tuple(host.nic.rate_bps for host in hosts) if products else (),
    )


def software_of(spec: TransportSpec, scale: Scale) -> Software:
    """The protocol, and what it costs where software takes no time of its own; else nothing on top. PluginError."""
    modelled = modelled_software(spec, scale)
    if clock_here() == "free":
        return modelled
    return Software(modelled.protocol, modelled.slots, computing_share=modelled.computing_share)


def modelled_software(spec: TransportSpec, scale: Scale) -> Software:
    """The protocol, and what it costs real hosts, as the scenario has it; emulated. PluginError."""
    cost, protocol = spec.software_cost, PROTOCOLS.find(spec.protocol)
    per_gigabyte_s = cost.per_gigabyte_s + (cost.copy_per_gigabyte_s if protocol.copies else 0.0)
    lazy = cost.registration.mode == LAZY and protocol.registers
    return Software(
        spec.protocol,
        _slots(spec.staging, scale),
        message_s=scale.emulated_s(cost.per_message_s),
        byte_s=scale.emulated_s(scale.real_bytes(per_gigabyte_s / 1e9)),
        note_s=None if cost.per_note_s is None else scale.emulated_s(cost.per_note_s),
        handover_s=scale.emulated_s(cost.handover_s),
        launch_s=scale.emulated_s(cost.launch_s),
        completion_s=scale.emulated_s(cost.completion_s),
        synchronisation_s=scale.emulated_s(cost.synchronisation_s),
        registration=_registration(cost.registration, scale) if lazy else None,
        computing_share=cost.sm_cost if protocol.copies else 0.0,
    )


def _slots(spec: StagingSpec, scale: Scale) -> Slots:
    """Chunks shrink as messages do, but packets do not: of larger ones there are fewer, for as many bytes in all."""
    wanted_bytes = scale.emulated_bytes(spec.chunk_bytes)
    chunk_bytes = max(min(spec.chunk_bytes, PACKET_BYTES), round(wanted_bytes))
    slots = round(spec.slots * min(1.0, wanted_bytes / chunk_bytes))
    return Slots(chunk_bytes, max(min(spec.slots, MIN_OUTSTANDING), slots), spec.announced)


def _registration(spec: RegistrationSpec, scale: Scale) -> Registration:
    least_s, most_s, rare_s = map(scale.emulated_s, (spec.least_s, spec.most_s, spec.rare_s))
    return Registration(least_s, most_s, rare_s, spec.rare_share)


def distances_of(topology: Topology, hosts: Sequence[Host]) -> tuple[tuple[str, ...], ...]:
    """Per rank, how far every rank is."""
    tiered = {building.name for building in topology.buildings if building.clos is not None}
    known: dict[tuple[str, str], str] = {}

    def far(one: Host, other: Host) -> str:
        # elsewhere all hosts of two buildings, or of one, are as far from each other
        racks = one.building == other.building and one.building in tiered
        pair = (one.name, other.name) if racks else (one.building, other.building)
        if pair not in known:
            known[pair] = distance(topology, one, other)
        return known[pair]

    return tuple(tuple(far(one, other) for other in hosts) for one in hosts)


def background_hosts(
    specs: Sequence[BackgroundTrafficSpec],
    topology: Topology,
    pid_of: Callable[[str], int],
    congestion_control: str | None,
    seed: int,
) -> list[BackgroundHost]:
    """Every host with background traffic; pid_of: a process in a host's network namespace."""
    hosts: dict[str, Host] = {host.name: host for host in topology.hosts}
    found = []
    for spec in specs:
        for name in spec.hosts:
            here = hosts[name]
            there = [hosts[other] for other in spec.hosts if hosts[other].building != here.building]
            first = (seed * 7919 + here.index * 64) % BACKGROUND_PORTS
            found.append(
                BackgroundHost(
                    spec.name,
                    name,
                    here.ip,
                    pid_of(name),
                    tuple(host.ip for host in there),
                    spec.connections,
                    spec.dscp,
                    congestion_control,
                    BACKGROUND_PORT_BASE + first,
                )
            )
    return found

"""From a scenario's transport and topology to the endpoints of a job's ranks, and of hosts with background traffic."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from testbed.clock import clock_here
from testbed.comm.transport import PROTOCOLS, Registration, Slots, Software
from testbed.comm.transport.kinds import TRANSPORTS, source_file, transport_kind
from testbed.comm.transport.kinds.striped import MIN_OUTSTANDING, PACKET_BYTES
from testbed.net.fabric.plan import Multipath
from testbed.net.paths.alpha_beta import empty_paths
from testbed.net.paths.hops import Paths
from testbed.plugins import attribute_errors
from testbed.spec.base_model import StrictModel
from testbed.spec.buildings import Host
from testbed.spec.cluster_sharing import BackgroundTrafficSpec
from testbed.spec.scale import Scale
from testbed.spec.software_costs import LAZY, RegistrationSpec
from testbed.spec.topology import Topology
from testbed.spec.transport import StagingSpec, TransportSpec, distance
from testbed.workload.job.endpoints import (
    SUBFLOW_PORT,
    THIS_NAMESPACE,
    BackgroundHost,
    JobEndpoints,
    RankEndpoint,
    SocketRules,
)

# above the ranks' ports; the same in every run with the same seed, as paths are hashed by port
BACKGROUND_PORT_BASE = 54_000
BACKGROUND_PORTS = 5_000


def endpoints_on(topology: Topology, hosts: Sequence[Host], pids: Mapping[str, int]) -> list[RankEndpoint]:
    """Return one rank on each of these hosts. `pids` has a process in the namespace of each host."""
    index = {building.name: building.index for building in topology.buildings}
    return [
        RankEndpoint(rank, host.name, index[host.building], host.ip, pids[host.name])
        for rank, host in enumerate(hosts)
    ]


@contextlib.contextmanager
def loopback_endpoints(ranks: int) -> Iterator[list[RankEndpoint]]:
    """Yield endpoints of ranks on this machine, on free ports."""
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
    """Return the emulated options of a transport: its own keys of `transport`, and `options`. Raises PluginError."""
    kind = TRANSPORTS.find(spec.kind)
    with attribute_errors(f"transport {spec.kind}", source_file(kind)):
        own = {key: getattr(spec, key) for key in kind.config_keys}
        plain = {
            key: value.model_dump() if isinstance(value, StrictModel) else value for key, value in own.items()
        }
        return kind.emulated({**plain, **(spec.options or {})}, scale)


def multipath_of(spec: TransportSpec, hosts: Sequence[Host]) -> Multipath | None:
    """Return MPTCP's additional subflows between the ranks on these hosts; None for none. The higher rank dials."""
    added = transport_kind(spec.kind, options_of(spec, Scale())).added_subflows
    if not added:
        return None
    return Multipath(tuple(range(SUBFLOW_PORT, SUBFLOW_PORT + added)), tuple(host.name for host in hosts))


def wants_rdma(spec: TransportSpec) -> bool:
    """Return whether hosts need NICs with RDMA verbs. Raises PluginError."""
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
    """Return a job's endpoints for a scenario's transport, which is in real figures.

    Args:
        spec: The transport.
        scale: Scale of the emulation.
        topology: The topology, emulated; None for ranks on this machine's loopback.
        endpoints: Endpoint of each rank.
        seed: Seed of port numbers and operation costs.
        timeout_s: Real seconds; None for the transport's own.
        congestion_control: None for the kernel's.
        sockets: Socket settings by connection.
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
    """Return the protocol, and its modelled cost where software takes no time of its own. Raises PluginError."""
    modelled = modelled_software(spec, scale)
    if clock_here() == "free":
        return modelled
    return Software(modelled.protocol, modelled.slots, computing_share=modelled.computing_share)


def modelled_software(spec: TransportSpec, scale: Scale) -> Software:
    """Return the protocol and its cost on real hosts, emulated. Raises PluginError."""
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
    """Return the staging slots.

    Chunks scale like messages, but packets do not: fewer chunks keep the same bytes in total.
    """
    wanted_bytes = scale.emulated_bytes(spec.chunk_bytes)
    chunk_bytes = max(min(spec.chunk_bytes, PACKET_BYTES), round(wanted_bytes))
    slots = round(spec.slots * min(1.0, wanted_bytes / chunk_bytes))
    return Slots(chunk_bytes, max(min(spec.slots, MIN_OUTSTANDING), slots), spec.announced)


def _registration(spec: RegistrationSpec, scale: Scale) -> Registration:
    least_s, most_s, rare_s = map(scale.emulated_s, (spec.least_s, spec.most_s, spec.rare_s))
    return Registration(least_s, most_s, rare_s, spec.rare_share)


def distances_of(topology: Topology, hosts: Sequence[Host]) -> tuple[tuple[str, ...], ...]:
    """Return the distance of each rank to each rank."""
    tiered = {building.name for building in topology.buildings if building.clos is not None}
    known: dict[tuple[str, str], str] = {}

    def far(one: Host, other: Host) -> str:
        # elsewhere the distance depends only on the buildings
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
    """Return every host with background traffic. `pid_of` returns a process in a host's network namespace."""
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

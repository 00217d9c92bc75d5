"""The endpoints of a job's ranks, its declared traffic and its socket rules, from a scenario's transport and topology.

The module also resolves hosts with background traffic. Traffic is declared to the network's policy before the first
packet.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from testbed.clock import clock_here
from testbed.comm.transport import BEST_EFFORT, PROTOCOLS, Registration, Slots, Software, TrafficClass
from testbed.comm.transport.kinds import TRANSPORTS, source_file, transport_kind
from testbed.comm.transport.kinds.striped import MIN_OUTSTANDING, PACKET_BYTES
from testbed.net.controller import Flow, View
from testbed.net.controller.policies.explicit import Te
from testbed.net.fabric.plan import Multipath
from testbed.net.paths.alpha_beta import bdp_bytes, empty_paths
from testbed.net.paths.hops import NETEM, Paths
from testbed.plugins import attribute_errors
from testbed.spec.base_model import StrictModel
from testbed.spec.buildings import Host
from testbed.spec.cluster_sharing import BackgroundTrafficSpec
from testbed.spec.keywords import BDP
from testbed.spec.scale import Scale
from testbed.spec.topology import Topology
from testbed.spec.transport import LAZY, RegistrationSpec, SocketsSpec, StagingSpec, TransportSpec, distance
from testbed.workload.job.endpoints import (
    LISTEN_PORT,
    SUBFLOW_PORT,
    THIS_NAMESPACE,
    BackgroundHost,
    JobEndpoints,
    Planned,
    RankEndpoint,
    SocketRule,
    SocketRules,
)

# above the ranks' ports; the same in every run with the same seed, as paths are hashed by port
BACKGROUND_PORT_BASE = 54_000
BACKGROUND_PORTS = 5_000


def endpoints_on(topology: Topology, hosts: Sequence[Host], pids: Mapping[str, int]) -> list[RankEndpoint]:
    """Return one rank on each of these hosts; `pids` has a process in the namespace of each host."""
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
    """Return a transport's emulated options: its own keys of `transport`, and `options`; may raise PluginError."""
    kind = TRANSPORTS.find(spec.kind)
    with attribute_errors(f"transport {spec.kind}", source_file(kind)):
        own = {key: getattr(spec, key) for key in kind.config_keys}
        plain = {
            key: value.model_dump() if isinstance(value, StrictModel) else value for key, value in own.items()
        }
        return kind.emulated({**plain, **(spec.options or {})}, scale)


def multipath_of(spec: TransportSpec, hosts: Sequence[Host]) -> Multipath | None:
    """Return MPTCP's additional subflows between the ranks on these hosts, or None; the higher rank dials."""
    added = transport_kind(spec.kind, options_of(spec, Scale())).added_subflows
    if not added:
        return None
    return Multipath(tuple(range(SUBFLOW_PORT, SUBFLOW_PORT + added)), tuple(host.name for host in hosts))


def wants_rdma(spec: TransportSpec) -> bool:
    """Return whether hosts need NICs with RDMA verbs; raise PluginError if a plug-in does not load."""
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
        topology: The emulated topology; None for ranks on this machine's loopback.
        endpoints: Endpoint of each rank.
        seed: Seed of port numbers and operation costs.
        timeout_s: Timeout in real seconds; None for the transport's own.
        congestion_control: Congestion control; None for the kernel's.
        sockets: Socket settings by connection.
    """
    ranks = len(endpoints)
    by_name = {host.name: host for host in topology.hosts} if topology else {}
    hosts = [by_name[endpoint.host] for endpoint in endpoints] if topology else []
    asks = TRANSPORTS.find(spec.kind).asks_network
    paths = empty_paths(Paths(topology), hosts) if asks and topology is not None else ()
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
        bdp_bytes=tuple(tuple(round(path.bdp_bytes) for path in row) for row in paths),
        path_bps=tuple(tuple(path.rate_bps for path in row) for row in paths),
        round_trips_s=tuple(tuple(path.round_trip_s for path in row) for row in paths),
        port_bps=tuple(host.nic.rate_bps for host in hosts) if paths else (),
    )


def software_of(spec: TransportSpec, scale: Scale) -> Software:
    """Return the protocol and, where software takes no time on the clock, its modelled software cost.

    Raises PluginError if a plug-in does not load.
    """
    modelled = modelled_software(spec, scale)
    if clock_here() == "free":
        return modelled
    return Software(modelled.protocol, modelled.slots, computing_share=modelled.computing_share)


def modelled_software(spec: TransportSpec, scale: Scale) -> Software:
    """Return the protocol and its emulated cost on real hosts; raise PluginError if a plug-in does not load."""
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

    Chunks scale like messages, but packets do not. So there are fewer chunks, with the same number of bytes in total.
    """
    wanted_bytes = scale.emulated_bytes(spec.chunk_bytes)
    chunk_bytes = max(min(spec.chunk_bytes, PACKET_BYTES), round(wanted_bytes))
    slots = round(spec.slots * min(1.0, wanted_bytes / chunk_bytes))
    return Slots(chunk_bytes, max(min(spec.slots, MIN_OUTSTANDING), slots), spec.announced)


def _registration(spec: RegistrationSpec, scale: Scale) -> Registration:
    least_s, most_s, rare_s = map(scale.emulated_s, (spec.least_s, spec.most_s, spec.rare_s))
    return Registration(least_s, most_s, rare_s, spec.rare_share)


def distances_of(topology: Topology, hosts: Sequence[Host]) -> tuple[tuple[str, ...], ...]:
    """Return the distance from each rank to each other rank."""
    tiered = {building.name for building in topology.buildings if building.clos is not None}
    known: dict[tuple[str, str], str] = {}

    def far(one: Host, other: Host) -> str:
        # in other cases the distance depends only on the buildings
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
    """Return every host with background traffic; `pid_of` returns a process in a host's network namespace."""
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


Pairs = Mapping[tuple[int, int], float]


def sum_pairs(parts: Iterable[Pairs]) -> Pairs:
    """Return the sum of several traffic matrices, in bytes per ordered pair of ranks."""
    found: Counter[tuple[int, int]] = Counter()
    for part in parts:
        found.update(part)
    return found


def flows_of(
    wiring: JobEndpoints, pairs: Pairs, traffic: TrafficClass = BEST_EFFORT, job: str = "job"
) -> list[Flow]:
    """Return the flow of each connection and direction, for one traffic class.

    The higher rank of a pair dials. A pair's traffic is assumed to be spread evenly over its connections.

    Args:
        wiring: Endpoints of the job.
        pairs: Emulated bytes per step and ordered pair of ranks.
        traffic: The traffic class.
        job: Name of the job.
    """
    flows = []
    for (source, target), size_bytes in sorted(pairs.items()):
        if source == target:
            continue
        channels = wiring.channels(source, target)
        for channel in range(channels):
            key = wiring.connection(source, target, traffic, channel)
            local_port = wiring.source_port(max(source, target), min(source, target), key)
            remote_port = LISTEN_PORT
            # the kernel chooses the local port of MPTCP's additional subflows
            if channel and wiring.transport.added_subflows:
                local_port, remote_port = 0, SUBFLOW_PORT + channel - 1
            ports = wiring.transport.ports(local_port, remote_port, dialling=source > target)
            hosts = wiring.ranks[source].host, wiring.ranks[target].host
            share = size_bytes / channels
            protocol = wiring.transport.protocol
            flows.append(Flow(*hosts, channel, share, *ports, traffic.dscp, job, protocol))
    return flows


def planned_rates(
    wiring: JobEndpoints, topology: Topology, flows: Sequence[Flow], detours: int
) -> list[Planned]:
    """Return the rate that policy `te` plans for each flow between buildings.

    With these rates, all flows finish when the busiest link does.
    """
    te = Te(detours=detours)
    rates_bps = te.planned_bps(View(topology, flows))
    ranks = {endpoint.host: endpoint.rank for endpoint in wiring.ranks}
    return [
        (ranks[flow.source], ranks[flow.destination], flow.dscp, flow.channel, rate_bps)
        for flow, rate_bps in rates_bps.items()
    ]


def socket_rules_of(
    specs: Sequence[SocketsSpec],
    scale: Scale,
    topology: Topology | None,
    hosts: Sequence[Host],
    planned: Sequence[Planned] = (),
    link_engine: str = NETEM,
) -> SocketRules:
    """Return the socket rules of a scenario.

    Args:
        specs: The scenario's rules, in real figures.
        scale: Scale of the emulation.
        topology: The emulated topology; None on this machine's loopback, where no window needs a size.
        hosts: Host of each rank.
        planned: Rates that the policy plans.
        link_engine: Link engine on which the job will run.
    """
    rules = [
        SocketRule(
            spec.dscp,
            spec.distance,
            spec.congestion_control,
            scale.emulated_bps(spec.pacing) if isinstance(spec.pacing, float) else spec.pacing,
            _emulated_buffer(spec.buffers, scale, topology),
        )
        for spec in specs
    ]
    products: tuple[tuple[int, ...], ...] = ()
    if topology is not None and any(rule.buffer_bytes == BDP for rule in rules):
        products = tuple(tuple(map(round, row)) for row in bdp_bytes(Paths(topology, link_engine), hosts))
    return SocketRules(tuple(rules), products, tuple(planned))


def _emulated_buffer(value: int | str | None, scale: Scale, topology: Topology | None) -> int | str | None:
    if isinstance(value, int):
        return max(1, round(scale.emulated_bytes(value)))
    return None if topology is None else value

"""The traffic of a job, declared to the network's policy before the first packet, and its hosts' socket settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from testbed.comm.transport import BEST_EFFORT, TrafficClass
from testbed.net.controller import Flow, View
from testbed.net.controller.policies.explicit import Te
from testbed.net.paths.alpha_beta import bdp_bytes
from testbed.net.paths.hops import NETEM, Paths
from testbed.spec.buildings import Host
from testbed.spec.keywords import BDP
from testbed.spec.scale import Scale
from testbed.spec.topology import Topology
from testbed.spec.transport import SocketsSpec
from testbed.workload.job.endpoints import (
    LISTEN_PORT,
    SUBFLOW_PORT,
    JobEndpoints,
    Planned,
    SocketRule,
    SocketRules,
)

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

    The higher rank of a pair dials. Traffic of a pair is assumed to be spread evenly over its connections.

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

    All flows finish when the busiest link does.
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
        topology: The topology, emulated; None on this machine's loopback, where no window needs a size.
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

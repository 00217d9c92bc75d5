"""The traffic of a job, declared to the network's policy before the first packet: who sends how much on which ports.

And what follows for the hosts: their sockets' settings.
"""

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


def total(parts: Iterable[Pairs]) -> Pairs:
    """The sum of several, in bytes per ordered pair of ranks."""
    found: Counter[tuple[int, int]] = Counter()
    for part in parts:
        found.update(part)
    return found


def flows_of(
    wiring: JobEndpoints, pairs: Pairs, traffic: TrafficClass = BEST_EFFORT, job: str = "job"
) -> list[Flow]:
    """What each connection carries in each direction, of one traffic class; pairs: emulated bytes per step.

    The higher rank of two dials. What a pair sends is taken to be spread evenly over its connections.
    """
    flows = []
    for (source, target), size_bytes in sorted(pairs.items()):
        if source == target:
            continue
        channels = wiring.channels(source, target)
        for channel in range(channels):
            key = wiring.connection(source, target, traffic, channel)
            dialled = wiring.source_port(max(source, target), min(source, target), key)
            listening = LISTEN_PORT
            # of MPTCP's other subflows the kernel chooses the dialling end
            if channel and wiring.transport.added_subflows:
                dialled, listening = 0, SUBFLOW_PORT + channel - 1
            ports = wiring.transport.ports(dialled, listening, dialling=source > target)
            hosts = wiring.ranks[source].host, wiring.ranks[target].host
            share = size_bytes / channels
            protocol = wiring.transport.protocol
            flows.append(Flow(*hosts, channel, share, *ports, traffic.dscp, job, protocol))
    return flows


def planned_rates(
    wiring: JobEndpoints, topology: Topology, flows: Sequence[Flow], detours: int
) -> list[Planned]:
    """What `te` has in mind for each flow between buildings: all are done when the busiest link is."""
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
    """From what a scenario says; topology: emulated, None on this machine's loopback, where no window needs a size."""
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

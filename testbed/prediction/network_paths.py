"""The network paths between ranks, as stored in flight recorder dumps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from testbed.comm.flight_recorder import NetworkPaths, PairPath
from testbed.net.controller import Flow
from testbed.net.paths.alpha_beta import step_of
from testbed.net.paths.hops import (
    Hop,
)
from testbed.prediction.calibration import Calibration
from testbed.prediction.routes import Routes
from testbed.workload.job.endpoint_resolution import flows_of
from testbed.workload.job.job import Job

ALL_PAIRS_RANKS = 64  # above this, only pairs that the plan uses


def network_paths(job: Job, calibration: Calibration) -> NetworkPaths:
    """Return every connection's path at the start of a run, in emulated figures; raise ControllerError on failure."""
    routes = Routes(job, calibration)
    hosts = {rank: host.name for rank, host in enumerate(job.hosts)}
    flows = [flow for algorithm in job.scenario.algorithms for flow in job.flows_of(algorithm)]
    found = (_path(routes, flow) for flow in dict.fromkeys([*flows, *_unused_pairs(job, flows)]))
    pairs = {(own.source, own.target, own.dscp, own.channel): own for own in found if own is not None}
    rates_bps = {
        f"link {link.name}": min(link.a_to_b.rate_bps, link.b_to_a.rate_bps) for link in job.topology.wan
    }
    return NetworkPaths(hosts, tuple(pairs[key] for key in sorted(pairs)), rates_bps)


def _unused_pairs(job: Job, flows: Iterable[Flow]) -> Iterator[Flow]:
    """Yield flows of pairs that the plan does not use, but barriers and the agreement on a step's start do."""
    ranks = {host.name: rank for rank, host in enumerate(job.hosts)}
    if len(ranks) > ALL_PAIRS_RANKS:
        return
    used = {(ranks[flow.source], ranks[flow.destination]) for flow in flows if not flow.dscp}
    pairs = ((one, other) for one in ranks.values() for other in ranks.values() if one != other)
    yield from flows_of(job.wiring, {pair: 0.0 for pair in pairs if pair not in used})


def _path(routes: Routes, flow: Flow) -> PairPath | None:
    """Return one connection's path; None if a switch drops its packets."""
    (source, one), (target, other) = routes.hosts[flow.source], routes.hosts[flow.destination]
    up, down = routes.nodes(one, other)
    rising, falling = routes.inside(one, other)
    names = [f"nic {one.name}", *(f"switch {name}" for name in up[1:])]
    across = []
    if one.building != other.building:
        journey = routes.journey(flow, one)
        taken = [hop for hop in journey.hops if hop in routes.wan]
        if not journey.delivered:
            return None
        for link, here, there in map(routes.wan.__getitem__, taken):
            names += [
                f"switch {here}-edge",
                f"link {link.name}",
                f"plane {link.plane}",
                f"switch {there}-edge",
            ]
        across = [Hop(name, [direction]) for name, direction in map(routes.links.__getitem__, taken)]
    names += [f"switch {name}" for name in down[:0:-1]] + [f"nic {other.name}"]
    hops = [*rising, *across, *falling]
    return PairPath(
        source,
        target,
        tuple(dict.fromkeys(names)),
        flow.dscp,
        flow.channel,
        rate_bps=min(hop.links[0].rate_bps for hop in hops),
        delay_s=step_of(routes.topology, hops, hops[::-1]).delay_s,
    )

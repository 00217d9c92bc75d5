"""A recorded step: what every rank of somebody's job did, as `testbed capture` or another recorder found it."""

from __future__ import annotations

from dataclasses import replace

from testbed.config import ConfigError, Problem
from testbed.config.workload import TRACE
from testbed.job.recorded import Pairs, check_choices, done_by, rank_order, recorded_trace
from testbed.job.workloads.base import WORKLOADS, JobRequest
from testbed.paths import Network, network_of
from testbed.traces import JobTrace, TraceError
from testbed.traces.placing import reordered
from testbed.workload.plan import JobPlan
from testbed.workload.plan_traffic import plan_traffic
from testbed.workload.traced import plan_trace


@WORKLOADS.register(TRACE)
def trace(request: JobRequest) -> JobPlan:
    """Each rank does what a rank of the file `trace` did."""
    file = request.scenario.workload.trace
    assert file is not None  # by the scenario's checks
    return trace_plan(recorded_trace(request.scenario.workload), file, request)


def trace_plan(trace: JobTrace, source: str, request: JobRequest, key: str = TRACE) -> JobPlan:
    """The plan of a trace for a scenario's ranks, placed and done as it says.

    ConfigError where they are others, or ranks do not fit together. key: of the scenario's workload that named it.
    """
    field, name = f"workload.{key}", request.scenario.name
    if len(trace.ranks) != request.ranks:
        got = f"{source}, of {len(trace.ranks)} ranks"
        expected = f"a trace of {request.ranks} ranks, as many as the topology has"
        raise ConfigError([Problem(name, None, field, got, expected)])
    check_choices(trace, request.scenario.workload, name)
    try:
        return plan_trace(placed(trace, request), request)
    except TraceError as error:
        raise ConfigError([Problem(name, None, field, source, f"ranks that fit together: {error}")]) from None


def placed(trace: JobTrace, request: JobRequest) -> JobTrace:
    """A trace with as many ranks as the scenario has, in the order that it says, by its algorithms. TraceError."""
    spec = request.scenario.workload
    done = done_by(trace, spec.algorithms or {})

    def pairs() -> Pairs:
        plan = replace(plan_trace(done, request), buildings=request.building_indices)
        return plan_traffic(plan.using(request.scenario.algorithms[0]), request.itemsize)

    def network() -> Network:
        return network_of(request.topology, request.hosts, request.link_engine)

    return reordered(done, rank_order(done, spec, request.hosts, network, pairs))

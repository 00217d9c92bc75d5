"""A recorded step: what every rank of somebody's job did, as `testbed capture` or another recorder found it."""

from __future__ import annotations

from dataclasses import replace

from testbed.net.paths import Network, network_of
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.scale import UNSCALED
from testbed.spec.scenario import Scenario
from testbed.spec.workload import TRACE
from testbed.workload.job.kinds.base import WORKLOADS, JobRequest
from testbed.workload.job.recorded_trace import (
    Pairs,
    check_choices,
    rank_order,
    recorded_trace,
    with_algorithms,
)
from testbed.workload.plan import JobPlan
from testbed.workload.plan_volume import plan_traffic
from testbed.workload.trace_conversion import plan_trace
from testbed.workload.traces import JobTrace, TraceError
from testbed.workload.traces.rank_orders import reordered


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
    done = with_algorithms(trace, request.scenario.workload.algorithms or {})
    return reordered(done, _order(done, request))


def ranks_of_trace(scenario: Scenario) -> tuple[int, ...] | None:
    """The rank of the trace that each rank of a planned scenario is; None where there is none, or each is its own."""
    if not scenario.workload.recorded:
        return None
    request = JobRequest.of(scenario, scenario.topology.resolve(), UNSCALED)
    trace = recorded_trace(scenario.workload)
    order = _order(with_algorithms(trace, scenario.workload.algorithms or {}), request)
    return None if order == tuple(range(len(order))) else order


def _order(done: JobTrace, request: JobRequest) -> tuple[int, ...]:
    def pairs() -> Pairs:
        plan = replace(plan_trace(done, request), buildings=request.building_indices)
        return plan_traffic(plan.with_algorithm(request.scenario.algorithms[0]), request.itemsize)

    def network() -> Network:
        return network_of(request.topology, request.hosts, request.link_engine)

    return rank_order(done, request.scenario.workload, request.hosts, network, pairs)

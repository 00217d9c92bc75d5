"""A recorded step: what every rank of a job did, as recorded by `testbed capture` or another tool."""

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
from testbed.workload.traces.rank_orders import reorder_ranks


@WORKLOADS.register(TRACE)
def trace(request: JobRequest) -> JobPlan:
    """Plan the recorded step of the file `trace`, rank by rank."""
    file = request.scenario.workload.trace
    assert file is not None  # by the scenario's checks
    return trace_plan(recorded_trace(request.scenario.workload), file, request)


def trace_plan(trace: JobTrace, source: str, request: JobRequest, key: str = TRACE) -> JobPlan:
    """Return the plan of a trace for a scenario's ranks, with the scenario's placement and algorithms.

    Args:
        trace: The trace.
        source: Its file or folder, for messages.
        request: The request.
        key: Key of the scenario's workload that names the trace.

    Raises:
        ConfigError: The number of ranks differs, or the trace is inconsistent.
    """
    field, name = f"workload.{key}", request.scenario.name
    if len(trace.ranks) != request.ranks:
        got = f"{source}, of {len(trace.ranks)} ranks"
        expected = f"a trace of {request.ranks} ranks, as many as the topology has"
        raise ConfigError([Problem(name, None, field, got, expected)])
    check_choices(trace, request.scenario.workload, name)
    try:
        return plan_trace(place_trace(trace, request), request)
    except TraceError as error:
        raise ConfigError([Problem(name, None, field, source, f"ranks that fit together: {error}")]) from None


def place_trace(trace: JobTrace, request: JobRequest) -> JobTrace:
    """Return a trace in the scenario's rank order and with its algorithms. Raises TraceError."""
    done = with_algorithms(trace, request.scenario.workload.algorithms or {})
    return reorder_ranks(done, _order(done, request))


def ranks_of_trace(scenario: Scenario) -> tuple[int, ...] | None:
    """Return the trace's rank that each rank of a planned scenario replays; None for no trace, or the same order."""
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

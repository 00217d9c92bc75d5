"""A recorded step: what every rank of somebody's job did, as `testbed capture` or another recorder found it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from testbed.config import ConfigError, Problem
from testbed.config.workload import TRACE
from testbed.job.workloads.base import WORKLOADS, JobRequest
from testbed.traces import JobTrace, TraceError
from testbed.workload.plan import JobPlan
from testbed.workload.traced import plan_trace


@WORKLOADS.register(TRACE)
def trace(request: JobRequest) -> JobPlan:
    """Each rank does what a rank of the file `trace` did."""
    file = request.scenario.workload.trace
    assert file is not None  # by the scenario's checks
    return trace_plan(_read(file), file, request)


def trace_plan(trace: JobTrace, source: str, request: JobRequest, key: str = TRACE) -> JobPlan:
    """The plan of a trace for a scenario's ranks. ConfigError where they are others, or ranks do not fit together.

    key: of the scenario's workload that named it.
    """
    field = f"workload.{key}"
    if len(trace.ranks) != request.ranks:
        got = f"{source}, of {len(trace.ranks)} ranks"
        expected = f"a trace of {request.ranks} ranks, as many as the topology has"
        raise ConfigError([Problem(request.scenario.name, None, field, got, expected)])
    try:
        return plan_trace(trace, request)
    except TraceError as error:
        raise ConfigError(
            [Problem(request.scenario.name, None, field, source, f"ranks that fit together: {error}")]
        ) from None


def _read(file: str) -> JobTrace:
    """Once, until it changes: every variant asks. TraceError."""
    path = Path(file)
    return _read_version(path, path.stat().st_mtime_ns if path.exists() else 0)


@lru_cache(maxsize=4)
def _read_version(path: Path, changed_ns: int) -> JobTrace:
    return JobTrace.read(path)

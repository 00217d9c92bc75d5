"""A step of a job from Chakra execution traces, as ASTRA-sim reads them and PyTorch's converter writes them."""

from __future__ import annotations

from testbed.spec.workload import CHAKRA
from testbed.workload.job.kinds.base import WORKLOADS, JobRequest
from testbed.workload.job.kinds.trace import trace_plan
from testbed.workload.job.recorded_trace import recorded_trace
from testbed.workload.plan import JobPlan


@WORKLOADS.register(CHAKRA)
def chakra(request: JobRequest) -> JobPlan:
    """Plan the recorded step of the folder `chakra`, a file for each rank."""
    spec = request.scenario.workload
    assert spec.chakra is not None  # by the scenario's checks
    return trace_plan(recorded_trace(spec), spec.chakra, request, CHAKRA)

"""Workloads that keys of a scenario describe: a model, collectives and messages, or parallelism."""

from __future__ import annotations

from testbed.spec.workload import COLLECTIVES, DATA_PARALLEL, PARALLEL
from testbed.workload.job.kinds.base import WORKLOADS, JobRequest
from testbed.workload.job.rank_hardware import slowdowns_of
from testbed.workload.job.training import Training, plan_training
from testbed.workload.plan import JobPlan
from testbed.workload.uniform_plans import plan_collectives, plan_data_parallel


@WORKLOADS.register(DATA_PARALLEL)
def data_parallel(request: JobRequest) -> JobPlan:
    """Each rank trains a replica of `model`, whose gradients are reduced bucket by bucket."""
    workload = request.scenario.workload
    slowdowns = slowdowns_of(workload, request.hosts)
    return plan_data_parallel(workload, request.building_indices, request.scale, slowdowns)


@WORKLOADS.register(COLLECTIVES)
def collectives(request: JobRequest) -> JobPlan:
    """All ranks run `collectives`; ranks of the first and the last building run an `exchange` concurrently."""
    return plan_collectives(request.scenario.workload, request.building_indices, request.scale)


@WORKLOADS.register(PARALLEL)
def parallel_training(request: JobRequest) -> Training:
    """Training spread over ranks by `parallelism`, of a `model` or of identical pipeline stages (`stage`)."""
    return plan_training(
        request.scenario,
        request.topology,
        request.hosts,
        request.scale,
        request.itemsize,
        request.link_engine,
    )

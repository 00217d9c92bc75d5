"""Workloads that keys of a scenario describe: a model, collectives and messages, or parallelism."""

from __future__ import annotations

from testbed.spec.workload import COLLECTIVES, DATA_PARALLEL, PARALLEL
from testbed.workload.job.kinds.base import WORKLOADS
from testbed.workload.job.rank_hardware import slowdowns_of
from testbed.workload.job.training import JobRequest, Training, plan_training
from testbed.workload.plan import JobPlan
from testbed.workload.uniform_plans import plan_collectives, plan_data_parallel


@WORKLOADS.register(DATA_PARALLEL)
def data_parallel(request: JobRequest) -> JobPlan:
    """Plan a replica of `model` on each rank, with gradients reduced bucket by bucket."""
    workload = request.scenario.workload
    slowdowns = slowdowns_of(workload, request.hosts)
    return plan_data_parallel(workload, request.building_indices, request.scale, slowdowns)


@WORKLOADS.register(COLLECTIVES)
def collectives(request: JobRequest) -> JobPlan:
    """Plan `collectives` of all ranks, and an `exchange` between the first and the last building."""
    return plan_collectives(request.scenario.workload, request.building_indices, request.scale)


@WORKLOADS.register(PARALLEL)
def parallel_training(request: JobRequest) -> Training:
    """Plan training of a `model`, or of identical pipeline stages (`stage`), spread over ranks by `parallelism`."""
    return plan_training(request)

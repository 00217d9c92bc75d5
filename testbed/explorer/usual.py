"""The usual values of all that a search can choose, for scenarios that do not say which."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from testbed.catalogue import placements
from testbed.config import Scenario
from testbed.config.parallelism import BY_SPEED, DIMENSIONS, WAYS_TO_SHARE, ScheduleSpec
from testbed.config.units import format_size
from testbed.workload.models import dimensions
from testbed.workload.stages import layers_of

# whose times say something of the network's distance or bandwidth; of the others one or the other is always as good
SCHEDULES = ("1F1B", "Interleaved1F1B", "ZBH1", "ZBVZeroBubble", "CrossUD", "CrossUDSub", "CrossWave")
POLICIES = ("ecmp", "wcmp", "te", "spray")
CONTROLS = ("cubic", "reno", "bbr")
FAR = ("same_region", "other_region")  # distances whose connections are worth more than one value
P, S, STRIPES = "workload.parallelism.", "workload.schedule.", "transport.stripes."


def usual_space(scenario: Scenario) -> dict[str, tuple[Any, ...]]:
    """Paths and their values, the scenario's own among them.

    Left out: what the model says nothing of (queues' sizes, protocols), and what is given with the job (context
    parallel, accelerators per rank, the network).
    """
    workload = scenario.workload
    assert workload.parallelism is not None
    own, schedule = workload.parallelism, workload.schedule or ScheduleSpec()
    found: dict[str, Sequence[Any]] = {}
    if workload.model is not None:
        found |= dict(_degrees(scenario))
        found["workload.local_batch_size"] = _with(workload.local_batch_size, (1, 2, 4))
        found["workload.bucket_cap"] = _with(
            format_size(workload.bucket_cap_bytes), ("25 MB", "100 MB", "400 MB")
        )
    found[f"{P}placement"] = _with(own.placement, placements())
    found[f"{P}mapping"] = _with(own.mapping, ("consecutive", "topology_aware"))
    found[f"{P}collectives.data_parallel_shard"] = ("ring", "bidirectional_ring", "far_first", "hierarchical")
    if own.tensor_communication == "all_reduce":
        found[f"{P}collectives.tensor_parallel"] = ("ring", "hierarchical")
    if own.expert_parallel_degree > 1 and not own.routing_skew:
        found[f"{P}collectives.expert_parallel"] = ("direct", "hierarchical")
    found["algorithms"] = _with(
        [scenario.algorithms[0]], (["ring"], ["bidirectional_ring"], ["double_tree"], ["hierarchical"])
    )
    if schedule.file is None:
        found[f"{S}name"] = _with(schedule.name, SCHEDULES)
        found[f"{S}chunks"] = _with(schedule.chunks, (1, 2, 4))
    if any(building.accelerator for building in scenario.topology.resolve().buildings):
        found[f"{P}mapping"] = [*found[f"{P}mapping"], BY_SPEED]
        found[f"{S}layers_per_stage"] = _with(schedule.layers_per_stage, WAYS_TO_SHARE)
        if schedule.file is None:
            found[f"{S}microbatches_per_replica"] = _with(schedule.microbatches_per_replica, WAYS_TO_SHARE)
    found[f"{S}prefetch"] = _with(schedule.prefetch, (0, 1, 2))
    found[f"{S}receives"] = ("early", "in_order")
    found[f"{S}wan_send_tokens"] = (False, True)
    found["policy"] = _with(scenario.policy.label, POLICIES)
    found["transport.congestion_control"] = _with(scenario.transport.congestion_control, CONTROLS)
    found["transport.kind"] = _with(scenario.transport.kind, ("tcp", "striped"))
    for distance in FAR:
        stripes = getattr(scenario.transport.stripes, distance)
        found[f"{STRIPES}{distance}.connections"] = _with(stripes.connections, (2, 4, 8, 16))
        found[f"{STRIPES}{distance}.outstanding"] = _with(stripes.outstanding, (32, 128, 512))
        found[f"{STRIPES}{distance}.segment"] = _with(
            format_size(stripes.segment_bytes), ("128 KiB", "512 KiB", "2 MiB")
        )
    return {path: tuple(values) for path, values in found.items() if len(values) > 1}


def _degrees(scenario: Scenario) -> Iterator[tuple[str, Sequence[int]]]:
    """Divisors of what the degrees have to multiply to; of the context, which is the job's, its own."""
    workload = scenario.workload
    assert workload.parallelism is not None
    assert workload.model is not None
    own = workload.parallelism
    inside = max(own.accelerators_per_rank, own.tensor_parallel_degree)
    total = math.prod(own.degrees[name] for name in DIMENSIONS) // own.context_parallel_degree
    blocks, *_ = layers_of(workload.model)
    most = {"tensor_parallel": inside, "pipeline_parallel": len(blocks)}
    for name in ("data_parallel_replicate", "data_parallel_shard", "pipeline_parallel", "tensor_parallel"):
        yield f"{P}{name}_degree", [one for one in _divisors(total) if one <= most.get(name, total)]
    if experts := dimensions(workload.model).experts:
        yield f"{P}expert_parallel_degree", [one for one in _divisors(experts) if one <= total]


def _divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


def _with(own: Any, usual: Iterable[Any]) -> list[Any]:
    """The own value first."""
    return [own, *(value for value in usual if value != own)]


def filled(scenario: Scenario, given: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """What a scenario says to search, and beside it the usual values of all else."""
    usual = usual_space(scenario)
    return {**{path: values for path, values in usual.items() if path not in given}, **given}

"""The default search space, for scenarios that do not define one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from testbed.spec.catalogue import placements
from testbed.spec.parallelism import (
    AS_RECORDED,
    BY_DISTANCE,
    BY_SPEED,
    CONSECUTIVE,
    DIMENSIONS,
    MICROBATCH_SHARES,
    TOPOLOGY_AWARE,
    ScheduleSpec,
)
from testbed.spec.scenario import Scenario
from testbed.spec.units import format_size
from testbed.workload.job.kinds.trace import collectives_of, recorded_trace
from testbed.workload.job.rank_hardware import slowdowns_of
from testbed.workload.models import dimensions
from testbed.workload.stages import layers_of
from testbed.workload.traces.rank_orders import placements_of

# schedules with different sensitivity to latency and bandwidth; no other schedule is better than all of these
SCHEDULES = ("1F1B", "Interleaved1F1B", "ZBH1", "ZBVZeroBubble", "CrossUD", "CrossUDSub", "CrossWave")
POLICIES = ("ecmp", "wcmp", "te", "spray")
CONTROLS = ("cubic", "reno", "bbr")
ALL_REDUCES = (["ring"], ["bidirectional_ring"], ["double_tree"], ["hierarchical"])
# for the other collectives of a trace
ALGORITHMS = {
    "all_gather": ("auto", "ring", "bidirectional_ring", "far_first", "hierarchical"),
    "reduce_scatter": ("auto", "ring", "bidirectional_ring", "far_first", "hierarchical"),
    "all_to_all": ("auto", "direct", "hierarchical"),
}
FAR = ("same_region", "other_region")  # distances where striping parameters matter
P, S, STRIPES = "workload.parallelism.", "workload.schedule.", "transport.stripes."


def usual_space(scenario: Scenario) -> dict[str, tuple[Any, ...]]:
    """Return paths with their values, including the scenario's own.

    It leaves out settings that the model does not cover (queue sizes, protocols), and settings that the job fixes:
    context parallelism, accelerators per rank, the network and, for a recorded job, all operations of ranks.
    """
    found = _trace_space(scenario) if scenario.workload.is_recorded else _training_space(scenario)
    found |= _network_space(scenario)
    return {path: tuple(values) for path, values in found.items() if len(values) > 1}


def _training_space(scenario: Scenario) -> dict[str, Sequence[Any]]:
    workload = scenario.workload
    assert workload.parallelism is not None
    own, schedule = workload.parallelism, workload.schedule or ScheduleSpec()
    found: dict[str, Sequence[Any]] = {}
    if workload.model is not None:
        found |= dict(_degrees(scenario))
        found["workload.local_batch_size"] = _own_first(workload.local_batch_size, (1, 2, 4))
        found["workload.bucket_cap"] = _own_first(
            format_size(workload.bucket_cap_bytes), ("25 MB", "100 MB", "400 MB")
        )
    found[f"{P}placement"] = _own_first(own.placement, placements())
    found[f"{P}mapping"] = _own_first(own.mapping, _mappings(scenario))
    found[f"{P}collectives.data_parallel_shard"] = ("ring", "bidirectional_ring", "far_first", "hierarchical")
    if own.tensor_communication == "all_reduce":
        found[f"{P}collectives.tensor_parallel"] = ("ring", "hierarchical")
    if own.expert_parallel_degree > 1 and not own.routing_skew:
        found[f"{P}collectives.expert_parallel"] = ("direct", "hierarchical")
    found["algorithms"] = _own_first([scenario.algorithms[0]], ALL_REDUCES)
    if schedule.file is None:
        found[f"{S}name"] = _own_first(schedule.name, SCHEDULES)
        found[f"{S}chunks"] = _own_first(schedule.chunks, (1, 2, 4))
    hosts = scenario.rank_hosts(scenario.topology.resolve())
    if own.stragglers or slowdowns_of(workload, hosts):
        found[f"{P}mapping"] = [*found[f"{P}mapping"], BY_SPEED]
        found[f"{S}layers_per_stage"] = _own_first(schedule.layers_per_stage, MICROBATCH_SHARES)
        if schedule.file is None:
            found[f"{S}microbatches_per_replica"] = _own_first(
                schedule.microbatches_per_replica, MICROBATCH_SHARES
            )
    found[f"{S}prefetch"] = _own_first(schedule.prefetch, (0, 1, 2))
    found[f"{S}receives"] = ("early", "in_order")
    found[f"{S}wan_send_tokens"] = (False, True)
    return found


def _trace_space(scenario: Scenario) -> dict[str, Sequence[Any]]:
    """Return the placement of ranks, and the algorithms of collectives that do not fix one."""
    workload, trace = scenario.workload, recorded_trace(scenario.workload)
    found: dict[str, Sequence[Any]] = {}
    orders = [AS_RECORDED, *map(list, placements_of(trace))]
    found["workload.placement"] = _own_first(list(workload.placement or ()) or AS_RECORDED, orders)
    own = workload.mapping or CONSECUTIVE
    found["workload.mapping"] = _own_first(list(own) if isinstance(own, tuple) else own, _mappings(scenario))
    kinds = collectives_of(trace)
    if any("all_reduce" in some for some in kinds.values()):
        found["algorithms"] = _own_first([scenario.algorithms[0]], ALL_REDUCES)
    for kind, some in kinds.items():
        usual = [name for names in (ALGORITHMS.get(one, ()) for one in some) for name in names]
        if usual and "." not in kind:
            given = (workload.algorithms or {}).get(kind)
            found[f"workload.algorithms.{kind}"] = list(dict.fromkeys([*([given] if given else []), *usual]))
    return found


def _mappings(scenario: Scenario) -> list[str]:
    """Return rank mappings; include mappings by distance only if there is an order to choose."""
    several = len(scenario.topology.resolve().populated) > 2 or scenario.hosts is not None
    return [CONSECUTIVE, TOPOLOGY_AWARE, *([BY_DISTANCE] if several else [])]


def _network_space(scenario: Scenario) -> dict[str, Sequence[Any]]:
    found: dict[str, Sequence[Any]] = {}
    found["policy"] = _own_first(scenario.policy.label, POLICIES)
    found["transport.congestion_control"] = _own_first(scenario.transport.congestion_control, CONTROLS)
    found["transport.kind"] = _own_first(scenario.transport.kind, ("tcp", "striped"))
    for distance in FAR:
        stripes = getattr(scenario.transport.stripes, distance)
        found[f"{STRIPES}{distance}.connections"] = _own_first(stripes.connections, (2, 4, 8, 16))
        found[f"{STRIPES}{distance}.outstanding"] = _own_first(stripes.outstanding, (32, 128, 512))
        found[f"{STRIPES}{distance}.segment"] = _own_first(
            format_size(stripes.segment_bytes), ("128 KiB", "512 KiB", "2 MiB")
        )
    return found


def _degrees(scenario: Scenario) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield the divisors of the degrees' product; the context degree is the job's own."""
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


def _own_first(own: Any, usual: Iterable[Any]) -> list[Any]:
    """Return the usual values, with the scenario's own value first."""
    return [own, *(value for value in usual if value != own)]


def fill_space(scenario: Scenario, given: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """Complete a scenario's search space with the default values of all other paths."""
    usual = usual_space(scenario)
    return {**{path: values for path, values in usual.items() if path not in given}, **given}

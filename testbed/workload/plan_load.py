"""How many messages a plan's step has, and how many bytes are in them, roughly: what carrying it out costs software."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from testbed.collectives import AUTO, TuningTable, collective_of
from testbed.collectives.catalogue import pieces_for, plan_of
from testbed.collectives.registry import PlanRequest
from testbed.workload.plan import GroupCollective, JobPlan, Message


@dataclass(frozen=True)
class PlanLoad:
    """Of all ranks in a step."""

    messages: float
    sent_bytes: float


def plan_load(plan: JobPlan, itemsize: int, size_scale: float = 1.0) -> PlanLoad:
    """Of a plan whose collectives all name their algorithms. One member of each group stands for the others.

    size_scale: by which the plan's arrays are going to be divided, which go in fewer pieces then; the bytes are the
    plan's own.
    """
    messages, sent = 0.0, 0.0
    alike: Counter[GroupCollective] = Counter()
    for rank, operations in enumerate(plan.ranks):
        for operation in operations:
            if isinstance(operation, Message) and operation.sends:
                messages, sent = messages + 1, sent + operation.numel * itemsize
            elif isinstance(operation, GroupCollective) and rank == plan.groups[operation.group][1][0]:
                alike[operation.alike] += 1
    for operation, count in alike.items():
        load = _of_collective(
            operation, plan.buildings_of(operation.group), itemsize, plan.tuning, size_scale
        )
        messages, sent = messages + count * load.messages, sent + count * load.sent_bytes
    return PlanLoad(messages, sent)


def _of_collective(
    operation: GroupCollective,
    buildings: tuple[int, ...],
    itemsize: int,
    tuning: TuningTable,
    size_scale: float,
) -> PlanLoad:
    size = len(buildings)
    if operation.uneven:
        rows = operation.sent_rows()
        return PlanLoad(size * (size - 1), sum(map(sum, rows)) * itemsize)
    known = collective_of(operation.collective)
    size_bytes = known.part(operation.numel, size) * itemsize
    algorithm = operation.algorithm
    if algorithm == AUTO:
        algorithm = tuning.choose(operation.collective, size_bytes, buildings)
    pieces = pieces_for(known, algorithm, round(size_bytes / size_scale), size)
    plan = plan_of(known, algorithm, PlanRequest(size // 2, buildings, 0, pieces))
    sends = [
        transfer
        for stages in plan.channels
        for stage in stages
        for strand in stage
        for step in strand
        for transfer in step.sends
    ]
    sent = plan.sent(plan.bounds(known.part(operation.numel, size) * known.blocks(size)))
    return PlanLoad(size * len(sends), size * sum(sent.values()) * itemsize)

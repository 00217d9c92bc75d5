"""How many messages a plan's step has, and how many bytes are in them, roughly: what carrying it out costs software."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.comm.collectives import AUTO, TuningTable, collective_of
from testbed.comm.collectives.algorithm_selection import pieces_for, plan_of
from testbed.comm.collectives.registry import PlanRequest
from testbed.workload.plan import GroupCollective, JobPlan, Message


@dataclass(frozen=True)
class PlanLoad:
    """Of all ranks in a step, or of one."""

    messages: float
    sent_bytes: float


def plan_load(plan: JobPlan, itemsize: int, size_scale: float = 1.0) -> PlanLoad:
    """Of a plan whose collectives all name their algorithms. One member of each group stands for the others.

    size_scale: by which the plan's arrays are going to be divided, which go in fewer pieces then; the bytes are the
    plan's own.
    """
    known: dict[GroupCollective, PlanLoad] = {}
    messages, sent = 0.0, 0.0
    for operation in (operation for own in plan.ranks for operation in own):
        if isinstance(operation, GroupCollective):
            alike = operation.alike
            if alike not in known:
                buildings = plan.near_of(operation.group)
                known[alike] = _of_member(alike, buildings, itemsize, plan.tuning, size_scale)
            messages, sent = messages + known[alike].messages, sent + known[alike].sent_bytes
        elif isinstance(operation, Message) and operation.sends:
            messages, sent = messages + 1, sent + operation.numel * itemsize
    return PlanLoad(messages, sent)


def _of_member(
    operation: GroupCollective,
    buildings: tuple[int, ...],
    itemsize: int,
    tuning: TuningTable,
    size_scale: float,
) -> PlanLoad:
    """Of the one in the middle."""
    size = len(buildings)
    if operation.uneven:
        return PlanLoad(size - 1, sum(map(sum, operation.sent_rows())) * itemsize / size)
    known = collective_of(operation.collective)
    size_bytes = known.part(operation.numel, size) * itemsize
    algorithm = operation.algorithm
    if algorithm == AUTO:
        algorithm = tuning.choose(operation.collective, size_bytes, buildings)
    pieces = pieces_for(known, algorithm, round(size_bytes / size_scale), size)
    plan = plan_of(known, algorithm, PlanRequest(size // 2, buildings, 0, pieces))
    steps = [step for stages in plan.channels for stage in stages for strand in stage for step in strand]
    sent = plan.sent(plan.bounds(known.part(operation.numel, size) * known.blocks(size)))
    return PlanLoad(sum(len(step.sends) for step in steps), sum(sent.values()) * itemsize)

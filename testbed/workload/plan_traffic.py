"""What a plan sends, in bytes per ordered pair of ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from testbed.collectives import AUTO, TuningTable, collective_of, traffic
from testbed.collectives.late_counts import rows_traffic
from testbed.workload.plan import GroupCollective, JobPlan, Message


def plan_traffic(plan: JobPlan, itemsize: int, dscp: int | None = None) -> Mapping[tuple[int, int], int]:
    """Payload bytes per ordered pair of ranks in a step; dscp: of this class of traffic alone."""
    found: Counter[tuple[int, int]] = Counter()
    alike: dict[object, list[GroupCollective]] = {}
    for rank, operations in enumerate(plan.shared):
        for _, operation in operations:
            if isinstance(operation, GroupCollective):
                if rank == plan.groups[operation.group][1][0] and dscp in (None, plan.dscp(operation)):
                    alike.setdefault(operation.sending, []).append(operation)
            elif isinstance(operation, Message) and operation.sends and dscp in (None, plan.dscp(operation)):
                found[rank, operation.peer] += operation.numel * itemsize
    for same in alike.values():
        operation = same[0]
        members = plan.groups[operation.group][1]
        buildings = plan.near_of(operation.group)
        for ends, size in group_traffic(operation, members, itemsize, buildings, plan.tuning).items():
            found[ends] += len(same) * size
    return found


def group_traffic(
    operation: GroupCollective,
    members: Sequence[int],
    itemsize: int,
    buildings: Sequence[int],
    tuning: TuningTable,
) -> dict[tuple[int, int], int]:
    """Of one collective of these ranks; buildings: of the members, as the collective knows them."""
    if operation.uneven:
        found = rows_traffic(operation.sent_rows(), itemsize, operation.algorithm)
        return {(members[here], members[there]): count for (here, there), count in found.items()}
    numel = collective_of(operation.collective).part(operation.numel, len(members))
    algorithm = operation.algorithm
    if algorithm == AUTO:
        algorithm = tuning.choose(operation.collective, numel * itemsize, buildings)
    found = traffic(operation.collective, algorithm, numel, itemsize, buildings)
    return {(members[here], members[there]): count for (here, there), count in found.items()}

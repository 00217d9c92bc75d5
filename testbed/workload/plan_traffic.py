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
    alike: Counter[GroupCollective] = Counter()
    for rank, operations in enumerate(plan.ranks):
        for operation in operations:
            if dscp is not None and plan.dscp(operation) != dscp:
                continue
            if isinstance(operation, Message) and operation.sends:
                found[rank, operation.peer] += operation.numel * itemsize
            elif isinstance(operation, GroupCollective):
                members = plan.groups[operation.group][1]
                if rank == members[0]:
                    alike[operation.alike] += 1
    for operation, count in alike.items():
        members = plan.groups[operation.group][1]
        buildings = plan.near_of(operation.group)
        for ends, size in group_traffic(operation, members, itemsize, buildings, plan.tuning).items():
            found[ends] += count * size
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

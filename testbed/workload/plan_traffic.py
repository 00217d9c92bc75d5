"""What a plan sends, in bytes per ordered pair of ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from testbed.collectives import traffic
from testbed.collectives.late_counts import rows_traffic
from testbed.workload.plan import GroupCollective, JobPlan, Message


def plan_traffic(plan: JobPlan, itemsize: int, dscp: int | None = None) -> Mapping[tuple[int, int], int]:
    """Payload bytes per ordered pair of ranks in a step; dscp: of this class of traffic alone."""
    found: Counter[tuple[int, int]] = Counter()
    for rank, operations in enumerate(plan.ranks):
        for operation in operations:
            if dscp is not None and plan.dscp(operation) != dscp:
                continue
            if isinstance(operation, Message) and operation.sends:
                found[rank, operation.peer] += operation.numel * itemsize
            elif isinstance(operation, GroupCollective):
                members = plan.groups[operation.group][1]
                if rank == members[0]:
                    found.update(_in_group(operation, members, itemsize))
    return found


def _in_group(
    operation: GroupCollective, members: Sequence[int], itemsize: int
) -> dict[tuple[int, int], int]:
    if operation.counts:
        found = rows_traffic(operation.rows(), itemsize)
        return {(members[here], members[there]): count for (here, there), count in found.items()}
    numel = operation.numel // (1 if operation.collective == "all_reduce" else len(members))
    groups = [0] * len(members)
    found = traffic(operation.collective, operation.algorithm, numel, itemsize, groups)
    return {(members[here], members[there]): count for (here, there), count in found.items()}

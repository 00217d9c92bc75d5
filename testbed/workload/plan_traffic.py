"""What a plan sends, in bytes per ordered pair of ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from testbed.comm.collectives import AUTO, TuningTable, collective_of, traffic
from testbed.comm.collectives.algorithms.all_to_all_v import rows_traffic
from testbed.plugins import is_file_name
from testbed.workload.plan import GroupCollective, JobPlan


def plan_traffic(plan: JobPlan, itemsize: int, dscp: int | None = None) -> Mapping[tuple[int, int], int]:
    """Payload bytes per ordered pair of ranks in a step; dscp: of this class of traffic alone."""
    found: Counter[tuple[int, int]] = Counter()
    alike: dict[object, tuple[GroupCollective, int]] = {}
    for rank, operations in enumerate(plan.exchanged):
        for operation, many in operations:
            if dscp not in (None, plan.dscp(operation)):
                continue
            if isinstance(operation, GroupCollective):
                if rank == plan.groups[operation.group][1][0]:
                    _, before = alike.get(operation.sending, (operation, 0))
                    alike[operation.sending] = operation, before + many
            elif operation.sends:
                found[rank, operation.peer] += many * operation.numel * itemsize
    for operation, many in alike.values():
        members = plan.groups[operation.group][1]
        buildings = plan.near_of(operation.group)
        for ends, size in group_traffic(operation, members, itemsize, buildings, plan.tuning).items():
            found[ends] += many * size
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
        rows = rows_traffic(operation.sent_rows(), itemsize, operation.algorithm)
        return {(members[here], members[there]): count for (here, there), count in rows.items()}
    algorithm = algorithm_taken(operation, buildings, itemsize, tuning)
    of_file = is_file_name(operation.collective) or is_file_name(algorithm)
    find = _traffic.__wrapped__ if of_file else _traffic
    found = find(operation.collective, algorithm, operation.numel, itemsize, tuple(buildings))
    return {(members[here], members[there]): count for (here, there), count in found.items()}


def algorithm_taken(
    operation: GroupCollective, buildings: Sequence[int], itemsize: int, tuning: TuningTable
) -> str:
    """What an even collective goes by; buildings: of its members."""
    if operation.algorithm != AUTO:
        return operation.algorithm
    numel = collective_of(operation.collective).part(operation.numel, len(buildings))
    return tuning.choose(operation.collective, numel * itemsize, buildings)


@lru_cache(4096)  # searches ask for the same collectives again and again
def _traffic(
    collective: str, algorithm: str, numel: int, itemsize: int, buildings: tuple[int, ...]
) -> Mapping[tuple[int, int], int]:
    return traffic(
        collective,
        algorithm,
        collective_of(collective).part(numel, len(buildings)),
        itemsize,
        buildings,
    )

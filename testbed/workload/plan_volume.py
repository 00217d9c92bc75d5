"""The volume of a plan: elements of its arrays, number of messages, and bytes per ordered pair of ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from testbed.comm.collectives import AUTO, TuningTable, collective_of, traffic
from testbed.comm.collectives.algorithm_selection import pieces_for, plan_of
from testbed.comm.collectives.algorithms.all_to_all_v import rows_traffic
from testbed.comm.collectives.registry import PlanRequest
from testbed.plugins import is_file_name
from testbed.workload.plan import Block, GroupCollective, JobPlan, Message, RankPlan

ArrayKey = tuple[str, int, str, int]
"""Stream, group, collective, elements."""


def array_keys(plan: RankPlan, apart: Container[int] = ()) -> dict[int, ArrayKey]:
    """Return a key for the array of each of a rank's collectives, by index in its plan; equal keys share an array.

    Operations of a stream run one at a time. Uneven all-to-alls of a group on one stream share an array of the largest
    size. Collectives of the groups `apart` do not share arrays.
    """
    most: dict[tuple[str, int], int] = {}
    collectives = [(index, found) for index, found in enumerate(plan) if isinstance(found, GroupCollective)]
    for _, operation in collectives:
        if operation.uneven:
            stream = operation.stream, operation.group
            most[stream] = max(most.get(stream, 0), operation.numel)
    return {
        index: (
            f"{operation.stream} #{index}" if operation.group in apart else operation.stream,
            operation.group,
            operation.collective,
            most[operation.stream, operation.group] if operation.uneven else operation.numel,
        )
        for index, operation in collectives
    }


def message_buffer_elements(plan: RankPlan) -> dict[str, int]:
    """Return the number of elements of the buffer that messages of each stream share."""
    buffers: dict[str, int] = {}
    for operation in plan:
        if isinstance(operation, Message) and not isinstance(operation, Block):
            buffers[operation.stream] = max(buffers.get(operation.stream, 0), operation.numel)
    return buffers


def block_elements(plan: RankPlan) -> dict[int, int]:
    """Return the number of elements of a rank's largest block in each group's windows."""
    found: dict[int, int] = {}
    for operation in plan:
        if isinstance(operation, Block):
            found[operation.group] = max(found.get(operation.group, 0), operation.numel)
    return found


def plan_elements(plan: JobPlan) -> int:
    """Return the total number of elements of all arrays of all ranks."""
    found = 0
    for rank, own in enumerate(plan.ranks):
        found += sum(message_buffer_elements(own).values())
        for group, numel in block_elements(own).items():
            # two windows, and a buffer for this rank's own partial sums
            found += (3 * len(plan.groups[group][1]) - 1) * numel
        for key in set(array_keys(own).values()):
            found += sum(side or 0 for side in _collective_elements(plan, rank, key))
    return found


def result_elements(plan: JobPlan) -> int | None:
    """Return the number of result elements that all ranks receive in a step; None if blocks pass through windows."""
    found = 0
    for rank, own in enumerate(plan.ranks):
        if any(isinstance(operation, Block) for operation in own):
            return None
        found += sum(one.numel for one in own if isinstance(one, Message) and not one.sends)
        for key, many in Counter(array_keys(own).values()).items():
            before, after = _collective_elements(plan, rank, key)
            found += many * (before if after is None else after)
    return found


def _collective_elements(plan: JobPlan, rank: int, key: ArrayKey) -> tuple[int, int | None]:
    """Return the sizes of a rank's arrays before and after a collective; the latter is None if there is only one."""
    _, group, collective, numel = key
    members = plan.groups[group][1]
    return collective_of(collective).elements(numel, members.index(rank), len(members))


@dataclass(frozen=True)
class PlanLoad:
    """Messages and bytes that are sent in a step."""

    messages: float
    sent_bytes: float


def plan_load(plan: JobPlan, itemsize: int, size_scale: float = 1.0) -> PlanLoad:
    """Estimate the messages and bytes of a plan whose collectives all name an algorithm.

    One member of each group represents the others.

    Args:
        plan: The plan.
        itemsize: Bytes of an element.
        size_scale: Factor by which the plan's arrays will be divided, so that they are sent in fewer pieces. The
            returned bytes are those of the undivided plan.
    """
    known: dict[object, PlanLoad] = {}
    messages, sent = 0.0, 0.0
    for operation in (operation for own in plan.ranks for operation in own):
        if isinstance(operation, GroupCollective):
            key = operation.exchange_key
            if key not in known:
                buildings = plan.locality_of(operation.group)
                known[key] = _member_load(operation, buildings, itemsize, plan.tuning, size_scale)
            messages, sent = messages + known[key].messages, sent + known[key].sent_bytes
        elif isinstance(operation, Message) and operation.sends:
            messages, sent = messages + 1, sent + operation.numel * itemsize
    return PlanLoad(messages, sent)


def _member_load(
    operation: GroupCollective,
    buildings: tuple[int, ...],
    itemsize: int,
    tuning: TuningTable,
    size_scale: float,
) -> PlanLoad:
    size = len(buildings)
    if operation.uneven:
        return PlanLoad(size - 1, sum(map(sum, operation.sent_rows())) * itemsize / size)
    known = collective_of(operation.collective)
    size_bytes = known.part(operation.numel, size) * itemsize
    algorithm = resolve_algorithm(operation, buildings, itemsize, tuning)
    pieces = pieces_for(known, algorithm, round(size_bytes / size_scale), size)
    plan = plan_of(known, algorithm, PlanRequest(size // 2, buildings, 0, pieces))
    steps = [step for stages in plan.channels for stage in stages for strand in stage for step in strand]
    sent = plan.sent(plan.bounds(known.part(operation.numel, size) * known.blocks(size)))
    return PlanLoad(sum(len(step.sends) for step in steps), sum(sent.values()) * itemsize)


def plan_traffic(plan: JobPlan, itemsize: int, dscp: int | None = None) -> Mapping[tuple[int, int], int]:
    """Return the payload bytes per ordered pair of ranks in a step, for one DSCP or for all."""
    found: Counter[tuple[int, int]] = Counter()
    calls: dict[object, tuple[GroupCollective, int]] = {}
    for rank, operations in enumerate(plan.exchanges):
        for operation, count in operations:
            if dscp not in (None, plan.dscp(operation)):
                continue
            if isinstance(operation, GroupCollective):
                if rank == plan.groups[operation.group][1][0]:
                    _, before = calls.get(operation.exchange_key, (operation, 0))
                    calls[operation.exchange_key] = operation, before + count
            elif operation.sends:
                found[rank, operation.peer] += count * operation.numel * itemsize
    for operation, count in calls.values():
        members = plan.groups[operation.group][1]
        buildings = plan.locality_of(operation.group)
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
    """Return the payload bytes per ordered pair of ranks of one collective.

    Args:
        operation: The collective.
        members: Ranks of its group.
        itemsize: Bytes of an element.
        buildings: Locality domain of each member, as used by the algorithm.
        tuning: Table for the algorithm "auto".
    """
    if operation.uneven:
        rows = rows_traffic(operation.sent_rows(), itemsize, operation.algorithm)
        return {(members[here], members[there]): count for (here, there), count in rows.items()}
    algorithm = resolve_algorithm(operation, buildings, itemsize, tuning)
    of_file = is_file_name(operation.collective) or is_file_name(algorithm)
    find = _traffic.__wrapped__ if of_file else _traffic
    found = find(operation.collective, algorithm, operation.numel, itemsize, tuple(buildings))
    return {(members[here], members[there]): count for (here, there), count in found.items()}


def resolve_algorithm(
    operation: GroupCollective, buildings: Sequence[int], itemsize: int, tuning: TuningTable
) -> str:
    """Return the algorithm that an even collective uses; `buildings` are those of its members."""
    if operation.algorithm != AUTO:
        return operation.algorithm
    numel = collective_of(operation.collective).part(operation.numel, len(buildings))
    return tuning.choose(operation.collective, numel * itemsize, buildings)


@lru_cache(4096)  # searches request the same collectives repeatedly
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

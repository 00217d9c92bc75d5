"""How large the arrays are that ranks keep for a plan."""

from __future__ import annotations

from collections.abc import Container

from testbed.comm.collectives import collective_of
from testbed.workload.plan import Block, GroupCollective, JobPlan, Message, RankPlan

ArrayKey = tuple[str, int, str, int]
"""A stream, a group of it, a collective, elements."""


def array_keys(plan: RankPlan, apart: Container[int] = ()) -> dict[int, ArrayKey]:
    """The arrays that a rank's collectives use, by their index in its plan: those with one key share them.

    Operations of a stream come one by one. All-to-alls with uneven rows of one group use those of the largest. apart:
    groups whose collectives share none.
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


def room_elements(plan: RankPlan) -> dict[str, int]:
    """Of the array that a rank's messages of each stream share."""
    rooms: dict[str, int] = {}
    for operation in plan:
        if isinstance(operation, Message) and not isinstance(operation, Block):
            rooms[operation.stream] = max(rooms.get(operation.stream, 0), operation.numel)
    return rooms


def block_elements(plan: RankPlan) -> dict[int, int]:
    """The largest block of each group in whose windows a rank has some."""
    found: dict[int, int] = {}
    for operation in plan:
        if isinstance(operation, Block):
            found[operation.group] = max(found.get(operation.group, 0), operation.numel)
    return found


def plan_elements(plan: JobPlan) -> int:
    """Of all arrays of all ranks."""
    alike: dict[tuple[str, int, int, bool], int] = {}
    found = 0
    for rank, own in enumerate(plan.ranks):
        found += sum(room_elements(own).values())
        for group, numel in block_elements(own).items():
            # two windows, and what is added to partial sums
            found += (3 * len(plan.groups[group][1]) - 1) * numel
        for _, group, collective, numel in set(array_keys(own).values()):
            members = plan.groups[group][1]
            own_rank = members.index(rank)
            key = collective, numel, len(members), own_rank == 0
            if key not in alike:
                sides = collective_of(collective).elements(numel, own_rank, len(members))
                alike[key] = sum(side or 0 for side in sides)
            found += alike[key]
    return found


def result_elements(plan: JobPlan) -> int | None:
    """Return how many elements of results all ranks together get in a step; None where blocks pass through windows."""
    alike: dict[tuple[str, int, int, bool], int] = {}
    found = 0
    for rank, own in enumerate(plan.ranks):
        if any(isinstance(operation, Block) for operation in own):
            return None
        found += sum(one.numel for one in own if isinstance(one, Message) and not one.sends)
        for _, group, collective, numel in array_keys(own).values():
            members = plan.groups[group][1]
            own_rank = members.index(rank)
            key = collective, numel, len(members), own_rank == 0
            if key not in alike:
                before, after = collective_of(collective).elements(numel, own_rank, len(members))
                alike[key] = before if after is None else after
            found += alike[key]
    return found

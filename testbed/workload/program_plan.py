"""A program, which all ranks do alike, as a plan for each: what a model of the step carries out."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.workload.plan import (
    COMPUTE,
    Computing,
    GroupCollective,
    JobPlan,
    Message,
    Operation,
    Pause,
    RankPlan,
)
from testbed.workload.program import (
    Action,
    Collective,
    Compute,
    Exchange,
    WaitAll,
    partners,
    uneven_rows,
)

ALL = 0  # the group of all ranks


def plan_of_program(program: Sequence[Action], buildings: Sequence[int], algorithm: str) -> JobPlan:
    """`program` for ranks in these buildings; algorithm: of collectives that name none."""
    peers = partners(buildings)
    ranks = tuple(
        _rank(program, buildings, peers.get(rank), algorithm, leads=building == min(buildings))
        for rank, building in enumerate(buildings)
    )
    sending = [action for action in program if isinstance(action, Collective | Exchange)]
    dscps = {_kind(action): action.dscp for action in sending if action.dscp}
    return JobPlan(ranks, (("all", tuple(range(len(buildings)))),), dscps=dscps)


def _kind(action: Collective | Exchange) -> str:
    name = action.collective if isinstance(action, Collective) else "exchange"
    return f"{name}, DSCP {action.dscp}" if action.dscp else name


def _rank(
    program: Sequence[Action], buildings: Sequence[int], peer: int | None, algorithm: str, *, leads: bool
) -> RankPlan:
    found: list[Operation] = []
    last: tuple[int, ...] = ()  # what the rank itself has done last
    started: list[int] = []
    for action in program:
        if isinstance(action, Compute):
            found.append(Computing(action.name, COMPUTE, COMPUTE, last, action.duration_s))
            last = (len(found) - 1,)
        elif isinstance(action, Collective):
            stream = f"collective {len(started)}"  # all of them go on side by side
            started.append(len(found))
            found.append(_collective(action, stream, last, len(buildings), algorithm))
        elif isinstance(action, Exchange) and peer is not None:
            for operation in _exchange(action, peer, leads):
                found.append(operation)
                last = (len(found) - 1,)
        elif isinstance(action, WaitAll):
            found.append(Pause("gradients", COMPUTE, "wait", (*last, *started)))
            last = (len(found) - 1,)
    return tuple(found)


def _collective(
    action: Collective, stream: str, last: tuple[int, ...], ranks: int, algorithm: str
) -> GroupCollective:
    algorithm = action.algorithm or algorithm
    table: tuple[tuple[int, ...], ...] = ()
    if action.collective == "all_to_all_v":
        most = action.numel // ranks
        padded = [[most] * ranks] * ranks
        table = tuple(map(tuple, padded if algorithm == "padded" else uneven_rows(ranks, most)))
    return GroupCollective(
        action.name,
        stream,
        _kind(action),
        last,
        ALL,
        action.collective,
        action.numel,
        algorithm,
        table=table,
    )


def _exchange(action: Exchange, peer: int, leads: bool) -> list[Operation]:
    """One after the other, on the rank's own stream."""
    found: list[Operation] = []
    kind = _kind(action)
    for number in range(action.messages):
        there = Message(action.name, COMPUTE, kind, (), peer, action.numel, 2 * number, leads)
        back = Message(action.name, COMPUTE, kind, (), peer, action.numel, 2 * number + 1, not leads)
        between = [] if leads else [Computing(action.name, COMPUTE, COMPUTE, (), action.compute_s)]
        found += [there, *between, back]
    return found

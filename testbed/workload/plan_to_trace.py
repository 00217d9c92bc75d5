"""From every rank's plan to a trace, as if somebody had recorded the job: the inverse of `trace_to_plan`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from testbed.spec.scale import UNSCALED, Scale
from testbed.workload.plan import Computing, GroupCollective, JobPlan, Message, Operation, Pause
from testbed.workload.traces import Collective, Compute, JobTrace, Node, PointToPoint

PAUSE = "pause"
"""Kind of computing that stands for time in which a stream does nothing."""

Durations = Mapping[tuple[int, int], float]
"""Real seconds that computing took, by rank and number in its plan."""


class About(NamedTuple):
    """Of a trace. dtype: of what a plan reduces and moves."""

    dtype: str
    origin: str = ""
    accelerator: str = ""


def trace_of(
    plan: JobPlan, about: About, scale: Scale = UNSCALED, measured_s: Durations | None = None
) -> JobTrace:
    """In real figures of a plan in those of `scale`; a node for each operation, in its place.

    measured_s: how long computing took; by default as the plan says. What has no place in a trace is left out: traffic
    classes, what activations take, jitter, receivers that hold senders.
    """
    names = _names(plan)
    positions = [{member: place for place, member in enumerate(members)} for _, members in plan.groups]
    alike: dict[tuple[Operation, int], Node] = {}

    def node(rank: int, number: int, operation: Operation) -> Node:
        duration_s = (measured_s or {}).get((rank, number))
        own = (
            positions[operation.group][rank]
            if isinstance(operation, GroupCollective) and operation.uneven
            else 0
        )
        if duration_s is not None or (operation, own) not in alike:
            alike[operation, own] = _node(operation, plan, names, own, about.dtype, scale, duration_s)
        return alike[operation, own]

    ranks = tuple(
        tuple(node(rank, number, operation) for number, operation in enumerate(own))
        for rank, own in enumerate(plan.ranks)
    )
    groups = {name: members for name, (_, members) in zip(names, plan.groups, strict=True)}
    return JobTrace(ranks, groups, about.origin, about.accelerator)


def _names(plan: JobPlan) -> list[str]:
    """Of groups, each its own."""
    count = Counter(name for name, _ in plan.groups)
    seen: Counter[str] = Counter()
    found: list[str] = []
    for name, _ in plan.groups:
        own = name if count[name] == 1 else f"{name} {seen[name]}"
        seen[name] += 1
        found.append(own if own not in found else f"{own} #{len(found)}")
    return found


def _node(
    operation: Operation,
    plan: JobPlan,
    names: Sequence[str],
    own: int,
    dtype: str,
    scale: Scale,
    measured_s: float | None,
) -> Node:
    common = (operation.name, operation.stream, operation.after)
    if isinstance(operation, Computing | Pause):
        duration_s = scale.real_s(operation.duration_s) if measured_s is None else measured_s
        kind = operation.kind if isinstance(operation, Computing) else PAUSE
        return Compute(*common, duration_s=duration_s, kind=kind)
    if isinstance(operation, Message):
        numel = _real(operation.numel, scale)
        return PointToPoint(
            *common,
            peer=operation.peer,
            numel=numel,
            dtype=dtype,
            tag=operation.tag,
            sends=operation.sends,
            kind=operation.kind,
        )
    assert isinstance(operation, GroupCollective)
    splits: tuple[int, ...] = ()
    if operation.uneven:
        splits = tuple(_real(count, scale) for count in operation.rows()[own])
    return Collective(
        *common,
        group=names[operation.group],
        collective=operation.collective,
        numel=_real(operation.numel, scale),
        dtype=dtype,
        splits=splits,
        root=plan.groups[operation.group][1][0],
        kind=operation.kind,
        algorithm=operation.algorithm,
    )


def _real(numel: int, scale: Scale) -> int:
    return round(scale.real_bytes(numel))

"""From a scenario's events to what each rank does wrong, or slowly, on purpose."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.spec.errors import ConfigError, Problem
from testbed.spec.events import RANK_LEVEL, EventSpec
from testbed.spec.scale import Scale
from testbed.workload.job.rank_faults import MISMATCH, ORDER, SKIP, RankFault
from testbed.workload.plan import GroupCollective, JobPlan


def rank_faults_of(
    events: Sequence[EventSpec], plan: JobPlan, seed: int, scale: Scale, source: str = "scenario"
) -> tuple[RankFault, ...]:
    """Of all ranks, out of a scenario's events. ConfigError names `source` where a rank has no such collective.

    seed: of the moments that are drawn.
    """
    found: list[RankFault] = []
    for index, event in enumerate(events):
        if event.action not in RANK_LEVEL:
            continue
        place = other = 0
        if event.action in (SKIP, MISMATCH):
            place = _place(event, plan, source, index)
        if event.what == ORDER:
            other = _other(event, plan, place, source, index)
        first_s = event.after_s(seed, index)
        for number in range(event.times):
            found.append(
                RankFault(
                    int(event.target),
                    event.action,
                    event.step or 0,
                    scale.emulated_s(first_s + number * (event.every_s or 0.0)),
                    None if event.for_s is None else scale.emulated_s(event.for_s),
                    event.factor or 1.0,
                    scale.emulated_s(event.delay_s or 0.0),
                    event.what or "",
                    place,
                    other,
                )
            )
    return tuple(found)


def _place(event: EventSpec, plan: JobPlan, source: str, index: int) -> int:
    """Of the collective that an event means, in its rank's plan."""
    own = plan.ranks[int(event.target)]
    names = {
        place: plan.groups[op.group][0] for place, op in enumerate(own) if isinstance(op, GroupCollective)
    }
    if event.group is not None and event.group not in names.values():
        expected = (
            f"a group of rank {event.target}: {', '.join(sorted(set(names.values()))) or 'it has none'}"
        )
        raise ConfigError([Problem(source, None, f"events.{index}.group", repr(event.group), expected)])
    meant = [place for place, name in names.items() if event.group in (None, name)]
    number = event.operation or 1
    if number > len(meant):
        expected = f"one of the {len(meant)} collectives of rank {event.target} in a step"
        raise ConfigError([Problem(source, None, f"events.{index}.operation", str(number), expected)])
    return meant[number - 1]


def _other(event: EventSpec, plan: JobPlan, place: int, source: str, index: int) -> int:
    """The next collective of the same group that is another one, else the last before: or nobody would notice."""
    own = plan.ranks[int(event.target)]
    meant = own[place]
    assert isinstance(meant, GroupCollective)
    others = [
        number
        for number, operation in enumerate(own)
        if isinstance(operation, GroupCollective)
        and operation.group == meant.group
        and operation.alike != meant.alike
    ]
    if not others:
        name = plan.groups[meant.group][0]
        expected = f"size or type: all collectives of rank {event.target} in {name} are alike"
        raise ConfigError([Problem(source, None, f"events.{index}.what", ORDER, expected)])
    return next((number for number in others if number > place), others[-1])

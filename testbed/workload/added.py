"""Algorithms of a plan that somebody added: looked at before anything is built."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.collectives import AUTO
from testbed.collectives.checking import check_if_added
from testbed.workload.plan import GroupCollective, JobPlan


def check_added(plan: JobPlan, algorithms: Sequence[str]) -> None:
    """WrongPlan for an algorithm that does not do what its collective promises in one of the plan's groups.

    algorithms: of collectives that name none. PluginError where one does not load, or raises.
    """
    calls = plan.remembered("calls", lambda: _calls(plan))
    for collective, named, group in sorted(calls):
        for algorithm in [named] if named else algorithms:
            if algorithm != AUTO:
                check_if_added(collective, algorithm, plan.near_of(group))


def _calls(plan: JobPlan) -> set[tuple[str, str, int]]:
    """Which collectives by which algorithms in which groups."""
    return {
        (operation.collective, operation.algorithm, operation.group)
        for own in {id(own): own for own in plan.shared}.values()
        for _, operation in own
        if isinstance(operation, GroupCollective)
    }

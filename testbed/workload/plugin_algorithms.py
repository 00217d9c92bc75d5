"""Algorithms of a plan that somebody added: looked at before anything is built."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.comm.collectives import AUTO
from testbed.comm.collectives.plan_check import check_if_plugin, is_added
from testbed.workload.plan import GroupCollective, JobPlan


def check_added(plan: JobPlan, algorithms: Sequence[str]) -> None:
    """WrongPlan for an algorithm that does not do what its collective promises in one of the plan's groups.

    algorithms: of collectives that name none. PluginError where one does not load, or raises.
    """
    calls = plan.remembered("calls", lambda: _calls(plan))
    for (collective, named), groups in sorted(calls.items()):
        for algorithm in [named] if named else algorithms:
            if algorithm != AUTO and is_added(collective, algorithm):
                for group in sorted(groups):
                    check_if_plugin(collective, algorithm, plan.near_of(group))


def _calls(plan: JobPlan) -> dict[tuple[str, str], set[int]]:
    """Of collectives and their algorithms, the groups."""
    found: dict[tuple[str, str], set[int]] = {}
    for own in plan.exchanged:
        for operation, _ in own:
            if isinstance(operation, GroupCollective):
                found.setdefault((operation.collective, operation.algorithm), set()).add(operation.group)
    return found

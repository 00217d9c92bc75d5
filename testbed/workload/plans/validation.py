"""Checks that a given number of ranks can execute a plan, and that plug-in algorithms are correct."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from testbed.comm.collectives import AUTO
from testbed.comm.collectives.plan_check import check_if_plugin, is_plugin
from testbed.errors import BadInput, TestbedError
from testbed.workload.plan import COMPUTING, EVERYBODY, Computing, GroupCollective, JobPlan, Message
from testbed.workload.plan_volume import group_traffic


class PlanProblem(BadInput, ValueError):
    """The error for a plan that ranks cannot execute; the message names rank and operation."""


def check_plan(plan: JobPlan, ranks: int, itemsize: int) -> None:
    """Check that ranks can execute a plan.

    Every rank needs a plan, every message a sender and a receiver, and all members of a group the same collectives in
    the same order. Computations must be of a kind that results count as compute time.

    Raises:
        PlanProblem: If the plan fails a check.
    """
    if len(plan.ranks) != ranks:
        raise PlanProblem(got=f"plans of {len(plan.ranks)} ranks", expected=f"one for each of {ranks}")
    if not any(plan.ranks):
        raise PlanProblem(got="no operations", expected="at least one")
    for rank, operations in enumerate(plan.ranks):
        for operation in operations:
            if wrong := [index for index in operation.after if not 0 <= index < len(operations)]:
                raise PlanProblem(
                    where=f"rank {rank}, {operation.name}",
                    got=f"after {wrong[0]}",
                    expected=f"an index of the rank's {len(operations)} operations",
                )
            if isinstance(operation, Computing) and operation.kind not in COMPUTING:
                raise PlanProblem(
                    where=f"rank {rank}, {operation.name}",
                    got=f"computing of kind {operation.kind}",
                    expected=f"one of: {', '.join(COMPUTING)}",
                )
    _check_messages(plan, ranks)
    _check_groups(plan, ranks)
    _check_collectives(plan, itemsize)


def _check_messages(plan: JobPlan, ranks: int) -> None:
    ends: dict[bool, Counter[tuple[int, int, int, int]]] = {True: Counter(), False: Counter()}
    for rank, operations in enumerate(plan.ranks):
        for operation in operations:
            if isinstance(operation, Message):
                if operation.peer == rank or not 0 <= operation.peer < ranks:
                    expected = f"another rank from 0 to {ranks - 1}"
                    where = f"rank {rank}, {operation.name}"
                    raise PlanProblem(where=where, got=f"peer {operation.peer}", expected=expected)
                pair = (rank, operation.peer) if operation.sends else (operation.peer, rank)
                key = (*pair, operation.tag, operation.numel)
                ends[operation.sends][key] += 1
    for sends, missing in ((True, ends[True] - ends[False]), (False, ends[False] - ends[True])):
        for source, target, tag, numel in missing:
            raise PlanProblem(
                where=f"rank {source if sends else target}",
                got=f"a {'send' if sends else 'receive'} of {numel} elements, tag {tag}, from {source} to {target}",
                expected=f"a matching {'receive' if sends else 'send'} on rank {target if sends else source}",
            )


def _check_groups(plan: JobPlan, ranks: int) -> None:
    by_name: dict[str, set[int]] = {}
    for number, (name, members) in enumerate(plan.groups):
        where = f"group {number} ({name})"
        if not members or len(set(members)) != len(members) or not set(members) <= set(range(ranks)):
            raise PlanProblem(
                where=where, got=f"members {list(members)}", expected=f"ranks from 0 to {ranks - 1}, once"
            )
        if name == EVERYBODY:
            if members != tuple(range(ranks)):
                raise PlanProblem(
                    where=where, got=f"members {list(members)}", expected="all ranks, or another name"
                )
            continue
        if twice := by_name.setdefault(name, set()) & set(members):
            raise PlanProblem(
                where=where,
                got=f"rank {min(twice)} twice",
                expected="each rank in at most one group of a name",
            )
        by_name[name] |= set(members)


def _check_collectives(plan: JobPlan, itemsize: int) -> None:
    """Check each group: the same collectives in the same order on all members, one DSCP, and known algorithms."""
    done: dict[int, dict[int, list[GroupCollective]]] = {}
    for rank, operations in enumerate(plan.ranks):
        for operation in operations:
            if isinstance(operation, GroupCollective):
                if not 0 <= operation.group < len(plan.groups) or rank not in plan.groups[operation.group][1]:
                    got = f"a collective of group {operation.group}"
                    where = f"rank {rank}, {operation.name}"
                    raise PlanProblem(where=where, got=got, expected="one of a group that the rank is in")
                done.setdefault(operation.group, {}).setdefault(rank, []).append(operation)
    for number, (name, members) in enumerate(plan.groups):
        where = f"group {number} ({name})"
        own = done.get(number, {})
        first = own.get(members[0], [])
        if not first:
            raise PlanProblem(where=where, got="no collective", expected="at least one, or no such group")
        for rank in members:
            if [one.exchange_key for one in own.get(rank, [])] != [one.exchange_key for one in first]:
                got = f"different collectives on rank {rank} and on rank {members[0]}"
                raise PlanProblem(where=where, got=got, expected="the same in the same order on all members")
        if len(dscps := {plan.dscp(one) for one in first}) > 1:
            raise PlanProblem(where=where, got=f"DSCPs {sorted(dscps)}", expected="one DSCP in a group")
        for one in {one.exchange_key: one for one in first}.values():
            _check_algorithm(plan, one, where, itemsize)


def _check_algorithm(plan: JobPlan, one: GroupCollective, where: str, itemsize: int) -> None:
    members = plan.groups[one.group][1]
    try:
        # a collective without an algorithm is an all-reduce, whose algorithms the configuration checks
        named = replace(one, algorithm=one.algorithm or "ring")
        group_traffic(named, members, itemsize, (0,) * len(members), plan.tuning)
    except (KeyError, ValueError, TestbedError) as error:
        got = f"{one.collective} by {one.algorithm}"
        raise PlanProblem(
            where=where, got=got, expected=f"a known collective and algorithm ({error})"
        ) from None


def check_plugin_algorithms(plan: JobPlan, algorithms: Sequence[str]) -> None:
    """Check that plug-in algorithms do what their collectives promise, in all groups of the plan that use them.

    Args:
        plan: The plan.
        algorithms: Algorithms of collectives that do not name one.

    Raises:
        WrongPlan: If an algorithm's result is wrong.
        PluginError: If an algorithm does not load, or raises an exception.
    """
    calls = plan.cached("calls", lambda: _group_calls(plan))
    for (collective, named), groups in sorted(calls.items()):
        for algorithm in [named] if named else algorithms:
            if algorithm != AUTO and is_plugin(collective, algorithm):
                for group in sorted(groups):
                    check_if_plugin(collective, algorithm, plan.locality_of(group))


def _group_calls(plan: JobPlan) -> dict[tuple[str, str], set[int]]:
    """Return the groups that use each pair of collective and algorithm."""
    found: dict[tuple[str, str], set[int]] = {}
    for own in plan.exchanges:
        for operation, _ in own:
            if isinstance(operation, GroupCollective):
                found.setdefault((operation.collective, operation.algorithm), set()).add(operation.group)
    return found

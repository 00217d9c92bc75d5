"""Collectives that name no algorithm, and patterns with one in their place."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.workload.operations import GroupCollective, Operation
from testbed.workload.plan import JobPlan
from testbed.workload.plan_columns import likeness, pattern_columns
from testbed.workload.plan_patterns import Pattern, SymmetricPlans, Using


def gradients(*algorithms: str, numel: int = 1000) -> Pattern:
    """One after the other, each of as many elements."""
    found: list[Operation] = [
        GroupCollective(f"g{number}", "replicate", "replicate", (), 0, "all_reduce", numel, algorithm)
        for number, algorithm in enumerate(algorithms)
    ]
    return Pattern(tuple(found))


def test_an_algorithm_is_put_where_there_is_none() -> None:
    pattern = gradients("", "tree", "")
    using = pattern.using("ring")
    assert [own.algorithm for own in using.operations if isinstance(own, GroupCollective)] == [
        "ring",
        "tree",
        "ring",
    ]
    assert pattern.using("ring") is using
    assert using.using("tree") is using  # none is left
    assert [own.name for own in using.operations] == ["g0", "g1", "g2"]
    assert [(own.algorithm, many) for own, many in using.exchanged if isinstance(own, GroupCollective)] == [
        ("ring", 2),
        ("tree", 1),
    ]


def test_columns_do_not_go_by_the_algorithm() -> None:
    pattern = gradients("", "tree", "")
    assert pattern_columns(pattern.using("ring")) is pattern_columns(pattern)
    plans = [
        JobPlan(SymmetricPlans([pattern.using(own)], [None]), (("all", (0,)),))
        for own in ("ring", "double_tree")
    ]
    assert likeness(plans[0]) != likeness(plans[1])
    named = JobPlan(SymmetricPlans([gradients("ring", "tree", "ring")], [None]), (("all", (0,)),))
    assert likeness(named) == likeness(plans[0])  # however it came by its algorithms


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_what_is_alike_now_is_one(algorithm: str) -> None:
    """Columns of collectives that are told apart by an algorithm alone are others once they have the same."""
    pattern = gradients("", "tree", "")
    using, plain = pattern.using(algorithm), gradients(algorithm, "tree", algorithm)
    assert isinstance(using, Using)
    assert using.tells_as_many_apart is (algorithm != "tree")
    assert using.sorts == plain.sorts
    assert [many for _, many in using.exchanged] == [many for _, many in plain.exchanged]
    columns = pattern_columns(using), pattern_columns(plain)
    assert columns[0] is not None
    assert columns[1] is not None
    for name in columns[0]._fields:
        assert np.array_equal(getattr(columns[0], name), getattr(columns[1], name)), name

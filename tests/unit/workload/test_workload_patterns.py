"""Collectives that name no algorithm, and patterns with one in their place."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.prediction.simulation import plan_key
from testbed.workload.operations import GroupCollective, Operation
from testbed.workload.plan import JobPlan, Pattern, SymmetricPlans
from testbed.workload.plan_columns import pattern_columns


def gradients(*algorithms: str, numel: int = 1000) -> Pattern:
    """One after the other, each of as many elements."""
    found: list[Operation] = [
        GroupCollective(f"g{number}", "replicate", "replicate", (), 0, "all_reduce", numel, algorithm)
        for number, algorithm in enumerate(algorithms)
    ]
    return Pattern(tuple(found))


def test_an_algorithm_is_put_where_there_is_none() -> None:
    pattern = gradients("", "tree", "")
    using = pattern.with_algorithm("ring")
    assert [own.algorithm for own in using.operations if isinstance(own, GroupCollective)] == [
        "ring",
        "tree",
        "ring",
    ]
    assert pattern.with_algorithm("ring") is using
    assert using.with_algorithm("tree") is using  # none is left
    assert [own.name for own in using.operations] == ["g0", "g1", "g2"]
    assert [(own.algorithm, many) for own, many in using.exchanges if isinstance(own, GroupCollective)] == [
        ("ring", 2),
        ("tree", 1),
    ]


def test_columns_do_not_go_by_the_algorithm() -> None:
    pattern = gradients("", "tree", "")
    assert pattern_columns(pattern.with_algorithm("ring")) is pattern_columns(pattern)
    plans = [
        JobPlan(SymmetricPlans([pattern.with_algorithm(own)], [None]), (("all", (0,)),))
        for own in ("ring", "double_tree")
    ]
    assert plan_key(plans[0]) != plan_key(plans[1])
    named = JobPlan(SymmetricPlans([gradients("ring", "tree", "ring")], [None]), (("all", (0,)),))
    assert plan_key(named) == plan_key(plans[0])  # however it came by its algorithms


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_what_is_alike_now_is_one(algorithm: str) -> None:
    """Columns of collectives that are told apart by an algorithm alone are others once they have the same."""
    pattern = gradients("", "tree", "")
    using, plain = pattern.with_algorithm(algorithm), gradients(algorithm, "tree", algorithm)
    assert (using.column_source is pattern) is (algorithm != "tree")
    assert using.shared_kinds == plain.shared_kinds
    assert [many for _, many in using.exchanges] == [many for _, many in plain.exchanges]
    columns = pattern_columns(using), pattern_columns(plain)
    assert columns[0] is not None
    assert columns[1] is not None
    for name in columns[0]._fields:
        assert np.array_equal(getattr(columns[0], name), getattr(columns[1], name)), name

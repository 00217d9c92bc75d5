"""What waits for what of a rank's operations: found once for ranks that do alike, and what follows it alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from testbed.prediction.step_prediction import prepare_step
from testbed.prediction.timeline import peak_activation_bytes
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario
from testbed.workload.dependency_tracker import DependencyOrder, dependency_order, dependency_orders
from testbed.workload.job.job import job_of
from testbed.workload.plan import QUEUE, Computing, Message
from tests.unit.workload.test_workload_rank_symmetry import MORE, SCENARIO, SHAPES, planned


@pytest.mark.parametrize("more", MORE.values(), ids=MORE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_is_found_once_for_ranks_that_do_alike_is_what_each_has(
    shape: tuple[int, ...], more: dict[str, object]
) -> None:
    made = planned(shape, more)
    each = replace(made, ranks=tuple(made.ranks))
    assert dependency_orders(made) == dependency_orders(each)
    assert made.exchanges == each.exchanges
    assert made.with_algorithm("ring") == each.with_algorithm("ring")
    spans = [[(index, index + 2.5) for index in range(len(own))] for own in made.ranks]
    assert peak_activation_bytes(made, spans) == peak_activation_bytes(each, spans)


def test_only_what_waits_for_one_alone_and_is_waited_for_by_it_alone_follows_it() -> None:
    first, second, third = (Computing(name, "compute", "forward") for name in "abc")
    sent = Message("sent", "to 1", "pipeline", (1,), 1, 1, 0, sends=True)
    last = Computing("d", "compute", "forward", (3,))
    assert dependency_order((first, second, third, sent, last)).following == [1, -1, -1, -1, -1]
    queued = tuple(Computing(name, f"{QUEUE} 0", "forward") for name in "ab")
    assert dependency_order(queued).following == [-1, -1]


def _same(order: DependencyOrder) -> DependencyOrder:
    return order


@pytest.mark.parametrize("degree", ["pipeline_parallel", "data_parallel_shard", "tensor_parallel"])
def test_what_follows_at_once_ends_when_it_would_by_itself(degree: str) -> None:
    changes = {"workload.parallelism": {f"{degree}_degree": 2, "data_parallel_replicate_degree": 4}}
    job = job_of(load_scenario(SCENARIO).changed(changes, "a test"), Scale())
    step = prepare_step(job, "ring")
    assert any(after >= 0 for order in dependency_orders(step.plan) for after in order.following)
    by_itself = replace(step.plan, ranks=tuple(step.plan.ranks))
    for pattern, order in zip(by_itself.symmetric.patterns, dependency_orders(step.plan), strict=True):
        alone = order._replace(following=[-1] * len(order.before))
        assert pattern.cached("order", partial(_same, alone)) is alone
    assert replace(step, plan=by_itself).play() == step.play()

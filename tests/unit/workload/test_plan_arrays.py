"""How large ranks' arrays are, and how many messages and bytes a step has, said beside what ranks make and send."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.comm.collectives import COLLECTIVES
from testbed.measure.ranks.collective_buffers import CollectiveArrays
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario
from testbed.workload.job.job import Workload, workload_of
from testbed.workload.plan import COMPUTE, GroupCollective, JobPlan, Message
from testbed.workload.plan_volume import (
    array_keys,
    message_buffer_elements,
    plan_elements,
    plan_load,
    result_elements,
)

SCENARIOS = Path(__file__).parents[3] / "scenarios"


def own(array: CollectiveArrays) -> int:
    """Elements of its memory."""
    return array.input.size + (array.output.size if array.output is not array.input else 0)


@pytest.mark.parametrize("collective", sorted(COLLECTIVES))
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_collectives_arrays_are_as_large_as_they_are_made(collective: str, ranks: int) -> None:
    numel = 6 * ranks * ranks
    operation = GroupCollective("x", COMPUTE, "x", group=0, collective=collective, numel=numel)
    plan = JobPlan(((operation,),) * ranks, (("all", tuple(range(ranks))),))
    made = [CollectiveArrays(collective, numel, "float32", rank, ranks) for rank in range(ranks)]
    uneven = COLLECTIVES.find(collective).uneven
    # of uneven ones the input is as large as there may be rows
    expected = 2 * numel * ranks if uneven else sum(map(own, made))
    assert plan_elements(plan) == expected
    assert result_elements(plan) == sum(array.output.size for array in made)


def test_operations_of_a_stream_share_arrays_and_messages_a_room() -> None:
    a, b = (GroupCollective(name, "one", "x", group=0, numel=8) for name in "ab")
    c = GroupCollective("c", "two", "x", group=0, numel=8)
    small, large = (Message("m", "one", "x", peer=1, numel=numel) for numel in (3, 5))
    ranks = ((a, small, b, c, large),)
    assert array_keys(ranks[0]) == {
        0: ("one", 0, "all_reduce", 8),
        2: ("one", 0, "all_reduce", 8),
        3: ("two", 0, "all_reduce", 8),
    }
    assert message_buffer_elements(ranks[0]) == {"one": 5}
    assert plan_elements(JobPlan(ranks, (("all", (0,)),))) == 8 + 8 + 5


@pytest.fixture(params=["quickstart", "crosspipe", "sharding", "send-tokens"])
def workload(request: pytest.FixtureRequest) -> Workload:
    """Of a scenario's first variant."""
    scenario = load_scenario(SCENARIOS / f"{request.param}.yaml")
    scenario = scenario.variant(scenario.variant_names[0])
    scale = Scale(1000)
    return workload_of(scenario, scenario.topology.resolve(scale), scale)


def test_bytes_of_a_step_are_those_between_its_pairs(workload: Workload) -> None:
    load = plan_load(workload.plan.with_algorithm("ring"), workload.itemsize)
    between = sum(sum(pairs.values()) for pairs in workload.pairs("ring").values())
    assert load.sent_bytes == pytest.approx(between, rel=0.02)
    assert load.messages >= sum(len(pairs) for pairs in workload.pairs("ring").values())

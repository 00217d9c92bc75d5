"""What flows: shares that nobody can better without another's loss, moments however late, and nothing left behind."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.gc_control import gc_disabled
from testbed.prediction.fluid import fair_rates
from testbed.prediction.simulation import simulate
from testbed.prediction.step_prediction import prepare_step
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario
from testbed.workload.job.job import job_of
from testbed.workload.plan import JobPlan, Pause
from tests.unit.prediction.test_model_simulation import BYTES, one_link, recv, send
from tests.unit.workload.test_workload_rank_symmetry import SCENARIO

Steps = tuple[tuple[int, float], ...]
Networks = tuple[list[float], list[Steps]]


@st.composite
def networks(drawn: st.DrawFn) -> Networks:
    """Parts' rates, and paths through some of them."""
    parts = drawn(st.integers(1, 6))
    rates = drawn(st.lists(st.sampled_from([1.0, 3.0, 10.0, 100.0]), min_size=parts, max_size=parts))
    steps = st.dictionaries(st.integers(0, parts - 1), st.sampled_from([0.5, 1.0, 2.0]), min_size=1)
    paths = drawn(st.lists(steps, min_size=1, max_size=8))
    return rates, [tuple(path.items()) for path in paths]


@settings(deadline=None)  # the first one compiles
@given(networks())
def test_every_path_meets_a_full_part_where_none_has_more(network: Networks) -> None:
    """By which Bertsekas and Gallager tell max-min fair rates (Data Networks, section 6.5.2)."""
    rates, paths = network
    got = fair_rates(
        {str(part): rate for part, rate in enumerate(rates)},
        [{str(part): load for part, load in path} for path in paths],
    )
    through = [
        sum(load * rate for path, rate in zip(paths, got, strict=True) for part, load in path if part == own)
        for own in range(len(rates))
    ]
    assert all(carried <= rate * (1 + 1e-6) for carried, rate in zip(through, rates, strict=True))
    for path, rate in zip(paths, got, strict=True):
        full = [part for part, _ in path if through[part] >= rates[part] * (1 - 1e-6)]
        most = [
            max(
                other
                for others, other in zip(paths, got, strict=True)
                if any(own == part for own, _ in others)
            )
            for part in full
        ]
        assert any(rate >= one * (1 - 1e-6) for one in most)


def test_many_messages_share_as_few_do() -> None:
    others = range(1, 30)
    plan = JobPlan(
        (tuple(send(peer, 25) for peer in others), *((recv(0, 25),) for _ in others)),
    )
    timeline = simulate(plan, one_link(len(others) + 1), BYTES)
    assert [end_s for _, end_s in timeline.spans[0]] == pytest.approx([len(others) * 1.0] * len(others))


@pytest.mark.parametrize("late_s", [0.0, 1e3, 1e6, 1e9])
def test_a_message_takes_what_it_takes_however_late(late_s: float) -> None:
    wait = Pause("wait", "wait", "test", (), late_s)
    plan = JobPlan(
        ((wait, send(1, 25, after=(0,)), send(1, 50, 1, after=(0,))), (recv(0, 25), recv(0, 50, 1)))
    )
    timeline = simulate(plan, one_link(2, latency_s=0.5), BYTES)
    assert timeline.spans[1][0][1] - late_s == pytest.approx(1.5, abs=1e-6)
    assert timeline.spans[1][1][1] - late_s == pytest.approx(3.5, abs=1e-6)


@pytest.mark.parametrize("folded", [False, True])
def test_what_was_played_goes_without_a_collector(folded: bool) -> None:
    """A search has it look once in many times, and would else keep some ten thousand objects of each try."""
    degrees = {"data_parallel_shard_degree": 2, "data_parallel_replicate_degree": 4}
    scenario = load_scenario(SCENARIO).changed({"workload.parallelism": degrees}, "a test")
    step = replace(prepare_step(job_of(scenario, Scale()), "ring", packets=0), folded=folded)
    with gc_disabled():
        gc.collect()
        step.play()
        assert gc.collect() == 0

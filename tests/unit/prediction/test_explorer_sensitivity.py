"""What each choice is worth between two configurations: alone, in pairs, on the page."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from testbed.prediction.search import Configuration, Evaluation, Infeasible
from testbed.prediction.search.baselines import choices_of, document, sensitivity
from testbed.show.report.exploration import sensitivity_chart

SHARDS, STAGES = (
    "workload.parallelism.data_parallel_shard_degree",
    "workload.parallelism.pipeline_parallel_degree",
)
FIRST = {SHARDS: 4, STAGES: 1, "workload.schedule.name": "1F1B", "policy": "ecmp", "algorithms": ["ring"]}
BEST = {SHARDS: 1, STAGES: 4, "workload.schedule.name": "ZBH1", "policy": "te", "algorithms": ["ring"]}


def tried(some: Sequence[Configuration]) -> list[Evaluation | Infeasible]:
    """Degrees halve a step, a policy saves a second of ten, and ZBH1 does not go without a pipeline."""
    found: list[Evaluation | Infeasible] = []
    for one in some:
        changes = one.changes
        assert changes[SHARDS] * changes[STAGES] == 4
        step_s = (10.0 if changes[STAGES] == 1 else 5.0) - (changes["policy"] == "te")
        fits = changes["workload.schedule.name"] == "1F1B" or changes[STAGES] > 1
        found.append(Evaluation(step_s, step_s, 0, None) if fits else Infeasible("schedule", "it", "another"))
    return found


def test_degrees_are_one_choice_and_what_is_the_same_is_none() -> None:
    assert choices_of(FIRST, BEST) == {
        "degrees": [SHARDS, STAGES],
        "schedule": ["workload.schedule.name"],
        "policy": ["policy"],
    }


def test_each_choice_and_each_pair_is_taken_over_and_given_back() -> None:
    found = sensitivity(FIRST, BEST, tried)
    assert found is not None
    assert (found.first_s, found.best_s) == (10.0, 4.0)
    assert found.taken == {
        ("degrees", "degrees"): 5.0,
        ("degrees", "schedule"): 5.0,
        ("degrees", "policy"): 4.0,
        ("schedule", "schedule"): None,
        ("schedule", "policy"): None,
        ("policy", "policy"): 9.0,
    }
    assert found.given_back[("degrees", "degrees")] is None
    assert found.given_back[("degrees", "schedule")] == 9.0
    assert found.given_back[("policy", "policy")] == 5.0


def test_between_equals_there_is_nothing_to_tell() -> None:
    assert sensitivity(FIRST, FIRST, tried) is None
    assert document(None) is None


@pytest.mark.parametrize("said", ["+50 %", "+25 %", "policy: 9 s in place of 10 s", "does not fit"])
def test_the_map_says_so(said: str) -> None:
    found = document(sensitivity(FIRST, BEST, tried))
    assert found is not None
    assert said in sensitivity_chart(found, "production")

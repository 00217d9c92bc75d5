"""Tuning tables in scenarios: what is expected, what is predicted and what ranks do go by the same choice."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.comm.collectives import TuningTable
from testbed.comm.collectives.algorithm_selection import Entry
from testbed.documents import from_json, to_json
from testbed.prediction.step_prediction import predict_step
from testbed.spec.errors import ConfigError
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario
from testbed.workload.job.job import job_of, workload_of
from testbed.workload.plan import GroupCollective, JobPlan

QUICKSTART = Path(__file__).parents[3] / "scenarios/quickstart.yaml"
TABLE = TuningTable(
    (Entry("all_reduce", 8, 2, 1_500_000_000, "double_tree"), Entry("all_reduce", 8, 2, None, "ring"))
)
COARSE = Scale(size_scale=1000)


def scenario(tmp_path: Path) -> Scenario:
    TABLE.write(tmp_path / "table.json")
    return load_scenario(QUICKSTART, [f"workload.tuning={tmp_path}/table.json"])


def test_bytes_follow_the_table_bucket_by_bucket(tmp_path: Path) -> None:
    # the first bucket, of the output layer, is large, most others are not; whatever the scale
    tuned = scenario(tmp_path)
    for scale in (Scale(), COARSE):
        workload = workload_of(tuned, tuned.topology.resolve(scale), scale)
        pairs = {name: workload.pairs(name)[0] for name in ("auto", "ring", "double_tree")}
        assert pairs["auto"] not in (pairs["ring"], pairs["double_tree"])
        first = workload.plan.ranks[0][2]
        assert isinstance(first, GroupCollective)
        chosen = workload.plan.tuning.choose(
            "all_reduce", first.numel * workload.itemsize, workload.buildings
        )
        assert chosen == "ring"


def test_the_model_goes_by_the_table(tmp_path: Path) -> None:
    TuningTable((Entry("all_reduce", 8, 2, None, "ring"),)).write(tmp_path / "ring.json")
    step_s: dict[tuple[str, str], float] = {}
    for name, changes in (("rule", []), ("table", [f"workload.tuning={tmp_path}/ring.json"])):
        asked = load_scenario(QUICKSTART, changes)
        job = job_of(asked, Scale(size_scale=4000))
        step_s |= {
            (name, algorithm): predict_step(job, algorithm, packets=0).step_time_s
            for algorithm in ("auto", "ring")
        }
    assert step_s["rule", "auto"] < step_s["rule", "ring"]
    assert step_s["table", "auto"] == step_s["table", "ring"] == step_s["rule", "ring"]


def test_ranks_get_the_table_with_their_plan(tmp_path: Path) -> None:
    tuned = scenario(tmp_path)
    plan = workload_of(tuned, tuned.topology.resolve(COARSE), COARSE).plan
    there = from_json(JobPlan, to_json(plan))
    assert there.tuning == TuningTable(TABLE.entries, 1000)
    assert there == plan


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    tuned = load_scenario(QUICKSTART, [f"workload.tuning={tmp_path}/missing.json"])
    with pytest.raises(ConfigError, match=r"workload\.tuning.*missing\.json"):
        workload_of(tuned, tuned.topology.resolve(), Scale())
    (tmp_path / "missing.json").write_text("{}")
    with pytest.raises(ConfigError, match="expected a tuning table of schema 1"):
        workload_of(tuned, tuned.topology.resolve(), Scale())

"""The job's document and the order of its steps."""

from __future__ import annotations

from testbed.harness.spec import JobSpec, RankPlace, plan_steps
from testbed.workload import AllReduce, Compute, WaitAll


def test_a_job_survives_the_way_to_the_launcher() -> None:
    job = JobSpec(
        token="t",
        ranks=(RankPlace(0, "east1", 0, "10.0.0.1", 17),),
        port=1,
        congestion_control="cubic",
        timeout_s=2.5,
        dtype="float32",
        seed=3,
        program=(Compute("forward", 0.5), AllReduce(0, "head", 9), WaitAll()),
        steps=plan_steps(("ring",), 1, 0, in_turns=True),
        output="/tmp",
    )
    line = job.to_json()
    assert "\n" not in line
    assert JobSpec.from_json(line) == job


def test_variants_take_turns_in_going_first() -> None:
    steps = plan_steps(("ring", "hierarchical"), trials=2, warmup=1, in_turns=True)
    assert [(step.variant, step.trial) for step in steps] == [
        ("hierarchical", -1),
        ("ring", -1),
        ("ring", 0),
        ("hierarchical", 0),
        ("hierarchical", 1),
        ("ring", 1),
    ]


def test_variants_follow_each_other_where_events_happen_in_each() -> None:
    steps = plan_steps(("ring", "hierarchical"), trials=1, warmup=1, in_turns=False)
    assert [(step.variant, step.trial) for step in steps] == [
        ("ring", -1),
        ("ring", 0),
        ("hierarchical", -1),
        ("hierarchical", 0),
    ]

"""What a step's time went to, of any plan: the same record and the same part of the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed.measure.results.result import Result, Training
from testbed.measure.results.summary import StepResult
from testbed.measure.results.training_summary import training_summary
from testbed.prediction.step_prediction import predict_step
from testbed.prediction.timeline import Timeline
from testbed.show.report import write_report
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario
from testbed.workload.job.job import Job, job_of
from tests.unit.show.report_run import SyntheticRun

ROOT = Path(__file__).parents[3]
LATER_S = 100.0  # when the measured step began
SLOWER = 1.25  # than the model says
NAMED = {
    "collectives": [{"collective": "all_reduce", "size": "32 MB"}],
    "compute": "10 ms",
    "exchange": {"size": "4 MB", "messages": 3, "compute": "20 ms"},
}


def job(**changes: Any) -> Job:
    """Of the quickstart, with these keys set."""
    settings = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    return job_of(load_scenario(ROOT / "scenarios/quickstart.yaml", settings), Scale(4000))


def recorded(of: Job, algorithm: str, timeline: Timeline) -> dict[str, Any]:
    """As if ranks had measured a step that takes longer by a quarter than the model says."""
    samples = [
        {
            "step": 7,
            "rank": rank,
            "operation": "anything",
            "index": index,
            "start_s": LATER_S + SLOWER * begun_s,
            "end_s": LATER_S + SLOWER * end_s,
        }
        for rank, own in enumerate(timeline.spans)
        for index, (begun_s, end_s) in enumerate(own)
    ]
    sent: dict[tuple[int, int], int] = {}
    for part in of.workload.pairs(algorithm).values():
        for ends, size in part.items():
            sent[ends] = sent.get(ends, 0) + round(size)
    took_s = SLOWER * timeline.step_time_s
    step = StepResult(7, algorithm, 0, LATER_S, LATER_S + took_s, 0.0, sent, 0, 1)
    return training_summary(of.workload, algorithm, [step], samples, timeline, of.scale)


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical"])
@pytest.mark.parametrize("workload", [None, NAMED])
def test_plain_data_parallelism_and_named_collectives_have_the_record(algorithm: str, workload: Any) -> None:
    of = job(**({} if workload is None else {"workload": workload}))
    timeline = predict_step(of, algorithm, packets=0)
    entry = Training.model_validate(recorded(of, algorithm, timeline))
    assert entry.schedule is None
    assert "peak_activation_bytes" not in entry.document()
    assert entry.predicted is not None
    assert entry.predicted.error == pytest.approx(1 / SLOWER - 1)
    step_s = of.scale.real_s(timeline.step_time_s)
    for split, whole_s in ((entry.predicted, step_s), (entry.measured, SLOWER * step_s)):
        parts_s = split.compute_s + split.bubble_s + sum(part.seconds for part in split.exposed)
        assert parts_s == pytest.approx(whole_s, rel=1e-6)
        assert split.compute_s > 0
    waited = {(part.kind, part.tier): part.seconds for part in entry.measured.exposed}
    assert waited["all_reduce", "wan"] > 0
    assert sum(part.seconds for part in entry.critical_path) == pytest.approx(SLOWER * step_s, rel=1e-6)
    assert entry.median_step == 7
    for tier in entry.bytes.values():
        assert tier.observed == tier.expected > 0


def test_a_scenario_that_the_model_leaves_out_has_what_was_measured() -> None:
    of = job()
    timeline = predict_step(of, "ring", packets=0)
    spans = recorded(of, "ring", timeline)
    assert spans["measured"]["compute_s"] == pytest.approx(SLOWER * spans["predicted"]["compute_s"])
    assert Training.model_validate({**spans, "predicted": None}).predicted is None


@pytest.mark.parametrize("modelled", [True, False])
def test_the_report_divides_the_step_of_a_plain_run(tmp_path: Path, modelled: bool) -> None:
    run = SyntheticRun().write(tmp_path / "run")
    of = job()
    summary = json.loads((run / "summary.json").read_text())
    for variant in summary["variants"]:
        variant["training"] = recorded(of, variant["name"], predict_step(of, variant["name"], packets=0))
        if not modelled:
            variant["training"]["predicted"] = None
    (run / "summary.json").write_text(json.dumps(summary))
    assert Result.open(run).document() == summary
    page = write_report(run).read_text()
    assert page.count("all_reduce, between buildings") == 2
    assert page.count("waiting for others (bubble)") == 2
    assert page.count("Critical path: ") == 2
    assert ("Predicted 1." in page) is modelled
    assert ("No prediction: the model does not cover" in page) is not modelled
    assert "112 GB between buildings (expected 112 GB)" in page  # ring
    assert "64.2 GB between buildings (expected 64.2 GB)" in page  # hierarchical
    assert "microbatches" not in page

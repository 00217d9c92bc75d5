"""The congestion control that the documentation writes, in a prediction over links that lose packets."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from testbed.net.paths.losses import find_control
from testbed.prediction import calibration_run
from testbed.prediction.step_prediction import predict_step
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.workload.job.job import Job, job_of

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def scalable(tmp_path: Path) -> str:
    text = (REPOSITORY / "docs/how-to/plugins/congestion-controls.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "scalable.py").write_text(code)
    return f"{tmp_path}/scalable.py:Scalable"


def job(loss: str, **transport: Any) -> Job:
    document = copy.deepcopy(dict(calibration_run._BASE))
    document |= {"transport": {"timeout": "120 s", **transport}}
    document["topology"]["wan"][0] |= {"loss": loss, "delay": "20 ms"}
    document["workload"] = {"exchange": {"messages": 2, "size": "16 MB"}}
    return job_of(Scenario.model_validate(document), Scale())


def step_s(made: Job) -> float:
    return predict_step(made, made.scenario.algorithms[0], draws=0).step_time_s


def test_the_model_goes_by_ones_own_response_function(scalable: str) -> None:
    assert find_control(scalable).window_packets(0.001, 0.04) == pytest.approx(80)
    own = job("0.1 %", congestion_control="scalable", congestion_models={"scalable": scalable})
    assert own.unmodelled == ()
    assert step_s(own) < step_s(job("0.1 %", congestion_control="reno"))


def test_what_the_model_does_not_know_it_says() -> None:
    words = "transport.congestion_control: vegas on links that lose packets"
    assert job("0.1 %", congestion_control="vegas").unmodelled == (words,)
    assert job("0 %", congestion_control="vegas").unmodelled == ()
    meant = job("0.1 %", congestion_control="vegas", congestion_models={"vegas": "reno"})
    assert meant.unmodelled == ()
    assert step_s(meant) == step_s(job("0.1 %", congestion_control="reno"))


def test_models_are_names_or_files() -> None:
    with pytest.raises(ValueError, match="renoo"):
        job("0 %", congestion_models={"vegas": "renoo"})

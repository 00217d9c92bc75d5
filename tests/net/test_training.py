"""Training steps with plans by the real clock: payloads checked, bytes by the plan, one clear error for a bad one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from testbed.net.fabric.fabric_state import load_all
from tests.net.runs import ROOT, command, run_testbed

pytestmark = pytest.mark.net

SCENARIO = """\
name: stages
topology: {root}/topologies/two-buildings.yaml
ranks: 8
workload:
  stage: {{forward: 20 ms, backward_input: 20 ms, backward_weight: 20 ms, activation: 20 MB, gradients: 400 MB}}
  parallelism: {{pipeline_parallel_degree: 4, data_parallel_replicate_degree: 2, placement: crosspipe}}
  schedule: {{name: {name}, microbatches: 4, receives: {receives}}}
trials: 2
"""


@pytest.mark.parametrize(("name", "receives"), [("1F1B", "in_order"), ("CrossWave", "early")])
def test_stages_over_two_buildings(tmp_path: Path, name: str, receives: str) -> None:
    file = tmp_path / "stages.yaml"
    file.write_text(SCENARIO.format(root=ROOT, name=name, receives=receives))
    done = run_testbed("run", file, "-o", tmp_path / "out", "--json")
    assert done.returncode in (0, 3), done.stderr  # a busy machine may make it untrusted
    (variant,) = json.loads(done.stdout)["variants"]
    rows: dict[str, Any] = {row["name"]: row for row in variant["verdict"]["invariants"]}
    for invariant in ("payload_correct", "wan_bytes_as_computed"):
        assert rows[invariant]["ok"] is True, rows[invariant]
    training = variant["training"]
    for tier in training["bytes"].values():
        assert tier["observed"] == tier["expected"] > 0
    least_s = 4 * 0.06 + 3 * 0.06 * (name == "1F1B")  # four microbatches, and 1F1B's bubble
    assert variant["step_time_s"]["min"] >= least_s
    assert training["measured"]["compute_s"] == pytest.approx(4 * 0.06, rel=0.01)


def test_a_plan_that_does_not_fit_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    file = tmp_path / "stages.yaml"
    text = SCENARIO.format(root=ROOT, name="1F1B", receives="early")
    file.write_text(text.replace("replicate_degree: 2", "replicate_degree: 3"))
    with subprocess.Popen(
        command("run", file, "-o", tmp_path / "out"), stderr=subprocess.PIPE, text=True
    ) as run:
        _, said = run.communicate(timeout=100)
    assert run.returncode == 2
    assert "data_parallel_replicate 3 = 12 accelerators, expected 8: 8 ranks of 1" in said
    assert "starting the controller" not in said
    assert not [state for state in load_all() if state.owner_pid == run.pid]
    assert not (tmp_path / "out").exists()

"""What serving scenarios take, by the model, and on packets: runs under the virtual clock, each kept in a folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.measure.results.result import Result, Variant
from testbed.prediction.calibration import VIRTUAL, find_calibration
from testbed.prediction.step_prediction import predict_variants
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios/inference"


def predicted(scenario: str, setup: str, changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the model says of a setup of a scenario with these changes, as results' `Serving` has it."""
    changed = _changed(scenario, setup, changes, setup)
    (found,) = predict_variants(changed, find_calibration(VIRTUAL), Scale()).values()
    assert found.serving is not None
    return found.serving


def measured(folder: Path, name: str, scenario: str, setup: str, changes: Mapping[str, Any]) -> Variant:
    """A setup of a scenario with these changes, on packets; as the folder has it, where it was run before."""
    folder.mkdir(parents=True, exist_ok=True)
    run = folder / name
    if not (run / "summary.json").exists():
        file = folder / f"{name}.yaml"
        file.write_text(_changed(scenario, setup, changes, name).to_yaml())
        command = [sys.executable, "-m", "testbed", "run", str(file), "--clock", "virtual", "-o", str(run)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = "" if done.returncode == 0 else f"\n{done.stderr[-800:]}"
        print(f"{name}: status {done.returncode}{said}", file=sys.stderr, flush=True)
    (variant,) = Result.open(run).variants
    return variant


def _changed(scenario: str, setup: str, changes: Mapping[str, Any], name: str) -> Scenario:
    loaded = load_scenario(SCENARIOS / scenario)
    return loaded.changed({**(loaded.variants or {})[setup], **changes}, name)

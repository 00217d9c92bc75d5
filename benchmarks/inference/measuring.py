"""Runs of serving scenarios under the virtual clock, each kept in a folder: what was begun is taken up again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.config import load_scenario
from testbed.results.result import Result, Variant

SCENARIOS = Path(__file__).parents[2] / "scenarios/inference"


def measured(folder: Path, name: str, scenario: str, setup: str, changes: Mapping[str, Any]) -> Variant:
    """A setup of a scenario with these changes, on packets; as the folder has it, where it was run before."""
    folder.mkdir(parents=True, exist_ok=True)
    run = folder / name
    if not (run / "summary.json").exists():
        loaded = load_scenario(SCENARIOS / scenario)
        changed = loaded.changed({**(loaded.variants or {})[setup], **changes}, name)
        file = folder / f"{name}.yaml"
        file.write_text(changed.to_yaml())
        command = [sys.executable, "-m", "testbed", "run", str(file), "--clock", "virtual", "-o", str(run)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = "" if done.returncode == 0 else f"\n{done.stderr[-800:]}"
        print(f"{name}: status {done.returncode}{said}", file=sys.stderr, flush=True)
    (variant,) = Result.open(run).variants
    return variant

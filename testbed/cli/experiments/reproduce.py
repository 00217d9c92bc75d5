"""A run done once more from its folder, and held against the first."""

from __future__ import annotations

from pathlib import Path

from testbed.cli.experiments.run import Listener, run
from testbed.measure.execution.run import Request
from testbed.measure.results.manifest import Manifest
from testbed.measure.results.result import Result
from testbed.measure.results.run_directory import default_path
from testbed.show.report.run_comparison import SCENARIO, Comparison, compare_runs
from testbed.spec.scenario import load_scenario


def reproduce(
    folder: Path, output: Path | None, jobs: int | None, listener: Listener
) -> tuple[Comparison, Path]:
    """Again by its clock and scale; how both compare, and the new run's folder. BadResult, and what runs raise."""
    before, manifest = Result.open(folder), Manifest.open(folder)
    scale = [f"scale.{name}={value}" for name, value in before.scale.model_dump().items()]
    file = folder / SCENARIO
    scenario = load_scenario(file, scale)
    target = output if output is not None else default_path(scenario.name)
    real = before.clock == "real"
    request = Request(
        scenario,
        target,
        str(file),
        clock=before.clock,
        jobs=jobs,
        cpu_time="free" if real else manifest.clock.cpu_time,
        link_engine=manifest.link_engine if real else None,
        datapath=manifest.datapath if real else None,
    )
    run(request, listener)
    return compare_runs(folder, target), target

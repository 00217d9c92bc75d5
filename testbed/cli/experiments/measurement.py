"""One of several runs that belong together, in a folder of theirs: run, or taken as it is where it was run before."""

from __future__ import annotations

from pathlib import Path

from testbed.cli.experiments.run import Listener, run
from testbed.measure.execution.run import Request
from testbed.measure.results.result import Result
from testbed.prediction.executors import Engine
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.scenario import Scenario, load_scenario


def measured(
    scenario: Scenario,
    file: Path,
    folder: Path,
    clock: str,
    jobs: int | None,
    listener: Listener,
    engine: Engine | None = None,
) -> Result:
    """Write the scenario into `file` and run it into `folder`; or open what it came to there. engine: as runs take it.

    ConfigError where the folder holds another run, BadResult where it holds none, and all that a run raises.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(scenario.to_yaml())
    if not folder.exists():
        run(Request(load_scenario(file), folder, str(file), clock=clock, jobs=jobs, engine=engine), listener)
    result = Result.open(folder)
    if (folder / "scenario.yaml").read_text() != file.read_text() or result.clock != clock:
        expected = "a folder without one, or the same configurations and clock"
        raise ConfigError([Problem("command line", None, "--confirm", f"another run in {folder}", expected)])
    return result

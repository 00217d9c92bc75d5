"""What a notebook or a script needs: load a scenario, predict its steps, run it, look at what came out.

`import testbed` has all of it: `testbed.load`, `testbed.predict`, `testbed.run`, `testbed.Result`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from testbed.config import ConfigError, Scenario, load_scenario
from testbed.model.calibration import find_calibration
from testbed.model.predictions import Prediction, predict_all
from testbed.report import write_report
from testbed.results.directory import default_path, hand_over
from testbed.results.result import Result
from testbed.running.request import Request, prepare
from testbed.running.run import Progress

__all__ = ["ConfigError", "Prediction", "Result", "Scenario", "load", "predict", "run"]

Source = str | Path | Mapping[str, Any]


def load(source: Source, set: Mapping[str, Any] | None = None) -> Scenario:
    """Read and check a scenario.

    Args:
        source: A scenario file, or the mapping that one would hold; files named in a mapping are found from the
            current folder.
        set: Values to change, by path, as `--set` has them: `{"topology.wan.0.delay": "10 ms", "trials": 3}`.

    Returns:
        The scenario, with every default filled in; `.to_yaml()` shows it.

    Raises:
        ConfigError: With every problem: file, line, field, value, and what was expected.

    Example:
        >>> scenario = testbed.load("scenarios/quickstart.yaml", set={"algorithms": ["ring"]})
    """
    changes = [f"{path}={json.dumps(value)}" for path, value in (set or {}).items()]
    return load_scenario(source if isinstance(source, Mapping) else Path(source), changes)


def predict(scenario: Scenario | Source, clock: str = "virtual") -> dict[str, Prediction]:
    """What the model says that a step takes; nothing is built or sent.

    Args:
        scenario: From `load`, or what `load` takes.
        clock: "virtual" or "real": whose calibration is taken.

    Returns:
        By name of the variant, or of the algorithm where there are none.

    Raises:
        ConfigError: For a scenario that does not fit.

    Example:
        >>> testbed.predict("scenarios/quickstart.yaml")["ring"].step_time_s
    """
    return predict_all(_scenario(scenario), find_calibration(clock))


def run(
    scenario: Scenario | Source,
    *,
    clock: str = "virtual",
    jobs: int | None = None,
    output: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Result:
    """Build the network, run the job on it, measure, judge, and write the run's folder with its report.

    Args:
        scenario: From `load`, or what `load` takes.
        clock: "virtual": exact, without root; "real": this machine's, as root.
        jobs: How many guests at once, under the virtual clock; None: one for each core, if memory allows.
        output: The folder to make; None: `runs/NAME-DATE-TIME`.
        progress: Called with a line whenever there is something to tell; None: nothing is told.

    Returns:
        The figures, with a verdict for each variant; look at `.status` before you believe them.

    Raises:
        ConfigError: For what does not fit, or cannot be run here.
        FileExistsError: Where `output` is there already.
        RunError, FabricError, VirtualClockError: When it could not be brought to its end; nothing is left behind.

    Example:
        >>> result = testbed.run("scenarios/quickstart.yaml")
        >>> {variant.name: variant.step_time_s.median for variant in result.variants}
    """
    file = "scenario" if isinstance(scenario, Scenario | Mapping) else str(scenario)
    scenario = _scenario(scenario)
    tell = progress or (lambda line: None)
    target = Path(output) if output is not None else default_path(scenario.name)
    prepared = prepare(Request(scenario, target, file, clock=clock, jobs=jobs))
    prepared.execute(Progress(tell, lambda done, total: tell(f"step {done + 1} of {total}")))
    write_report(target)
    hand_over(target)
    return Result.open(target)


def _scenario(given: Scenario | Source) -> Scenario:
    return given if isinstance(given, Scenario) else load(given)

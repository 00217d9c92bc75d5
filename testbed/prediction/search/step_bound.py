"""What a step has to compute, recorded or not: a bound on its time."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.prediction.step_flops import step_work
from testbed.spec.scale import UNSCALED
from testbed.spec.scenario import Scenario
from testbed.workload.job.job import workload_of


@dataclass(frozen=True)
class RecordedWork:
    """Of a step that was recorded. source: the file or folder; computing_s: of the rank that computes most."""

    source: str
    computing_s: float


def recorded_work(scenario: Scenario) -> RecordedWork | None:
    """Of a scenario with a trace; None of others. ConfigError."""
    spec = scenario.workload
    if not spec.recorded:
        return None
    workload = workload_of(scenario, scenario.topology.resolve(), UNSCALED)
    return RecordedWork(str(spec.trace or spec.chakra), workload.compute_s)


def least_step_s(scenario: Scenario) -> float | None:
    """Seconds that computing alone takes; None where that is not known. ConfigError."""
    work = step_work(scenario) or recorded_work(scenario)
    return None if work is None else work.computing_s

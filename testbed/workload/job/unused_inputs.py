"""What has no place here of the files by other programs that a scenario's job comes from."""

from __future__ import annotations

from pathlib import Path

from testbed.spec.scenario import Scenario
from testbed.spec.workload import WorkloadSpec
from testbed.workload.job.recorded_trace import recorded_trace
from testbed.workload.schedules import implied_actions


def left_out(scenario: Scenario) -> list[str]:
    """Return in words what of its traces and schedule files is not used, by any variant. TraceError, OSError."""
    own = [scenario] if scenario.variants is None else [scenario.variant(name) for name in scenario.variants]
    return list(dict.fromkeys(what for one in own for what in _of(one.workload)))


def _of(spec: WorkloadSpec) -> list[str]:
    found: list[str] = []
    if spec.recorded:
        found += recorded_trace(spec).left_out
    if spec.schedule is not None and spec.schedule.file is not None:
        file = Path(spec.schedule.file)
        counts = implied_actions(file.read_text("utf-8"))
        if counts:
            kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
            found.append(f"{kinds} of {file.name}: messages and gathers follow from the order of computing")
    return found

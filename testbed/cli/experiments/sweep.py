"""A scenario at all values of one or two of its settings, by the model, then measured; its folder is gone on with."""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from testbed.cli.experiments.confirmation import points_to_confirm
from testbed.cli.experiments.predict import predict
from testbed.cli.experiments.run import Listener, run_or_reopen
from testbed.errors import TestbedError
from testbed.jsonl_log import JsonlLog
from testbed.measure.execution.run import check_here
from testbed.measure.results.committed_work import Work, committed_work
from testbed.measure.results.result import Result, Variant
from testbed.measure.results.run_directory import chown_to_sudo_user, make_folder
from testbed.measure.results.summary import median_interval
from testbed.measure.results.sweep_result import SWEEP, Clock, Measured, Sweep, SweepAxis, SweepPoint
from testbed.prediction.calibration import VIRTUAL, find_calibration
from testbed.prediction.executors import Executor, Processes
from testbed.prediction.step_flops import step_work
from testbed.show.report.sweep import write_sweep
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.overrides import holds_list
from testbed.spec.scenario import Scenario, load_scenario
from testbed.spec.sweep_axes import Axis, Place, places
from testbed.version import VERSION
from testbed.workload.job.recorded_trace import changed_ns

SCENARIO, PREDICTED, RUNS = "scenario.yaml", "predicted.jsonl", "points"
MODEL = "model"
Source = str | Path | Mapping[str, Any]


@dataclass(frozen=True)
class SweepRequest:
    """A sweep that is asked for.

    source, overrides: the scenario, as `load_scenario` takes them. clock: by which points are measured; "model": none.
    confirm: how many of them; None: all. jobs: guests at once.
    """

    source: Source
    overrides: Sequence[str]
    axes: Sequence[Axis]
    folder: Path
    clock: Clock = "model"
    confirm: int | None = None
    jobs: int | None = None
    engine: Executor = field(default_factory=Processes)

    @property
    def file(self) -> str:
        """The scenario's, for messages."""
        return "scenario" if isinstance(self.source, Mapping) else str(self.source)

    @property
    def model_clock(self) -> str:
        """Whose calibration the model takes."""
        return VIRTUAL if self.clock == MODEL else self.clock


def clock_for(asked: Clock, confirm: int | None) -> Clock:
    """By which points are measured: those that are to be confirmed by the exact one, where none is asked for."""
    return "virtual" if asked == MODEL and confirm is not None else asked


Told = Callable[[int, int, str], None]
"""Told how many are done of how many, and which is next."""


@dataclass(frozen=True)
class SweepPlan:
    """A sweep that can begin. scenarios: of each point; in place of one why there is none."""

    request: SweepRequest
    base: Scenario
    scenarios: Mapping[Place, Scenario | ConfigError]

    def by(self, engine: Executor) -> SweepPlan:
        """The same, by these workers."""
        return replace(self, request=replace(self.request, engine=engine))


def plan_sweep(request: SweepRequest) -> SweepPlan:
    """Load every point, and refuse what cannot be: ConfigError, FabricError, VirtualClockError.

    A point that does not fit stays without figures; where none fits that is an error.
    """
    base = load_scenario(request.source, request.overrides)
    data = base.to_data()
    axes = [_listed(axis, data) for axis in request.axes]
    fixed = {path for changes in (base.variants or {}).values() for path in changes}
    for axis in axes:
        if axis.path in fixed:
            expected = "a path that no variant sets, or the scenario without these variants"
            raise ConfigError(
                [Problem("command line", None, axis.path, "a path that variants set", expected)]
            )
    scenarios: dict[Place, Scenario | ConfigError] = {}
    for place in places(axes):
        values = [axis.override(index) for axis, index in zip(axes, place, strict=True)]
        try:
            scenarios[place] = load_scenario(request.source, [*request.overrides, *values])
        except ConfigError as error:
            scenarios[place] = error
    if not any(isinstance(one, Scenario) for one in scenarios.values()):
        raise next(one for one in scenarios.values() if isinstance(one, ConfigError))
    if request.clock != MODEL:
        check_here(base, request.file, request.clock)
    return SweepPlan(request, base, scenarios)


def _listed(axis: Axis, data: Mapping[str, Any]) -> Axis:
    """With lists of one where the scenario has a list: `algorithms=ring,hierarchical`."""
    if not holds_list(axis.path, data):
        return axis
    return replace(axis, values=tuple(one if isinstance(one, list) else [one] for one in axis.values))


def sweep(planned: SweepPlan, told: Told, listener: Listener) -> Sweep:
    """The model at all points, runs at those that are to be measured, and the folder, written also when one fails.

    ConfigError where the folder holds another sweep, and all that a run raises; what was done is not done again.
    """
    request = planned.request
    fresh = not request.folder.exists()
    make_folder(request.folder, there=True)
    _check_folder(planned)
    (request.folder / SCENARIO).write_text(planned.base.to_yaml())
    try:
        points = _predicted(planned, told)
    except BaseException:
        if fresh and not (request.folder / PREDICTED).read_text():
            shutil.rmtree(request.folder)
        raise
    planned = _as_before(planned)
    found = _sweep(planned, points)
    asked = _asked(planned, found)
    try:
        for place, result, folder in _measured_points(planned, found, asked, told, listener):
            points[place] = _with_run(points[place], result, str(folder.relative_to(found.folder)))
    finally:
        found = _sweep(planned, points)
        _write(found)
    return found


def _measured_points(
    planned: SweepPlan, found: Sweep, asked: Sequence[Place], told: Told, listener: Listener
) -> Iterator[tuple[Place, Result, Path]]:
    """Run those that are not there, as many at once as the engine's workers can carry; each as it comes."""
    request = planned.request

    def measure(place: Place) -> tuple[Place, Result, Path]:
        scenario = planned.scenarios[place]
        assert isinstance(scenario, Scenario)
        folder = _run_folder(found, place)
        file = folder.with_name(f"{folder.name}.yaml")
        engine, jobs = request.engine, request.jobs
        return place, run_or_reopen(scenario, file, folder, request.clock, jobs, listener, engine), folder

    at_once = request.engine.at_once
    if at_once == 1:
        for number, place in enumerate(asked):
            told(number, len(asked), _words(found, place))
            yield measure(place)
        return
    with ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(measure, place) for place in asked]
        try:
            for number, future in enumerate(as_completed(futures)):
                told(number, len(asked), _words(found, future.result()[0]))
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            request.engine.stop()  # whoever waits for workers hears of it
            raise


def _as_before(planned: SweepPlan) -> SweepPlan:
    """By the model only, and measured before: what was measured stays."""
    request = planned.request
    if request.clock != MODEL or not (request.folder / SWEEP).exists():
        return planned
    before = Sweep.open(request.folder).clock
    return replace(planned, request=replace(request, clock=before, confirm=0))


def _asked(planned: SweepPlan, found: Sweep) -> list[Place]:
    """What is to be measured, and what was."""
    request = planned.request
    if request.clock == MODEL:
        return []
    count = len(found.points) if request.confirm is None else request.confirm
    wanted = points_to_confirm(found.axes, found.points, count)
    there = [point.at for point in found.points if point.figures and _run_folder(found, point.at).exists()]
    return sorted({*wanted, *there})


def _check_folder(planned: SweepPlan) -> None:
    folder = planned.request.folder
    file, lines = folder / SCENARIO, folder / PREDICTED
    other = file.exists() and file.read_text() != planned.base.to_yaml()
    if not other and lines.exists():
        other = changed_ns(planned.base.workload) > lines.stat().st_mtime_ns
    if other or (not file.exists() and any(folder.iterdir())):
        found = f"{folder}, which holds something else: another scenario, other --set or --trials"
        raise ConfigError([Problem("command line", None, "--output", found, "another folder")])


def _predicted(planned: SweepPlan, told: Told) -> dict[Place, SweepPoint]:
    """By the model; what the folder has of the same scenarios and calibration is not asked again."""
    request = planned.request
    made = find_calibration(request.model_clock).words
    points = {
        place: SweepPoint(at=place, misfit=str(one))
        for place, one in planned.scenarios.items()
        if isinstance(one, ConfigError)
    }
    scenarios = {place: one for place, one in planned.scenarios.items() if isinstance(one, Scenario)}
    keys = {place: _key(one, made) for place, one in scenarios.items()}
    with JsonlLog(request.folder / PREDICTED) as lines:
        known = {entry["key"]: entry["point"] for entry in lines.known}
        new = [place for place, key in keys.items() if key not in known]
        told(0, len(new), "")
        with request.engine.workers(predicted_point, request.model_clock) as workers:
            for number, (place, entry) in enumerate(
                zip(new, workers.map([scenarios[place] for place in new]), strict=True), start=1
            ):
                known[keys[place]] = entry
                lines.add({"key": keys[place], "point": entry})
                told(number, len(new), "")
    for place, key in keys.items():
        points[place] = SweepPoint(at=place, **known[key])
    return {place: points[place] for place in planned.scenarios}


def _key(scenario: Scenario, made: str) -> str:
    return hashlib.sha256(f"{VERSION}\n{made}\n{scenario.to_yaml()}".encode()).hexdigest()[:24]


def predicted_point(clock: str, scenario: Scenario) -> dict[str, Any]:
    """What the model says of all that a scenario compares, as `SweepPoint` has it. Done by an engine's workers."""
    try:
        found = predict(scenario, clock).variants
    except TestbedError as error:  # it does not fit, or its step does not end
        return {"misfit": str(error)}
    figures = [
        {
            "variant": name,
            "predicted_s": entry.step_time_s,
            "wan_bytes": entry.wan_bytes,
            "work": _whole_step(scenario.variant(name), entry.step_time_s).document(),
            "unmodelled": list(entry.unmodelled),
        }
        for name, entry in found.items()
    ]
    return {"figures": figures}


def _whole_step(variant: Scenario, step_time_s: float) -> Work:
    return committed_work(variant, step_work(variant), [step_time_s], [])


def _sweep(planned: SweepPlan, points: Mapping[Place, SweepPoint]) -> Sweep:
    request = planned.request
    made = {
        "testbed": VERSION,
        "calibration": find_calibration(request.model_clock).words,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    found = Sweep(
        scenario=planned.base.name,
        axes=tuple(map(SweepAxis.of, request.axes)),
        points=tuple(points.values()),
        clock=request.clock,
        made=made,
    )
    return found.at(request.folder)


def _write(found: Sweep) -> None:
    found.write()
    write_sweep(found)
    chown_to_sudo_user(found.folder)


def _with_run(point: SweepPoint, result: Result, folder: str) -> SweepPoint:
    variants = {variant.name: variant for variant in result.variants}
    figures = tuple(
        figure.model_copy(update={"measured": _measured(variants[figure.variant])})
        for figure in point.figures
    )
    return point.model_copy(update={"figures": figures, "run": folder})


def _measured(variant: Variant) -> Measured:
    low_s, high_s, confidence = median_interval(variant.step_time_s.samples)
    return Measured(
        median_s=variant.step_time_s.median,
        low_s=low_s,
        high_s=high_s,
        confidence=confidence,
        trials=variant.step_time_s.n,
        status=variant.verdict.status,
        limited_by=variant.limited_by,
        work=variant.work,
    )


def _words(found: Sweep, place: Place) -> str:
    return ", ".join(
        f"{axis.label} {axis.texts[index]}" for axis, index in zip(found.axes, place, strict=True)
    )


def _run_folder(found: Sweep, place: Place) -> Path:
    """Of a point's run: `points/delay-5-ms_policy-ecmp`."""
    parts = (
        f"{axis.path.split('.')[-1]}-{axis.texts[index]}"
        for axis, index in zip(found.axes, place, strict=True)
    )
    return found.folder / RUNS / "_".join(re.sub(r"[^A-Za-z0-9.+-]+", "-", part).strip("-") for part in parts)

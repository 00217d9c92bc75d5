"""Sweeps: a scenario at all values of one or two settings, predicted, then measured, in a resumable folder."""

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
from testbed.cli.experiments.run import predict, run_or_reopen
from testbed.errors import TestbedError
from testbed.jsonl_log import JsonlLog
from testbed.measure.execution.progress import Progress
from testbed.measure.execution.run import check_here
from testbed.measure.results.committed_work import committed_work
from testbed.measure.results.result import Result, Variant
from testbed.measure.results.run_directory import chown_to_sudo_user, make_folder
from testbed.measure.results.summary import median_interval
from testbed.measure.results.sweep_result import SWEEP, Clock, Measured, Sweep, SweepAxis, SweepPoint
from testbed.prediction.calibration import VIRTUAL, find_calibration
from testbed.prediction.executors import Executor, Processes
from testbed.prediction.step_flops import step_work
from testbed.show.report.sweep import write_sweep
from testbed.spec.errors import ConfigError, option_error
from testbed.spec.overrides import holds_list
from testbed.spec.scenario import Scenario, load_scenario
from testbed.spec.sweep_axes import Axis, GridPoint, grid_points
from testbed.version import VERSION
from testbed.workload.job.kinds.trace import changed_ns

SCENARIO, PREDICTED, RUNS = "scenario.yaml", "predicted.jsonl", "points"
MODEL = "model"
Source = str | Path | Mapping[str, Any]


@dataclass(frozen=True)
class SweepRequest:
    """A requested sweep.

    Attributes:
        source, overrides: The scenario, as accepted by `load_scenario`.
        axes: The axes.
        folder: Folder of the sweep; an existing one is resumed.
        clock: Clock for measuring points; "model" to only predict them.
        confirm: Number of points to measure; None for all.
        jobs: Number of guests to run at once.
        engine: Executor of predictions and runs.
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
        """The name of the scenario's file, for messages."""
        return "scenario" if isinstance(self.source, Mapping) else str(self.source)

    @property
    def model_clock(self) -> str:
        """The clock whose calibration the model uses."""
        return VIRTUAL if self.clock == MODEL else self.clock


def measuring_clock(asked: Clock, confirm: int | None) -> Clock:
    """Return the clock for measuring points: the virtual clock if only `confirm` requests measurements."""
    return "virtual" if asked == MODEL and confirm is not None else asked


PointProgress = Callable[[int, int, str], None]
"""Called with the number of points done, their total, and a description of the next."""


@dataclass(frozen=True)
class SweepPlan:
    """A checked sweep; `scenarios` has the scenario of each point, or the reason why it is invalid."""

    request: SweepRequest
    base: Scenario
    scenarios: Mapping[GridPoint, Scenario | ConfigError]

    def with_engine(self, engine: Executor) -> SweepPlan:
        """Return the same sweep with another executor."""
        return replace(self, request=replace(self.request, engine=engine))


def plan_sweep(request: SweepRequest) -> SweepPlan:
    """Load every point, and check that the sweep is possible.

    Invalid points remain without results, but one must be valid.

    Raises:
        ConfigError, FabricError, VirtualClockError: If the sweep is impossible.
    """
    base = load_scenario(request.source, request.overrides)
    data = base.to_data()
    axes = [_wrap_lists(axis, data) for axis in request.axes]
    fixed = {path for changes in (base.variants or {}).values() for path in changes}
    for axis in axes:
        if axis.path in fixed:
            expected = "a path that no variant sets, or the scenario without these variants"
            raise option_error(axis.path, "a path that variants set", expected)
    scenarios: dict[GridPoint, Scenario | ConfigError] = {}
    for place in grid_points(axes):
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


def _wrap_lists(axis: Axis, data: Mapping[str, Any]) -> Axis:
    """Wrap values in lists if the scenario's field is a list, as in `algorithms=ring,hierarchical`."""
    if not holds_list(axis.path, data):
        return axis
    return replace(axis, values=tuple(one if isinstance(one, list) else [one] for one in axis.values))


def sweep(planned: SweepPlan, progress: PointProgress, listener: Progress) -> Sweep:
    """Predict all points, measure the requested ones, and write the folder, even after an error.

    Finished points are not repeated.

    Args:
        planned: The checked sweep.
        progress: Called before each point.
        listener: Receives the progress of runs.

    Raises:
        ConfigError: If the folder has another sweep; all errors of a run are also possible.
    """
    request = planned.request
    fresh = not request.folder.exists()
    make_folder(request.folder, there=True)
    _check_folder(planned)
    (request.folder / SCENARIO).write_text(planned.base.to_yaml())
    try:
        points = _predict_points(planned, progress)
    except BaseException:
        if fresh and not (request.folder / PREDICTED).read_text():
            shutil.rmtree(request.folder)
        raise
    planned = _keep_measurements(planned)
    found = _sweep(planned, points)
    asked = _points_to_measure(planned, found)
    try:
        for place, result, folder in _measured_points(planned, found, asked, progress, listener):
            points[place] = _with_run(points[place], result, str(folder.relative_to(found.folder)))
    finally:
        found = _sweep(planned, points)
        _write(found)
    return found


def _measured_points(
    planned: SweepPlan, found: Sweep, asked: Sequence[GridPoint], progress: PointProgress, listener: Progress
) -> Iterator[tuple[GridPoint, Result, Path]]:
    """Run or reopen the requested points, as many at once as the executor can; yield each when it is done."""
    request = planned.request

    def measure(place: GridPoint) -> tuple[GridPoint, Result, Path]:
        scenario = planned.scenarios[place]
        assert isinstance(scenario, Scenario)
        folder = _run_folder(found, place)
        file = folder.with_name(f"{folder.name}.yaml")
        engine, jobs = request.engine, request.jobs
        return place, run_or_reopen(scenario, file, folder, request.clock, jobs, listener, engine), folder

    at_once = request.engine.at_once
    if at_once == 1:
        for number, place in enumerate(asked):
            progress(number, len(asked), _describe_point(found, place))
            yield measure(place)
        return
    with ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(measure, place) for place in asked]
        try:
            for number, future in enumerate(as_completed(futures)):
                progress(number, len(asked), _describe_point(found, future.result()[0]))
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            request.engine.stop()  # wakes threads that wait for workers
            raise


def _keep_measurements(planned: SweepPlan) -> SweepPlan:
    """Keep earlier measurements in the folder if only predictions are requested now."""
    request = planned.request
    if request.clock != MODEL or not (request.folder / SWEEP).exists():
        return planned
    before = Sweep.open(request.folder).clock
    return replace(planned, request=replace(request, clock=before, confirm=0))


def _points_to_measure(planned: SweepPlan, found: Sweep) -> list[GridPoint]:
    """Return the points to measure, and those already measured."""
    request = planned.request
    if request.clock == MODEL:
        return []
    count = len(found.points) if request.confirm is None else request.confirm
    wanted = points_to_confirm(found.axes, found.points, count)
    done = [point.at for point in found.points if point.figures and _run_folder(found, point.at).exists()]
    return sorted({*wanted, *done})


def _check_folder(planned: SweepPlan) -> None:
    folder = planned.request.folder
    file, lines = folder / SCENARIO, folder / PREDICTED
    other = file.exists() and file.read_text() != planned.base.to_yaml()
    if not other and lines.exists():
        other = changed_ns(planned.base.workload) > lines.stat().st_mtime_ns
    if other or (not file.exists() and any(folder.iterdir())):
        found = f"{folder}, which holds something else: another scenario, --set or --trials"
        raise option_error("--output", found, "another folder")


def _predict_points(planned: SweepPlan, progress: PointProgress) -> dict[GridPoint, SweepPoint]:
    """Predict all points, except those in the folder with the same scenario and calibration."""
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
        progress(0, len(new), "")
        with request.engine.workers(predicted_point, request.model_clock) as workers:
            for number, (place, entry) in enumerate(
                zip(new, workers.map([scenarios[place] for place in new]), strict=True), start=1
            ):
                known[keys[place]] = entry
                lines.add({"key": keys[place], "point": entry})
                progress(number, len(new), "")
    for place, key in keys.items():
        points[place] = SweepPoint(at=place, **known[key])
    return {place: points[place] for place in planned.scenarios}


def _key(scenario: Scenario, made: str) -> str:
    return hashlib.sha256(f"{VERSION}\n{made}\n{scenario.to_yaml()}".encode()).hexdigest()[:24]


def predicted_point(clock: str, scenario: Scenario) -> dict[str, Any]:
    """Predict all variants of a scenario in the form of `SweepPoint`; this runs in an executor's workers."""
    try:
        found = predict(scenario, clock).variants
    except TestbedError as error:  # the scenario is invalid, or its step does not end
        return {"misfit": str(error)}
    figures = []
    for name, entry in found.items():
        variant = scenario.variant(name)
        work = committed_work(variant, step_work(variant), [entry.step_time_s], []).document()
        figures.append(
            {
                "variant": name,
                "predicted_s": entry.step_time_s,
                "wan_bytes": entry.wan_bytes,
                "work": work,
                "unmodelled": list(entry.unmodelled),
            }
        )
    return {"figures": figures}


def _sweep(planned: SweepPlan, points: Mapping[GridPoint, SweepPoint]) -> Sweep:
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


def _describe_point(found: Sweep, place: GridPoint) -> str:
    return ", ".join(
        f"{axis.label} {axis.texts[index]}" for axis, index in zip(found.axes, place, strict=True)
    )


def _run_folder(found: Sweep, place: GridPoint) -> Path:
    """Return the folder of a point's run, such as `points/delay-5-ms_policy-ecmp`."""
    parts = (
        f"{axis.path.split('.')[-1]}-{axis.texts[index]}"
        for axis, index in zip(found.axes, place, strict=True)
    )
    return found.folder / RUNS / "_".join(re.sub(r"[^A-Za-z0-9.+-]+", "-", part).strip("-") for part in parts)

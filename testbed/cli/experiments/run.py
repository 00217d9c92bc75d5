"""Runs with their reports, repeated if necessary; predictions; calibration of the step model."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from testbed.comm.transport.rdma.devices import import_pyverbs
from testbed.measure.execution.identity import worker_identity
from testbed.measure.execution.network_setup import choose_virtual_scale
from testbed.measure.execution.progress import Progress
from testbed.measure.execution.run import Request, prepare
from testbed.measure.results.manifest import Manifest
from testbed.measure.results.result import Result, Variant
from testbed.measure.results.run_directory import chown_to_sudo_user, default_path, make_folder
from testbed.net.errors import NoKernelError
from testbed.net.virtual.kernel_image import find_image
from testbed.prediction.calibration import (
    LINK_ENGINE,
    VIRTUAL,
    Calibration,
    find_calibration,
    write_calibration,
)
from testbed.prediction.calibration_run import Fit, MeasuredProbe, fit, probe_scenario
from testbed.prediction.dry_run import workloads_of
from testbed.prediction.executors import Executor, Processes
from testbed.prediction.executors.dask_cluster import cluster
from testbed.prediction.step_prediction import MAX_PACKETS, Predictions, predict_variants
from testbed.show.report import write_report
from testbed.show.report.run_comparison import SCENARIO, Comparison, compare_runs
from testbed.spec.errors import option_error
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario
from testbed.workload.job.errors import RunError


def run(
    request: Request, listener: Progress, *, strict: bool = False, most_dilation: float | None = None
) -> Result:
    """Check, build, measure, validate, and write the folder and its report; the results may be untrusted.

    Args:
        request: The scenario to run, and its options.
        listener: Receives progress.
        strict: Whether to write no report if the results are untrusted.
        most_dilation: Limit up to which an untrusted run is repeated with doubled time dilation.

    Raises:
        ConfigError: If the scenario cannot be run here.
        RunExists, RunError, FabricError, VirtualClockError: If the run fails.
    """
    if most_dilation and request.clock == "virtual":
        raise option_error("--retry-dilated", "--clock virtual", "--clock real")
    prepared = prepare(request)
    listener.begins(prepared, ())
    result = prepared.execute(listener)
    while (
        result.status == "untrusted" and most_dilation and prepared.scale.time_dilation * 2 <= most_dilation
    ):
        prepared = prepared.slower()
        listener.begins(prepared, failed_invariants(result))
        shutil.rmtree(request.output)
        result = prepared.execute(listener)
    if not (strict and result.status == "untrusted"):
        write_report(request.output)
    chown_to_sudo_user(request.output)
    return result


def failed_invariants(result: Result) -> list[str]:
    """Return the names of invariants that failed in any variant."""
    return sorted({entry.name for variant in result.variants for entry in variant.verdict.failed})


def run_or_reopen(
    scenario: Scenario,
    file: Path,
    folder: Path,
    clock: str,
    jobs: int | None,
    listener: Progress,
    engine: Executor | None = None,
) -> Result:
    """Write a scenario into `file` and run it into `folder`, or open the existing run.

    Raises:
        ConfigError: If the folder has another run.
        BadResult: If the folder has no run; all errors of a run are also possible.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(scenario.to_yaml())
    if not folder.exists():
        run(Request(load_scenario(file), folder, str(file), clock=clock, jobs=jobs, engine=engine), listener)
    result = Result.open(folder)
    if (folder / "scenario.yaml").read_text() != file.read_text() or result.clock != clock:
        expected = "a folder without one, or the same configurations and clock"
        raise option_error("--confirm", f"another run in {folder}", expected)
    return result


def reproduce(
    folder: Path, output: Path | None, jobs: int | None, listener: Progress
) -> tuple[Comparison, Path]:
    """Repeat a run with its clock and scale; return the comparison and the new run's folder.

    BadResult and all errors of a run can be raised.
    """
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


PROCESSES, DASK = "processes", "dask"
ENGINES = (PROCESSES, DASK)


@contextlib.contextmanager
def open_executor(name: str, scheduler: str | None, jobs: int | None) -> Iterator[Executor]:
    """Open an executor for the block; `jobs` is the number of processes, None for one per core.

    ConfigError or ExecutorError is raised on failure.
    """
    if name not in ENGINES:
        raise option_error("--engine", name, " or ".join(ENGINES))
    if scheduler is not None and name != DASK:
        raise option_error("--scheduler", f"--engine {name}", "--engine dask")
    count = jobs or len(os.sched_getaffinity(0))
    if name == PROCESSES:
        yield Processes(count)
        return
    with cluster(scheduler, count, worker_identity) as found:
        yield found


@dataclass(frozen=True)
class Predicted:
    """Predictions by variant, or by algorithm if there are no variants; their calibration and scale."""

    variants: Predictions
    calibration: Calibration
    scale: Scale


def predict(scenario: Scenario, clock: str, packets: int = MAX_PACKETS) -> Predicted:
    """Predict a scenario's step times; nothing is built or sent.

    On the real clock, an auto scale counts as 1.

    Args:
        scenario: The scenario.
        clock: Clock whose calibration is used, "virtual" or "real".
        packets: Maximum number of packets to simulate individually.

    Raises:
        ConfigError, ControllerError, Deadlock: If the scenario is invalid, or its step does not end.
    """
    calibration = find_calibration(clock)
    if clock == VIRTUAL:
        rank_bytes = 0.0
        # only an auto scale depends on plans, which are expensive
        if scenario.scale.size_scale == "auto":
            rank_bytes = max(workload.rank_bytes for workload in workloads_of(scenario, Scale()).values())
        scale = choose_virtual_scale(scenario, rank_bytes)
    else:
        size, dilation = scenario.scale.size_scale, scenario.scale.time_dilation
        scale = Scale(*(1.0 if isinstance(one, str) else one for one in (size, dilation)))
    return Predicted(predict_variants(scenario, calibration, scale, packets), calibration, scale)


PROBES, PROBE_RUN = "calibration.yaml", "run"


@dataclass(frozen=True)
class Calibrated:
    """A calibration: the run of its probes, the fit, and the file that stores it."""

    result: Result
    fit: Fit
    kept: Path


def calibrate(
    clock: str, folder: Path, jobs: int | None, keep: Path | None, listener: Progress
) -> Calibrated:
    """Run the probes in a new folder, fit the model, and store the result.

    Args:
        clock: Clock to calibrate for, "virtual" or "real".
        folder: Folder to create.
        jobs: Number of guests to run at once; None for one per core, as memory allows.
        keep: File for the result; None for the file where runs look for it.
        listener: Receives the progress.

    Raises:
        RunError: If too few results are trusted; all errors of a run are also possible. A folder with a run in it is
            kept.
    """
    make_folder(folder)
    try:
        scenario = probe_scenario(cards=clock == VIRTUAL and _has_rdma_cards())
        file = folder / PROBES
        file.write_text(scenario.to_yaml())
        result = run(Request(scenario, folder / PROBE_RUN, str(file), clock=clock, jobs=jobs), listener)
        try:
            found = fit(
                scenario, measured_probes(result), result.conversion, clock, _provenance(folder / PROBE_RUN)
            )
        except ValueError as error:
            raise RunError(str(error)) from None
        kept = write_calibration(clock, found.calibration, keep)
    except BaseException:
        if not (folder / PROBE_RUN).exists():
            shutil.rmtree(folder)
        raise
    chown_to_sudo_user(folder)
    return Calibrated(result, found, kept)


def _has_rdma_cards() -> bool:
    """Return whether hosts under the virtual clock can have RDMA NICs on this machine."""
    try:
        import_pyverbs("device")
        return "soft-RoCE" in find_image().checked
    except (ImportError, NoKernelError):  # the run reports a missing kernel
        return False


def measured_probes(result: Result) -> list[MeasuredProbe]:
    """Return the measured time of each probe; untrusted ones are marked, since they must not be used in the fit."""
    return [
        MeasuredProbe(
            variant.name,
            variant.step_time_s.median,
            variant.verdict.status != "untrusted",
            _retransmissions(variant),
        )
        for variant in result.variants
    ]


def _retransmissions(variant: Variant) -> int:
    """Return the number of retransmitted packets, or the number of go-backs of RDMA NICs."""
    return sum(one.retransmits if one.went_back is None else one.went_back for one in variant.connections)


def _provenance(folder: Path) -> dict[str, str]:
    """Return the version, kernel, link engine and date of a run."""
    manifest = Manifest.open(folder)
    return {
        "testbed": manifest.testbed_version,
        "kernel": manifest.clock.kernel or manifest.host.kernel,
        LINK_ENGINE: manifest.link_engine,
        "created": manifest.created,
    }

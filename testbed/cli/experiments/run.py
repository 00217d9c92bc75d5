"""A run with its report: check, execute, repeat if allowed and necessary, write, hand over to the user."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.measure.execution.identity import worker_identity
from testbed.measure.execution.progress import Progress
from testbed.measure.execution.run import PreparedRun, Request, prepare
from testbed.measure.results.manifest import Manifest
from testbed.measure.results.result import Result
from testbed.measure.results.run_directory import chown_to_sudo_user, default_path
from testbed.prediction.executors import Executor, Processes
from testbed.prediction.executors.dask_cluster import cluster
from testbed.show.report import write_report
from testbed.show.report.run_comparison import SCENARIO, Comparison, compare_runs
from testbed.spec.errors import option_error
from testbed.spec.scenario import Scenario, load_scenario


@dataclass(frozen=True)
class Listener:
    """Receives progress. `begins` is called before each attempt, with the failed invariants of the previous one."""

    progress: Progress
    begins: Callable[[PreparedRun, Sequence[str]], None] = lambda prepared, reasons: None


def run(
    request: Request, listener: Listener, *, strict: bool = False, most_dilation: float | None = None
) -> Result:
    """Check, build, measure, validate, and write the folder and its report. The results may be untrusted.

    Args:
        request: What to run, and how.
        listener: Receives progress.
        strict: Write no report if the results are untrusted.
        most_dilation: Repeat an untrusted run with doubled time dilation, up to this value.

    Raises:
        ConfigError: The scenario cannot be run here.
        RunExists, RunError, FabricError, VirtualClockError: The run failed.
    """
    if most_dilation and request.clock == "virtual":
        raise option_error("--retry-dilated", "--clock virtual", "--clock real")
    prepared = prepare(request)
    listener.begins(prepared, ())
    result = prepared.execute(listener.progress)
    while (
        result.status == "untrusted" and most_dilation and prepared.scale.time_dilation * 2 <= most_dilation
    ):
        prepared = prepared.slower()
        listener.begins(prepared, failed_invariants(result))
        shutil.rmtree(request.output)
        result = prepared.execute(listener.progress)
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
    listener: Listener,
    engine: Executor | None = None,
) -> Result:
    """Write a scenario into `file` and run it into `folder`, or open the run that is there.

    Raises:
        ConfigError: the folder holds another run.
        BadResult: the folder holds no run; and everything that a run raises.
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
    folder: Path, output: Path | None, jobs: int | None, listener: Listener
) -> tuple[Comparison, Path]:
    """Repeat a run with its clock and scale. Return the comparison and the new run's folder.

    Raises BadResult, and everything that a run raises.
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
    """Open an executor for the block. `jobs`: number of processes; None: one per core.

    Raises ConfigError or ExecutorError.
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

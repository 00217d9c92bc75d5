"""The backend that measures shards in parallel, in guests of the virtual clock."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from testbed.measure.execution.identity import record_key
from testbed.measure.execution.progress import PartProgress, Progress
from testbed.measure.execution.resources import Forecast
from testbed.measure.results.shards import Shard, ShardRecord, split_into_shards
from testbed.measure.results.unfinished_run import FINISHED, ShardFolders
from testbed.measure.results.writer import BackendResult, ShardTimes
from testbed.net.errors import VirtualClockError
from testbed.net.virtual.guest import GUEST_PROGRAMS, Guest, GuestExit, GuestSettings, list_idlest_cores
from testbed.net.virtual.kernel_image import KernelImage, find_image
from testbed.prediction import calibration
from testbed.prediction.compiled import library
from testbed.prediction.executors.dask_cluster import Cluster
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.spec.units import format_size
from testbed.workload.job.errors import RunError
from testbed.workload.job.job import workload_of
from testbed.workload.schedules import find_schedule, write_csv

LINK_ENGINE, DATAPATH = "netem", "system"
CHECKOUT = Path(__file__).parents[3]
EventCallback = Callable[[Mapping[str, Any]], None]
"""Callback for a guest's progress: a `phase`, or `step` of `of`."""


@dataclass(frozen=True)
class GuestWork:
    """Data that all shards of a run share; core, seed and directories of `settings` are set for each guest."""

    settings: GuestSettings
    scale: Scale
    ranks_per_process: int | None
    link_engine: str = LINK_ENGINE


def measure_in_guest(
    work: GuestWork,
    image: KernelImage,
    shard: Shard,
    scenario: Scenario,
    folder: Path,
    *,
    core: int | None = None,
    on_event: EventCallback = lambda event: None,
    meanwhile: Callable[[Guest], None] = lambda guest: None,
) -> GuestExit:
    """Measure a shard in a guest, into a new directory.

    Args:
        work: Data that all shards share.
        image: The guest's kernel.
        shard: The shard.
        scenario: The shard's own scenario.
        folder: The directory to make.
        core: The CPU core to pin the guest to; None for any.
        on_event: Called with each progress report.
        meanwhile: Called regularly while the guest runs; may raise to stop it.

    Raises:
        RunError: If the measurement fails.
        VirtualClockError: If the guest fails.
    """
    folder.mkdir(parents=True)
    own = folder / "scenario.yaml"
    own.write_text(_with_schedule(scenario, work.scale, folder).to_yaml())
    task = {
        "shard": asdict(shard),
        "scenario": str(own.resolve()),
        "link_engine": work.link_engine,
        "datapath": DATAPATH,
        "scale": asdict(work.scale),
        "ranks_per_process": work.ranks_per_process,
        "folder": str(folder.resolve()),
    }
    (folder / "task.json").write_text(json.dumps(task))
    settings = replace(work.settings, core=core, seed=shard.seed, writable=(folder,))
    ended = _run_guest(Guest(image, settings), shard, folder, on_event, meanwhile)
    mark_finished(folder, ended)
    return ended


def mark_finished(folder: Path, ended: GuestExit) -> None:
    """Mark a shard's record as complete; this is the last file written."""
    written = folder / f".{FINISHED}"
    written.write_text(json.dumps(asdict(ended)))
    written.rename(folder / FINISHED)


def measure_on_worker(work: GuestWork, item: tuple[Shard, Scenario]) -> bytes:
    """Measure a shard on a remote worker and return its directory as a zip archive; nothing stays on the worker."""
    shard, scenario = item
    with tempfile.TemporaryDirectory(prefix="testbed-shard-") as parent:
        folder = Path(parent, str(shard.number))
        measure_in_guest(work, find_image(), shard, scenario, folder)
        return Path(shutil.make_archive(str(folder), "zip", folder)).read_bytes()


def unpack(packed: bytes, folder: Path) -> GuestExit:
    """Unpack a shard's directory from its archive, with the mark of completeness last."""
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        folder.mkdir(parents=True)
        archive.extractall(folder, [name for name in archive.namelist() if name != FINISHED])
        ended = GuestExit(**json.loads(archive.read(FINISHED)))
    mark_finished(folder, ended)
    return ended


def read_ended(file: Path) -> GuestExit:
    """Read how a finished shard's guest ended."""
    return GuestExit(**json.loads(file.read_text()))


def _run_guest(
    guest: Guest, shard: Shard, folder: Path, on_event: EventCallback, meanwhile: Callable[[Guest], None]
) -> GuestExit:
    errors: list[str] = []
    pending = ""

    def on_output(text: str) -> None:
        nonlocal pending
        *lines, pending = (pending + text).split("\n")
        for line in lines:
            on_event(json.loads(line))

    command = [
        sys.executable,
        "-m",
        "testbed.measure.execution.guest_entry",
        str((folder / "task.json").resolve()),
    ]
    environment = {"PYTHONPATH": str(CHECKOUT), **calibration.environment(), **library.environment()}
    try:
        ended = guest.run(command, CHECKOUT, environment, on_output, errors.append, lambda: meanwhile(guest))
    except VirtualClockError as error:
        raise VirtualClockError(f"{shard.name}: {error}") from error
    if ended.status != 0:
        reason = "".join(errors).strip().removeprefix("error: ")
        raise RunError(f"{shard.name}: {reason or f'ended with status {ended.status}'}")
    return ended


def _with_schedule(scenario: Scenario, scale: Scale, folder: Path) -> Scenario:
    """Return the scenario with a searched schedule replaced by a file, so that guests need not search."""
    asked = scenario.workload.schedule
    if asked is None or asked.file is not None or not find_schedule(asked.name).searched:
        return scenario
    training = workload_of(scenario, scenario.topology.resolve(scale), scale).training
    assert training is not None
    file = folder / f"{asked.name}.csv"
    file.write_text(write_csv(training.schedule.orders))
    return scenario.changed({"workload.schedule.file": str(file.resolve())}, scenario.name)


POLL_S = 0.1


@dataclass(frozen=True)
class Guests:
    """A backend that runs several guests in parallel: each on its own core here, or one per worker of a cluster.

    Core, seed and directories of `settings` are set for each guest. `ranks_per_process` is None for the fastest choice.
    """

    image: KernelImage
    settings: GuestSettings
    expected: Forecast
    ranks_per_process: int | None = None
    link_engine: str = LINK_ENGINE
    cluster: Cluster | None = None

    @property
    def words(self) -> str:
        """A description of where guests run: how many in parallel and with how much memory, or on which workers."""
        if self.cluster is not None:
            return f"virtual clock, on {self.cluster.words}"
        memory = format_size(self.settings.memory_bytes)
        return f"virtual clock, {self.expected.jobs} at once, at most {memory} each"

    def shards(self, scenario: Scenario) -> list[Shard]:
        """Split the run by algorithm, too: under the virtual clock, all networks behave identically."""
        return split_into_shards(scenario)

    def identity(self, scenario: Scenario, scale: Scale) -> str:
        """Return a key for everything that a shard's record depends on: request, files, kernel, and code."""
        image = self.image
        kernel = [image.version, image.recipe, self.settings.cpu_time]
        if self.link_engine != LINK_ENGINE:
            kernel.append(self.link_engine)
        return record_key(scenario.to_yaml(), [asdict(scale), kernel])

    def run_shards(
        self,
        scenario: Scenario,
        shards: Sequence[Shard],
        scale: Scale,
        parts: ShardFolders,
        progress: Progress,
    ) -> BackendResult:
        """Measure all shards that are not finished, each in `parts.folder`/NUMBER, and return all shards' records.

        If a shard fails or the user interrupts the run, all guests are stopped and finished records are kept.

        Raises:
            RunError: If a measurement fails.
            VirtualClockError: If a guest fails.
        """
        began_s = time.monotonic()
        work = GuestWork(self.settings, scale, self.ranks_per_process, self.link_engine)
        if self.cluster is None:
            check_programs()
            pool = _GuestPool(self.image, work, scenario, shards, self.expected.jobs, parts, progress)
            pool.run()
            jobs, digest = len(pool.cores), self.image.digest
        else:
            _run_on_cluster(self.cluster, work, scenario, shards, parts, progress)
            jobs, digest = min(self.cluster.at_once, len(shards)), None
        folders = [parts.folder / str(shard.number) for shard in shards]
        ended = [read_ended(folder / FINISHED) for folder in folders]
        return BackendResult(
            [ShardRecord.read(folder) for folder in folders],
            time.monotonic() - began_s,
            self.settings.memory_bytes,
            jobs,
            [ShardTimes(end.uptime_s, end.wall_s, end.memory_bytes) for end in ended],
            self.expected.wall_s,
            self.expected.memory_bytes,
            digest,
        )


def _run_on_cluster(
    cluster: Cluster,
    work: GuestWork,
    scenario: Scenario,
    shards: Sequence[Shard],
    parts: ShardFolders,
    progress: Progress,
) -> None:
    """Measure the shards on workers, and store each here; if a worker dies, another one repeats its shard."""
    steps = {shard.number: shard.trials + scenario.warmup for shard in shards}
    finished = parts.finished
    waiting = [shard for shard in shards if shard.number not in finished]
    done, total = sum(steps[number] for number in steps if number in finished), sum(steps.values())
    guests = f"{len(waiting)} guest{'' if len(waiting) == 1 else 's'}"
    progress.phase(f"{guests} on {cluster.words}")
    progress.step(done, total)
    with cluster.workers(measure_on_worker, work) as workers:
        asked = [(shard, shard.scenario(scenario)) for shard in waiting]
        for shard, packed in zip(waiting, workers.map(asked), strict=True):
            unpack(packed, parts.folder / str(shard.number))
            done += steps[shard.number]
            progress.step(min(done, total - 1), total)


class _GuestPool:
    """The guests of one run: free cores, and the progress of each shard."""

    def __init__(
        self,
        image: KernelImage,
        work: GuestWork,
        scenario: Scenario,
        shards: Sequence[Shard],
        jobs: int,
        parts: ShardFolders,
        progress: Progress,
    ) -> None:
        self.image, self.work = image, work
        self.scenario = scenario
        self.shards = shards
        self.folder, self.finished = parts.folder, parts.finished
        self.progress = progress
        idle = list_idlest_cores()
        self.cores = [idle[job % len(idle)] for job in range(min(jobs, len(shards)))]
        self._stop = threading.Event()
        self._state = {shard.number: PartProgress(shard.name) for shard in shards}
        self._free: SimpleQueue[int] = SimpleQueue()
        for core in self.cores:
            self._free.put(core)

    def run(self) -> None:
        """Run all shards; RunError and VirtualClockError name the failed shard."""
        pool = ThreadPoolExecutor(len(self.cores))
        futures = [pool.submit(self._run_shard, shard) for shard in self.shards]
        try:
            self._report_progress(futures)
        finally:
            self._stop.set()
            pool.shutdown(wait=True, cancel_futures=True)

    def _report_progress(self, futures: Sequence[Future[None]]) -> None:
        """Report progress until all shards are done or one has failed."""
        reported = -1
        while True:
            done, waiting = wait(futures, POLL_S, FIRST_EXCEPTION)
            for future in done:
                future.result()
            states = list(self._state.values())
            total = sum(state.total for state in states)
            steps = sum(state.done for state in states)
            known = [state.total for state in states if state.total]
            if known and steps != reported:
                reported = steps
                self.progress.step(steps, max(total, known[0] * len(states)))
            self.progress.parts(states)
            if not waiting:
                return

    def _run_shard(self, shard: Shard) -> None:
        state = self._state[shard.number]
        if shard.number in self.finished:
            state.done = state.total = shard.trials + self.scenario.warmup
            state.finished = True
            return
        core = self._free.get()

        def meanwhile(guest: Guest) -> None:
            state.clock_s = guest.clock_s
            if self._stop.is_set():
                raise RunError(f"{shard.name}: stopped")

        try:
            measure_in_guest(
                self.work,
                self.image,
                shard,
                shard.scenario(self.scenario),
                self.folder / str(shard.number),
                core=core,
                on_event=lambda event: self._event(shard, event),
                meanwhile=meanwhile,
            )
        finally:
            self._free.put(core)
        state.finished = True

    def _event(self, shard: Shard, event: Mapping[str, Any]) -> None:
        state = self._state[shard.number]
        if "step" in event:
            state.done, state.total = event["step"], event["of"]
        elif shard.number == 0:  # the other shards go through the same phases
            self.progress.phase(event["phase"])


def check_programs() -> None:
    """Raise RunError if programs that guests need are not installed."""
    path = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
    if missing := [name for name in GUEST_PROGRAMS if shutil.which(name, path=path) is None]:
        raise RunError(f"not installed here, and a guest needs them: {', '.join(missing)} (make setup)")

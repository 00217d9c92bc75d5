"""Guests of the virtual clock that measure a run's shards, side by side."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from testbed.measure.execution.progress import PartProgress, Progress
from testbed.measure.execution.resources import Forecast
from testbed.measure.results.run_directory import describe_environment
from testbed.measure.results.shards import Shard, ShardRecord, split_into_shards
from testbed.measure.results.unfinished_run import FINISHED, ShardFolders
from testbed.measure.results.writer import BackendResult, ShardTimes
from testbed.net.errors import VirtualClockError
from testbed.net.virtual.guest import GUEST_PROGRAMS, Guest, GuestExit, GuestSettings, list_idlest_cores
from testbed.net.virtual.kernel_image import KernelImage, find_image
from testbed.prediction import calibration
from testbed.prediction.calibration import file_in_use
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.spec.units import format_size
from testbed.workload.job.errors import RunError
from testbed.workload.job.job import workload_of
from testbed.workload.schedules import find_schedule, write_csv

_PACKAGE = Path(__file__).parents[2]
OWN_FILE = re.compile(r"(/[^\s'\":,]+\.py):\w")
_KEY_DIGITS = 16


def record_key(scenario: str, others: Any) -> str:
    """Hexadecimal; changes with the scenario's text, the text of files named in it, this code and the calibration.

    scenario: as YAML, with whole paths. others: what else counts, as JSON.
    """
    found = hashlib.sha256()
    for part in (scenario, json.dumps(others, sort_keys=True), *_surroundings(), *_texts(scenario)):
        found.update(part.encode() + b"\0")
    return found.hexdigest()[:_KEY_DIGITS]


def _surroundings() -> Iterator[str]:
    yield json.dumps(describe_environment()["versions"], sort_keys=True)
    yield sys.executable
    yield str(_PACKAGE)


def _texts(scenario: str) -> Iterator[str]:
    own = {Path(name) for name in OWN_FILE.findall(scenario)}
    calibration = file_in_use()
    for file in (*sorted(_PACKAGE.rglob("*.py")), *sorted(own), *([calibration] if calibration else [])):
        yield str(file)
        yield file.read_text() if file.exists() else ""


LINK_ENGINE, DATAPATH = "netem", "system"
CHECKOUT = Path(__file__).parents[3]
Told = Callable[[Mapping[str, Any]], None]
"""Hears what the guest says of itself: `phase`, or `step` of `of`."""


@dataclass(frozen=True)
class GuestWork:
    """What shards of a run have in common. settings: of each guest, but for core, seed and folders."""

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
    told: Told = lambda event: None,
    meanwhile: Callable[[Guest], None] = lambda guest: None,
) -> GuestExit:
    """Measure a shard in a guest, into its folder, which is made; scenario: its own. RunError, VirtualClockError."""
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
    ended = _booted(Guest(image, settings), shard, folder, told, meanwhile)
    finish(folder, ended)
    return ended


def finish(folder: Path, ended: GuestExit) -> None:
    """Mark a shard's record as whole: last of all."""
    written = folder / f".{FINISHED}"
    written.write_text(json.dumps(asdict(ended)))
    written.rename(folder / FINISHED)


def measure_on_worker(work: GuestWork, item: tuple[Shard, Scenario]) -> bytes:
    """The same on a worker of an engine: its folder as an archive; nothing of it stays on the worker."""
    shard, scenario = item
    with tempfile.TemporaryDirectory(prefix="testbed-shard-") as above:
        folder = Path(above, str(shard.number))
        measure_in_guest(work, find_image(), shard, scenario, folder)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in folder.rglob("*"):
                archive.write(file, file.relative_to(folder))
        return packed.getvalue()


def unpack(packed: bytes, folder: Path) -> GuestExit:
    """A shard's folder from its archive; what marks it as whole comes last."""
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        folder.mkdir(parents=True)
        archive.extractall(folder, [name for name in archive.namelist() if name != FINISHED])
        ended = GuestExit(**json.loads(archive.read(FINISHED)))
    finish(folder, ended)
    return ended


def read_ended(file: Path) -> GuestExit:
    """How a finished shard's guest ended."""
    return GuestExit(**json.loads(file.read_text()))


def _booted(
    guest: Guest, shard: Shard, folder: Path, told: Told, meanwhile: Callable[[Guest], None]
) -> GuestExit:
    complaints: list[str] = []
    pending = ""

    def said(text: str) -> None:
        nonlocal pending
        *lines, pending = (pending + text).split("\n")
        for line in lines:
            told(json.loads(line))

    command = [
        sys.executable,
        "-m",
        "testbed.measure.execution.guest_entry",
        str((folder / "task.json").resolve()),
    ]
    environment = {"PYTHONPATH": str(CHECKOUT), **calibration.environment()}
    try:
        ended = guest.run(command, CHECKOUT, environment, said, complaints.append, lambda: meanwhile(guest))
    except VirtualClockError as error:
        raise VirtualClockError(f"{shard.name}: {error}") from error
    if ended.status != 0:
        why = "".join(complaints).strip().removeprefix("error: ")
        raise RunError(f"{shard.name}: {why or f'ended with status {ended.status}'}")
    return ended


def _with_schedule(scenario: Scenario, scale: Scale, folder: Path) -> Scenario:
    """The same with a schedule that is searched for as a file: a guest has other things to do."""
    asked = scenario.workload.schedule
    if asked is None or asked.file is not None or not find_schedule(asked.name).searched:
        return scenario
    training = workload_of(scenario, scenario.topology.resolve(scale), scale).training
    assert training is not None
    file = folder / f"{asked.name}.csv"
    file.write_text(write_csv(training.schedule.orders))
    return scenario.changed({"workload.schedule.file": str(file.resolve())}, scenario.name)


POLL_S = 0.1


class Guests:
    """Several at once, each on a core of its own.

    settings: of each, but for core, seed and folders. ranks_per_process: None for what is quickest.
    """

    def __init__(
        self,
        image: KernelImage,
        settings: GuestSettings,
        expected: Forecast,
        ranks_per_process: int | None = None,
        link_engine: str = LINK_ENGINE,
    ) -> None:
        self.image = image
        self.settings = settings
        self.expected = expected
        self.jobs = expected.jobs
        self.ranks_per_process = ranks_per_process
        self.link_engine = link_engine

    @property
    def words(self) -> str:
        """How many, and how large."""
        return f"virtual clock, {self.jobs} at once, at most {format_size(self.settings.memory_bytes)} each"

    def shards(self, scenario: Scenario) -> list[Shard]:
        """Algorithms side by side in networks of their own: under the virtual clock all see the same anyway."""
        return split_into_shards(scenario)

    def identity(self, scenario: Scenario, scale: Scale) -> str:
        """Of what is asked, with files of one's own, and of the kernel and the programs that carry it out."""
        image = self.image
        kernel = [image.version, image.recipe, self.settings.cpu_time]
        if self.link_engine != LINK_ENGINE:
            kernel.append(self.link_engine)
        return record_key(scenario.to_yaml(), [asdict(scale), kernel])

    def carry_out(
        self,
        scenario: Scenario,
        shards: Sequence[Shard],
        scale: Scale,
        parts: ShardFolders,
        progress: Progress,
    ) -> BackendResult:
        """See `Backend`."""
        check_programs()
        began_s = time.monotonic()
        carrying = _Carrying(self, scenario, shards, scale, parts, progress)
        ended = carrying.run()
        records = [ShardRecord.read(carrying.target(shard)) for shard in shards]
        times = [ShardTimes(end.uptime_s, end.wall_s, end.memory_bytes) for end in ended]
        wall_s = time.monotonic() - began_s
        memory_bytes, expected = self.settings.memory_bytes, self.expected
        return BackendResult(
            records,
            wall_s,
            memory_bytes,
            len(carrying.cores),
            times,
            expected.wall_s,
            expected.memory_bytes,
            self.image.digest,
        )


class _Carrying:
    """Once: which cores are free, how far each shard is."""

    def __init__(
        self,
        guests: Guests,
        scenario: Scenario,
        shards: Sequence[Shard],
        scale: Scale,
        parts: ShardFolders,
        progress: Progress,
    ) -> None:
        self.image = guests.image
        self.work = GuestWork(guests.settings, scale, guests.ranks_per_process, guests.link_engine)
        self.scenario = scenario
        self.shards = shards
        self.folder, self.finished = parts.folder, parts.finished
        self.progress = progress
        idle = list_idlest_cores()
        self.cores = [idle[job % len(idle)] for job in range(min(guests.jobs, len(shards)))]
        self._stop = threading.Event()
        self._state = {shard.number: PartProgress(shard.name) for shard in shards}
        self._free = list(self.cores)
        self._lock = threading.Lock()

    def target(self, shard: Shard) -> Path:
        """Where a shard's record is to be."""
        return self.folder / str(shard.number)

    def run(self) -> list[GuestExit]:
        """All of them; RunError and VirtualClockError name the shard that failed."""
        pool = ThreadPoolExecutor(len(self.cores))
        futures = [pool.submit(self._run_shard, shard) for shard in self.shards]
        try:
            self._follow(futures)
        finally:
            self._stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
        return [future.result() for future in futures]

    def _follow(self, futures: Sequence[Future[GuestExit]]) -> None:
        """Tell how far all are, until all are done or one has failed."""
        told = -1
        while True:
            done, waiting = wait(futures, POLL_S, FIRST_EXCEPTION)
            for future in done:
                future.result()
            states = list(self._state.values())
            total = sum(state.total for state in states)
            steps = sum(state.done for state in states)
            known = [state.total for state in states if state.total]
            if known and steps != told:
                told = steps
                self.progress.step(steps, max(total, known[0] * len(states)))
            self.progress.parts(states)
            if not waiting:
                return

    def _run_shard(self, shard: Shard) -> GuestExit:
        folder = self.target(shard)
        if shard.number in self.finished:
            state = self._state[shard.number]
            state.done = state.total = shard.trials + self.scenario.warmup
            state.finished = True
            return read_ended(folder / FINISHED)
        with self._lock:
            core = self._free.pop(0)

        def meanwhile(guest: Guest) -> None:
            self._state[shard.number].clock_s = guest.clock_s
            if self._stop.is_set():
                raise RunError(f"{shard.name}: stopped")

        try:
            ended = measure_in_guest(
                self.work,
                self.image,
                shard,
                shard.scenario(self.scenario),
                folder,
                core=core,
                told=lambda event: self._event(shard, event),
                meanwhile=meanwhile,
            )
        finally:
            with self._lock:
                self._free.append(core)
        self._state[shard.number].finished = True
        return ended

    def _event(self, shard: Shard, event: Mapping[str, Any]) -> None:
        state = self._state[shard.number]
        if "step" in event:
            state.done, state.total = event["step"], event["of"]
        elif shard.number == 0:  # the others do the same
            self.progress.phase(event["phase"])


def check_programs() -> None:
    """RunError where this machine lacks what a guest runs."""
    if missing := [name for name in GUEST_PROGRAMS if shutil.which(name, path=_search_path()) is None]:
        raise RunError(f"not installed here, and a guest needs them: {', '.join(missing)} (make setup)")


def _search_path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"

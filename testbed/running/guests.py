"""Guests of the virtual clock carry out the shards of a run, side by side."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from testbed.config import Scenario
from testbed.config.units import format_size
from testbed.job.errors import RunError
from testbed.job.workload import workload_of
from testbed.model import calibration
from testbed.results.parts import FINISHED, Parts
from testbed.results.shards import Shard, ShardRecord, cut
from testbed.results.writer import Carried, ShardTimes
from testbed.running.forecast import Forecast
from testbed.running.identity import identity_of
from testbed.running.progress import PartProgress, Progress
from testbed.scale import Scale
from testbed.virtual import GUEST_PROGRAMS, Ended, Guest, GuestSettings, KernelImage, VirtualClockError
from testbed.virtual.guest import idlest_cores
from testbed.virtual.isolation import seccomp_argument
from testbed.workload.schedules import find_schedule, write_csv

LINK_ENGINE, DATAPATH = "netem", "system"
CHECKOUT = Path(__file__).parents[2]
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
    ) -> None:
        self.image = image
        self.settings = settings
        self.expected = expected
        self.jobs = expected.jobs
        self.ranks_per_process = ranks_per_process

    @property
    def words(self) -> str:
        """How many, and how large."""
        return f"virtual clock, {self.jobs} at once, at most {format_size(self.settings.memory_bytes)} each"

    def shards(self, scenario: Scenario) -> list[Shard]:
        """Algorithms side by side in networks of their own: under the virtual clock all see the same anyway."""
        return cut(scenario)

    def identity(self, scenario: Scenario, scale: Scale) -> str:
        """Of what is asked, with files of one's own, and of the kernel and the programs that carry it out."""
        image = self.image
        kernel = [image.version, image.recipe, *seccomp_argument(image.version), self.settings.cpu_time]
        return identity_of(scenario.to_yaml(), [asdict(scale), kernel])

    def carry_out(
        self, scenario: Scenario, shards: Sequence[Shard], scale: Scale, parts: Parts, progress: Progress
    ) -> Carried:
        """See `Backend`."""
        if missing := [name for name in GUEST_PROGRAMS if shutil.which(name, path=_search_path()) is None]:
            raise RunError(f"not installed here, and a guest needs them: {', '.join(missing)} (make setup)")
        began_s = time.monotonic()
        carrying = _Carrying(self, scenario, shards, scale, parts, progress)
        ended = carrying.run()
        records = [ShardRecord.read(carrying.target(shard)) for shard in shards]
        times = [ShardTimes(end.uptime_s, end.wall_s, end.memory_bytes) for end in ended]
        wall_s = time.monotonic() - began_s
        memory_bytes, expected = self.settings.memory_bytes, self.expected
        return Carried(
            records,
            wall_s,
            memory_bytes,
            len(carrying.cores),
            times,
            expected.wall_s,
            expected.memory_bytes,
        )


class _Carrying:
    """Once: which cores are free, how far each shard is."""

    def __init__(
        self,
        guests: Guests,
        scenario: Scenario,
        shards: Sequence[Shard],
        scale: Scale,
        parts: Parts,
        progress: Progress,
    ) -> None:
        self.image, self.settings = guests.image, guests.settings
        self.ranks_per_process = guests.ranks_per_process
        self.scenario = scenario
        self.shards = shards
        self.scale = scale
        self.folder, self.finished = parts.folder, parts.finished
        self.progress = progress
        idle = idlest_cores()
        self.cores = [idle[job % len(idle)] for job in range(min(guests.jobs, len(shards)))]
        self._stop = threading.Event()
        self._state = {shard.number: PartProgress(shard.name) for shard in shards}
        self._free = list(self.cores)
        self._lock = threading.Lock()

    def target(self, shard: Shard) -> Path:
        """Where a shard's record is to be."""
        return self.folder / str(shard.number)

    def run(self) -> list[Ended]:
        """All of them; RunError and VirtualClockError name the shard that failed."""
        pool = ThreadPoolExecutor(len(self.cores))
        futures = [pool.submit(self._run_shard, shard) for shard in self.shards]
        try:
            self._follow(futures)
        finally:
            self._stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
        return [future.result() for future in futures]

    def _follow(self, futures: Sequence[Future[Ended]]) -> None:
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

    def _run_shard(self, shard: Shard) -> Ended:
        folder = self.target(shard)
        if shard.number in self.finished:
            state = self._state[shard.number]
            state.done = state.total = shard.trials + self.scenario.warmup
            state.finished = True
            return Ended(**json.loads((folder / FINISHED).read_text()))
        folder.mkdir(parents=True)
        own = folder / "scenario.yaml"
        own.write_text(_with_schedule(shard.scenario(self.scenario), self.scale, folder).to_yaml())
        task = {
            "shard": asdict(shard),
            "scenario": str(own.resolve()),
            "link_engine": LINK_ENGINE,
            "datapath": DATAPATH,
            "scale": asdict(self.scale),
            "ranks_per_process": self.ranks_per_process,
            "folder": str(folder.resolve()),
        }
        (folder / "task.json").write_text(json.dumps(task))
        with self._lock:
            core = self._free.pop(0)
        try:
            ended = self._boot(shard, folder, core)
        finally:
            with self._lock:
                self._free.append(core)
        written = folder / f".{FINISHED}"
        written.write_text(json.dumps(asdict(ended)))
        written.rename(folder / FINISHED)
        self._state[shard.number].finished = True
        return ended

    def _boot(self, shard: Shard, folder: Path, core: int) -> Ended:
        settings = replace(self.settings, core=core, seed=shard.seed, writable=(folder,))
        guest = Guest(self.image, settings)
        complaints: list[str] = []
        pending = ""

        def told(text: str) -> None:
            nonlocal pending
            *lines, pending = (pending + text).split("\n")
            for line in lines:
                self._event(shard, json.loads(line))

        def meanwhile() -> None:
            self._state[shard.number].clock_s = guest.clock_s
            if self._stop.is_set():
                raise RunError(f"{shard.name}: stopped")

        command = [sys.executable, "-m", "testbed.running.inside", str((folder / "task.json").resolve())]
        environment = {"PYTHONPATH": str(CHECKOUT), **calibration.environment()}
        try:
            ended = guest.run(command, CHECKOUT, environment, told, complaints.append, meanwhile)
        except VirtualClockError as error:
            raise VirtualClockError(f"{shard.name}: {error}") from error
        if ended.status != 0:
            said = "".join(complaints).strip().removeprefix("error: ")
            raise RunError(f"{shard.name}: {said or f'ended with status {ended.status}'}")
        return ended

    def _event(self, shard: Shard, event: Mapping[str, Any]) -> None:
        state = self._state[shard.number]
        if "step" in event:
            state.done, state.total = event["step"], event["of"]
        elif shard.number == 0:  # the others do the same
            self.progress.phase(event["phase"])


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


def _search_path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"

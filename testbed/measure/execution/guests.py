"""Guests of the virtual clock carry out the shards of a run, side by side."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any

from testbed.measure.execution.guest_shard import LINK_ENGINE, GuestWork, measure, read_ended
from testbed.measure.execution.identity import identity_of
from testbed.measure.execution.progress import PartProgress, Progress
from testbed.measure.execution.resource_forecast import Forecast
from testbed.measure.results.parts import FINISHED, Parts
from testbed.measure.results.shards import Shard, ShardRecord, cut
from testbed.measure.results.writer import Carried, ShardTimes
from testbed.net.virtual.guest import GUEST_PROGRAMS, Guest, GuestExit, GuestSettings, idlest_cores
from testbed.net.virtual.kernel_image import KernelImage
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.spec.units import format_size
from testbed.workload.job.errors import RunError

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
        return cut(scenario)

    def identity(self, scenario: Scenario, scale: Scale) -> str:
        """Of what is asked, with files of one's own, and of the kernel and the programs that carry it out."""
        image = self.image
        kernel = [image.version, image.recipe, self.settings.cpu_time]
        if self.link_engine != LINK_ENGINE:
            kernel.append(self.link_engine)
        return identity_of(scenario.to_yaml(), [asdict(scale), kernel])

    def carry_out(
        self, scenario: Scenario, shards: Sequence[Shard], scale: Scale, parts: Parts, progress: Progress
    ) -> Carried:
        """See `Backend`."""
        check_programs()
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
        parts: Parts,
        progress: Progress,
    ) -> None:
        self.image = guests.image
        self.work = GuestWork(guests.settings, scale, guests.ranks_per_process, guests.link_engine)
        self.scenario = scenario
        self.shards = shards
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
            ended = measure(
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

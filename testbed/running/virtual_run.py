"""One run under the virtual clock: its parts in guests, side by side, put together into one run directory."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from testbed.config import Scenario
from testbed.job.errors import RunError
from testbed.model import calibration
from testbed.results.directory import RunDirectory
from testbed.results.parts import Part, cut
from testbed.running.parted import part_folder, part_record, put_together, read_part
from testbed.running.run import Progress
from testbed.scale import Scale
from testbed.virtual import GUEST_PROGRAMS, Ended, Guest, GuestSettings, KernelImage, VirtualClockError
from testbed.virtual.guest import idlest_cores

LINK_ENGINE, DATAPATH = "netem", "system"
CHECKOUT = Path(__file__).parents[2]
POLL_S = 0.1


@dataclass
class _Progress:
    """How far one part is."""

    done: int = 0
    total: int = 0
    clock_s: float = 0.0


class VirtualRun:
    """As `Run`, in guests. `jobs` run at once, each on a core of its own; `settings` but for core and folders."""

    def __init__(
        self,
        scenario: Scenario,
        image: KernelImage,
        settings: GuestSettings,
        scale: Scale,
        output: Path,
        progress: Progress,
        jobs: int,
    ) -> None:
        self.scenario = scenario
        self.image = image
        self.settings = settings
        self.scale = scale
        self.output = output
        self.progress = progress
        self.parts = cut(scenario)
        idle = idlest_cores()
        self.cores = [idle[job % len(idle)] for job in range(min(jobs, len(self.parts)))]
        self._stop = threading.Event()
        self._state = {part.number: _Progress() for part in self.parts}
        self._free = list(self.cores)
        self._lock = threading.Lock()

    def execute(self) -> dict[str, Any]:
        """Do everything; returns the summary that stands in the run directory. RunError, VirtualClockError."""
        if missing := [name for name in GUEST_PROGRAMS if shutil.which(name, path=_search_path()) is None]:
            raise RunError(f"not installed here, and a guest needs them: {', '.join(missing)} (make setup)")
        directory = RunDirectory(self.output)
        try:
            began_s = time.monotonic()
            ended = self._run_parts(directory)
            wall_s = time.monotonic() - began_s
            self.progress.phase("putting the parts together")
            summary = self._merge(directory, ended, wall_s)
            directory.finish()
        except BaseException:
            directory.discard()
            raise
        return summary

    def _run_parts(self, directory: RunDirectory) -> list[Ended]:
        pool = ThreadPoolExecutor(len(self.cores))
        futures = [pool.submit(self._run_part, part, directory) for part in self.parts]
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
            if not waiting:
                return

    def _run_part(self, part: Part, directory: RunDirectory) -> Ended:
        folder = part_folder(directory, part)
        folder.mkdir(parents=True)
        (folder / "scenario.yaml").write_text(part.scenario(self.scenario).to_yaml())
        task = {
            "scenario": str((folder / "scenario.yaml").resolve()),
            "link_engine": LINK_ENGINE,
            "datapath": DATAPATH,
            "scale": asdict(self.scale),
            "output": str((folder / "run").resolve()),
        }
        (folder / "task.json").write_text(json.dumps(task))
        with self._lock:
            core = self._free.pop(0)
        try:
            return self._boot(part, folder, core)
        finally:
            with self._lock:
                self._free.append(core)

    def _boot(self, part: Part, folder: Path, core: int) -> Ended:
        settings = replace(self.settings, core=core, seed=part.seed, writable=(folder,))
        guest = Guest(self.image, settings)
        complaints: list[str] = []
        pending = ""

        def told(text: str) -> None:
            nonlocal pending
            *lines, pending = (pending + text).split("\n")
            for line in lines:
                self._event(part, json.loads(line))

        def meanwhile() -> None:
            self._state[part.number].clock_s = guest.clock_s
            if self._stop.is_set():
                raise RunError(f"{part.name}: stopped")

        command = [sys.executable, "-m", "testbed.running.inside", str((folder / "task.json").resolve())]
        environment = {"PYTHONPATH": str(CHECKOUT), **calibration.environment()}
        try:
            ended = guest.run(command, CHECKOUT, environment, told, complaints.append, meanwhile)
        except VirtualClockError as error:
            raise VirtualClockError(f"{part.name}: {error}") from error
        if ended.status != 0:
            said = "".join(complaints).strip().removeprefix("error: ")
            raise RunError(f"{part.name}: {said or f'ended with status {ended.status}'}")
        return ended

    def _event(self, part: Part, event: Mapping[str, Any]) -> None:
        state = self._state[part.number]
        if "step" in event:
            state.done, state.total = event["step"], event["of"]
        elif part.number == 0:  # the others do the same
            self.progress.phase(event["phase"])

    def _merge(self, directory: RunDirectory, ended: Sequence[Ended], wall_s: float) -> dict[str, Any]:
        first = read_part(self.parts[0], directory)
        clock = {
            **first.manifest["clock"],
            "kernel": first.manifest["host"]["kernel"],
            "memory_bytes": self.settings.memory_bytes,
            "jobs": len(self.cores),
            "wall_s": wall_s,
            "parts": [
                {**part_record(part), "virtual_s": end.uptime_s, "wall_s": end.wall_s}
                for part, end in zip(self.parts, ended, strict=True)
            ],
        }
        return put_together(directory, self.scenario, self.scale, self.parts, self.output, clock)


def _search_path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"

"""ns-3's side: the experiments compiled against the libraries of its wheel, and run."""

from __future__ import annotations

import hashlib
import itertools
import json
import resource
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.ns3.cells import (
    ACCESS_BPS,
    FRAME_S,
    PROBE_PAUSE_S,
    RATE_BPS,
    Experiment,
    Flows,
    Frames,
    to_json,
)
from tests.bench.ns3.theory import fifo_sojourns

ROOT = Path(__file__).parents[3]
ENVIRONMENT = ROOT / ".venv-ns3"
SOURCE = Path(__file__).with_name("experiments.cc")
LIBRARIES = ("core", "network", "internet", "point-to-point", "applications")
ROOMY_FRAMES = 1_000_000


class Simulator:
    """Runs experiments in ns-3. What it found is kept in its environment: the same program finds the same again."""

    def __init__(self) -> None:
        packages = sorted(ENVIRONMENT.glob("lib/python*/site-packages/ns3"))
        if not packages:
            raise SystemExit(f"no ns-3 in {ENVIRONMENT}: tools/bootstrap ns3 makes it")
        self._package = packages[0]
        self._digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
        self._program = ENVIRONMENT / f"experiments-{self._digest}"
        if not self._program.exists():
            self._compile()

    def _compile(self) -> None:
        folder = self._package / "lib64"
        (core,) = folder.glob("libns3*-core.so")
        prefix = core.name.removeprefix("lib").removesuffix("core.so")
        command = ["g++", "-std=c++20", "-O2", f"-I{self._package / 'include'}", str(SOURCE)]
        command += ["-o", str(self._program), f"-L{folder}", *(f"-l{prefix}{name}" for name in LIBRARIES)]
        # what these in turn want is beside them, and the wheel's own paths find it
        command += [f"-Wl,-rpath,{folder}", "-Wl,--allow-shlib-undefined"]
        subprocess.run(command, check=True)

    def run(self, cell: Experiment) -> dict[str, Any]:
        """As a guest's line about the same experiment, and `cpu_s`."""
        name = hashlib.sha256(to_json(cell).encode()).hexdigest()[:16]
        kept = ENVIRONMENT / "found" / self._digest / f"{name}.json"
        if not kept.exists():
            found = self._flows(cell) if isinstance(cell, Flows) else self._frames(cell)
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(found))
        known: dict[str, Any] = json.loads(kept.read_text())
        return known

    def _flows(self, cell: Flows) -> dict[str, Any]:
        found = self._call(
            "flows",
            delay_s=cell.delay_s,
            queue_frames=cell.queue_frames,
            loss=cell.loss,
            extra_delays_s=",".join(map(str, cell.extra_delays_s)),
            starts_s=",".join(map(str, cell.starts_s)),
            message_bytes=cell.message_bytes,
            congestion_control=cell.congestion_control,
            warm_up_s=cell.warm_up_s,
            duration_s=cell.duration_s,
            probe_pause_s=PROBE_PAUSE_S,
            seed=cell.seed,
            **({"slow_start_frames": cell.slow_start_frames} if cell.slow_start_frames else {}),
        )
        waits_s = found.pop("waits_s")
        return {**found, "mean_wait_s": statistics.fmean(waits_s), "peak_wait_s": max(waits_s)}

    def _frames(self, cell: Frames) -> dict[str, Any]:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("\n".join(map(str, cell.times_ns())))
            file.flush()
            found = self._call("frames", delay_s=cell.delay_s, queue_frames=ROOMY_FRAMES, times=file.name)
        sent_s, arrived_s = found["sent_s"], found["arrived_s"]
        took_s = [arrived - sent for sent, arrived in zip(sent_s, arrived_s, strict=True)]
        gaps_ns = [round((b - a) * 1e9) for a, b in itertools.pairwise(arrived_s)]
        return {
            "lost": 0,
            "took_s": statistics.fmean(took_s),
            "fifo_s": statistics.fmean(fifo_sojourns(sent_s, FRAME_S)),
            "gaps_ns": gaps_ns if cell.load is None else [],
            "cpu_s": found["cpu_s"],
        }

    def _call(self, experiment: str, **given: float | str) -> dict[str, Any]:
        words = {"rate_bps": RATE_BPS, "access_bps": ACCESS_BPS, **given}
        command = [str(self._program), experiment, *(f"{key}={value}" for key, value in words.items())]
        before = _children_cpu_s()
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        found: dict[str, Any] = json.loads(said)
        return {**found, "cpu_s": _children_cpu_s() - before}


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

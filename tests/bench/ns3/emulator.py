"""The testbed's side, from outside: a guest that runs the experiments, and what it takes of this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.bench.ns3.cells import Experiment, to_json

ROOT = Path(__file__).parents[3]
KEPT = ROOT / ".venv-ns3/found/testbed.json"
MEMORY, TIMEOUT = "3 GiB", "7200 s"
All = dict[tuple[str, int], dict[str, Any]]


def last() -> All:
    """What the last run found."""
    return {(name, seed): found for name, seed, found in json.loads(KEPT.read_text())}


def run(cells: Sequence[Experiment], progress: Callable[[str], None]) -> All:
    """By name and seed of each experiment what the guest says of it, and `cpu_s`, all processes of it together."""
    command = [
        sys.executable,
        "-m",
        "testbed",
        "virtual",
        "exec",
        "--memory",
        MEMORY,
        "--timeout",
        TIMEOUT,
        "--",
    ]
    command += [sys.executable, "-m", "tests.bench.ns3.guest", *map(to_json, cells)]
    found = {}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as guest:
        for line, spent_s in _lines(guest):
            said = json.loads(line)
            if "name" in said:
                found[said["name"], said["seed"]] = {**said, "cpu_s": spent_s}
                progress(f"testbed: {said['name']}, seed {said['seed']}: {spent_s:.0f} s of CPU time")
    if guest.returncode or len(found) != len({(cell.name, cell.seed) for cell in cells}):
        raise SystemExit(f"the guest ended with {guest.returncode} after {len(found)} experiments")
    KEPT.write_text(json.dumps([[*key, said] for key, said in found.items()]))
    return found


def _lines(guest: subprocess.Popen[str]) -> Iterator[tuple[str, float]]:
    """Each line of JSON, and the CPU time since the one before."""
    assert guest.stdout is not None
    before_s = 0.0
    for line in guest.stdout:
        if line.startswith("{"):
            now_s = _cpu_s(psutil.Process(guest.pid))
            yield line, now_s - before_s
            before_s = now_s


def _cpu_s(process: psutil.Process) -> float:
    total_s = 0.0
    for one in (process, *process.children(recursive=True)):
        try:
            total_s += sum(one.cpu_times()[:4])  # its own, and of children that have ended
        except psutil.NoSuchProcess:
            continue
    return total_s

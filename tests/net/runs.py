"""Runs of a small scenario for tests: started, watched, disturbed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from testbed.net.fabric.fabric_state import ENVIRONMENT_MARK, clean_abandoned, load_all
from tests.figures import hold_figures

ROOT = Path(__file__).parents[2]
SCENARIO = """
name: small
topology: {topology}
ranks: {ranks}
workload:
  model: {{dim: 256, n_layers: 2, n_heads: 4, n_kv_heads: 4, ffn_dim: 512, vocab_size: 1000}}
  bucket_cap: 1 MiB
  sequence_length: 64
  peak_flops: 20 Gflop/s
algorithms: [ring, hierarchical]
trials: {trials}
scale: {{size_scale: {size_scale}}}
"""

# A small model on slow links: a step takes a second or two.
SMALLER = (
    "--set",
    "workload.model.dim=128",
    "--set",
    "workload.model.ffn_dim=256",
    "--set",
    "algorithms=[ring]",
)


def write_scenario(folder: Path, **changes: Any) -> Path:
    values = {
        "ranks": 6,
        "trials": 2,
        "size_scale": 1,
        "topology": ROOT / "topologies" / "three-buildings.yaml",
    }
    path = folder / "small.yaml"
    path.write_text(SCENARIO.format(**{**values, **changes}))
    return path


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "testbed", *map(str, arguments)]


def run_testbed(*arguments: object, timeout_s: float = 200) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=timeout_s, check=False)
    hold_figures([str(argument) for argument in arguments], done.returncode, done.stdout)
    return done


def wait_for_words(run: subprocess.Popen[str], said: list[str], words: str, timeout_s: float = 160) -> None:
    """Until the run has said them on standard error; what it said and what its processes do, if that fails."""
    deadline = time.monotonic() + timeout_s
    while not any(words in line for line in said):
        if run.poll() is not None or time.monotonic() > deadline:
            processes = [f"{process.status()} {' '.join(process.cmdline())}" for process in owned(run, "")]
            state = f"ended with {run.returncode}" if run.poll() is not None else f"after {timeout_s} s"
            told = "".join(said) + "\n".join(processes)
            raise AssertionError(f"the run never said {words!r} ({state}); it said:\n{told}")
        time.sleep(0.02)


def status_at_end(run: subprocess.Popen[str], said: list[str], timeout_s: float = 60) -> int:
    """Its exit status; what it said, where it does not end."""
    try:
        return run.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"the run goes on after {timeout_s} s; it said:\n{''.join(said)}") from None


def end(run: subprocess.Popen[str]) -> None:
    """Make sure that a run is over and, where it could not do so itself, cleaned up after."""
    if run.poll() is None:
        run.terminate()
        try:
            run.wait(15)
        except subprocess.TimeoutExpired:
            run.kill()
            run.wait()
            clean_abandoned()


def owned(run: subprocess.Popen[str], words: str) -> list[psutil.Process]:
    """The run's own processes whose command line contains the words."""
    ids = {state.id for state in load_all() if state.owner_pid == run.pid}
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(ENVIRONMENT_MARK) in ids and words in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def start(
    folder: Path, trials: int = 500, more: tuple[str, ...] = ()
) -> tuple[subprocess.Popen[str], list[str]]:
    """A run long enough to be disturbed, and what it says on standard error, which is read all the time."""
    run = subprocess.Popen(
        command("run", write_scenario(folder, trials=trials), "--output", folder / "out", *more),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    said: list[str] = []

    def read() -> None:
        assert run.stderr is not None
        said.extend(iter(run.stderr.readline, ""))

    threading.Thread(target=read, daemon=True).start()
    return run, said

"""Dumps of a run's flight recorders while it is at work: its launcher makes them when it is asked to."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from testbed.comm.flight_recorder import DUMPED, FLIGHT, LAUNCHER_PID
from testbed.measure.results.failed_run import failed_path
from testbed.measure.results.parts import SHARDS
from testbed.measure.results.run_directory import partial_path
from testbed.workload.job.errors import RunError

LAUNCHER = b"testbed.measure.ranks.launcher"
TIMEOUT_S, POLL_S = 10.0, 0.02


def dump_running(run: Path) -> list[Path]:
    """The folders with new dumps of a run by this machine's clock that is at work; `run`: its folder to be.

    RunError where no rank of such a run is at work here.
    """
    found = []
    for file in sorted(partial_path(run).glob(f"{SHARDS}/*/{FLIGHT}/{LAUNCHER_PID}")):
        pid, folder = int(file.read_text()), file.parent
        if not _is_launcher(pid):
            continue
        mark = folder / DUMPED
        before = mark.stat().st_mtime_ns if mark.exists() else 0
        os.kill(pid, signal.SIGUSR1)
        deadline_s = time.monotonic() + TIMEOUT_S
        while not mark.exists() or mark.stat().st_mtime_ns == before:
            if time.monotonic() > deadline_s:
                raise RunError(f"{folder}: no dump within {TIMEOUT_S:g} s of asking process {pid}")
            time.sleep(POLL_S)
        found.append(folder)
    if not found:
        ended = f"; what is left of it stands in {failed_path(run)}" if failed_path(run).exists() else ""
        raise RunError(f"{run}: no rank of it is at work by this machine's clock{ended}")
    return found


def _is_launcher(pid: int) -> bool:
    try:
        return LAUNCHER in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False

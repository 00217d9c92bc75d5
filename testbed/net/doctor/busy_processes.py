"""Who keeps this machine busy at the moment: for whoever wonders why figures are not to be trusted."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

LOOK_S = 0.5
LEAST_SHARE = 0.05  # of a core
MOST = 3


@dataclass(frozen=True)
class Busy:
    """A process, and which part of a core it took."""

    pid: int
    name: str
    cores: float


def busiest(look_s: float = LOOK_S) -> list[Busy]:
    """The processes of others that take most of this machine's cores now, the busiest first; takes `look_s`."""
    before = _times()
    time.sleep(look_s)
    after = _times()
    found = []
    for pid, used_s in after.items():
        cores = (used_s - before.get(pid, used_s)) / look_s
        if pid != os.getpid() and cores >= LEAST_SHARE:
            with contextlib.suppress(psutil.Error):
                found.append(Busy(pid, _words(psutil.Process(pid)), cores))
    return sorted(found, key=lambda one: -one.cores)[:MOST]


def busy_words(found: Sequence[Busy]) -> str:
    """For people; empty where nobody is."""
    if not found:
        return ""
    each = ", ".join(f"{one.name} (process {one.pid}, {one.cores:.1f} cores)" for one in found)
    return f"Busy here at the moment: {each}."


def _times() -> dict[int, float]:
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            found[process.pid] = times.user + times.system
    return found


def _words(process: psutil.Process) -> str:
    """Its name, of an interpreter with what it runs."""
    command = process.cmdline()
    script = next((os.path.basename(word) for word in command[1:] if not word.startswith("-")), "")
    if "-c" in command[1:2]:
        script = "-c"  # and a whole program in one word
    name = process.name()
    return (
        f"{name} {script}" if script and name.startswith(("python", "bash", "sh", "node", "java")) else name
    )

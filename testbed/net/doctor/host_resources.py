"""Cores and memory that this process may use, and the processes that keep the host busy."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
NO_LIMIT_BYTES = 1 << 60  # cgroup v1 writes "no limit" as a number near 2**63


@dataclass(frozen=True)
class HostFacts:
    """Cores that this process may use, its CPU quota in cores (None: no quota), memory, kernel and architecture."""

    cores: int
    cpu_quota: float | None
    memory_total_bytes: int
    memory_available_bytes: int
    kernel: str
    machine: str


def host_facts() -> HostFacts:
    """Read the current facts of this host."""
    memory = psutil.virtual_memory()
    group = _find_own_groups()
    cpu, own_memory = group["cpu"], group["memory"]
    quota, _, period = _read(cpu / "cpu.max").partition(" ")
    if not period:
        quota, period = _read(cpu / "cpu.cfs_quota_us"), _read(cpu / "cpu.cfs_period_us")
    files = ("memory.max", "memory.current")
    if not (own_memory / files[0]).exists():
        files = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    left = parse_memory_left(*(_read(own_memory / name) for name in files))
    return HostFacts(
        cores=len(os.sched_getaffinity(0)),
        cpu_quota=parse_cpu_quota(quota, period),
        memory_total_bytes=memory.total,
        memory_available_bytes=memory.available if left is None else min(memory.available, left),
        kernel=platform.release(),
        machine=platform.machine(),
    )


def parse_cpu_quota(quota_us: str, period_us: str) -> float | None:
    """Parse a cgroup's CPU quota in cores; None without a limit, which is "max" in v2 and -1 in v1, or for ""."""
    return int(quota_us) / int(period_us) if quota_us.isdigit() and period_us.isdigit() else None


def parse_memory_left(limit: str, used: str) -> int | None:
    """Return the bytes left up to a cgroup's memory limit; None if it has no limit."""
    if not limit.isdigit() or not used.isdigit() or int(limit) >= NO_LIMIT_BYTES:
        return None
    return max(0, int(limit) - int(used))


def parse_own_groups(text: str, root: Path) -> dict[str, Path]:
    """Parse the folders of a process's cpu and memory cgroups from /proc/self/cgroup, those of v1 before that of v2."""
    unified = root
    found = {}
    for line in text.splitlines():
        _number, controllers, path = line.split(":", 2)
        if controllers == "":
            unified = root / path.lstrip("/")
        for controller in set(controllers.split(",")) & {"cpu", "memory"}:
            found[controller] = root / controller / path.lstrip("/")
    return {controller: found.get(controller, unified) for controller in ("cpu", "memory")}


def _find_own_groups() -> dict[str, Path]:
    groups = parse_own_groups(_read(Path("/proc/self/cgroup")), CGROUPS)
    # In a container with the host's cgroup namespace the path does not exist; its own group is the root of the mount.
    return {
        name: path if path.exists() else (CGROUPS / name if (CGROUPS / name).exists() else CGROUPS)
        for name, path in groups.items()
    }


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


SAMPLE_S = 0.5
MIN_BUSY_CORES = 0.05
MAX_LISTED = 3


@dataclass(frozen=True)
class BusyProcess:
    """A process and the number of cores that it uses."""

    pid: int
    name: str
    cores: float


def find_busiest(sample_s: float = SAMPLE_S) -> list[BusyProcess]:
    """Find the other processes that use most CPU time now, the busiest first; takes `sample_s`."""
    before = _read_cpu_times()
    time.sleep(sample_s)
    after = _read_cpu_times()
    found = []
    for pid, used_s in after.items():
        cores = (used_s - before.get(pid, used_s)) / sample_s
        if pid != os.getpid() and cores >= MIN_BUSY_CORES:
            with contextlib.suppress(psutil.Error):
                found.append(BusyProcess(pid, _describe_process(psutil.Process(pid)), cores))
    return sorted(found, key=lambda one: -one.cores)[:MAX_LISTED]


def describe_busy(found: Sequence[BusyProcess]) -> str:
    """Describe busy processes in a sentence; empty if there are none."""
    if not found:
        return ""
    each = ", ".join(f"{one.name} (process {one.pid}, {one.cores:.1f} cores)" for one in found)
    return f"Busy here at the moment: {each}."


def _read_cpu_times() -> dict[int, float]:
    processes = psutil.process_iter(["cpu_times"])
    times = {process.pid: process.info["cpu_times"] for process in processes}
    return {pid: own.user + own.system for pid, own in times.items() if own is not None}


def _describe_process(process: psutil.Process) -> str:
    """Return the name of a process; for an interpreter, also that of its script."""
    command = process.cmdline()
    script = next((os.path.basename(word) for word in command[1:] if not word.startswith("-")), "")
    if "-c" in command[1:2]:
        script = "-c"  # the next argument is the program's text
    name = process.name()
    is_interpreter = name.startswith(("python", "bash", "sh", "node", "java"))
    return f"{name} {script}" if script and is_interpreter else name

"""The machine's CPU use during a run: the watcher process, /proc/stat, and our own share."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from testbed.processes import close_pipes, wait_or_kill

WINDOW_S = 0.1
STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class MonitorWindow:
    """What happened on the machine from one moment to another.

    Per 100 ms window: `idle` shares of all cores' time; `steal` share over all. `lags_s` is every tick's lateness
    beyond 0.2 ms, `ticks` how many were due. `foreign` is the share of all cores' time that went to processes which are
    not the run's; None where the kernel does not tell.
    """

    idle: tuple[float, ...]
    steal: float
    lags_s: tuple[float, ...]
    ticks: int
    foreign: float | None = None

    def lag_percentile(self, share: float) -> float:
        """Lateness that `share` of the ticks kept to; ticks that were in time count as on the spot."""
        rank = int(share * self.ticks)
        late = sorted(self.lags_s)
        in_time = self.ticks - len(late)
        return 0.0 if rank < in_time else late[min(rank - in_time, len(late) - 1)]


def read_windows(path: Path, spans: list[tuple[float, float]]) -> MonitorWindow:
    """What the monitor saw within the given spans (CLOCK_MONOTONIC), put together."""
    entries = [
        entry
        for entry in map(json.loads, path.read_text().splitlines())
        if any(start <= entry["time_s"] and entry["time_s"] - entry["span_s"] <= end for start, end in spans)
    ]
    watched_s = sum(entry["span_s"] for entry in entries)
    foreign = None
    if entries and all("foreign" in entry for entry in entries):
        # single windows are a few percent off either way: the kernel counts the cores' time by ticks
        foreign = max(0.0, sum(entry["foreign"] * entry["span_s"] for entry in entries) / watched_s)
    return MonitorWindow(
        idle=tuple(entry["idle"] for entry in entries),
        steal=sum(entry["steal"] * entry["span_s"] for entry in entries) / watched_s if entries else 0.0,
        lags_s=tuple(lag for entry in entries for lag in entry["lags_s"]),
        ticks=sum(entry["ticks"] for entry in entries),
        foreign=foreign,
    )


class MonitorProcess:
    """The watcher, writing to `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> MonitorProcess:
        self.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it; returns once it watches."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "testbed.measure.fidelity.watcher", str(self.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def alive(self) -> bool:
        """Whether it still watches."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End it; harmless when it has ended."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        wait_or_kill(process, STOP_TIMEOUT_S)
        close_pipes(process)


_IDLE, _IOWAIT, _STEAL = 3, 4, 7


@dataclass(frozen=True)
class CpuShares:
    """Shares of all cores' time: idle, running processes (interrupts are neither), taken away by the hypervisor."""

    idle: float
    processes: float
    steal: float


@dataclass(frozen=True)
class CpuTimes:
    """Ticks of all cores together since boot: in all, idle, running processes, taken away by the hypervisor."""

    total: int
    idle: int
    processes: int
    steal: int

    def shares_since(self, before: CpuTimes) -> CpuShares:
        """How the time since an earlier reading was spent; idle when no tick has passed."""
        total = self.total - before.total
        if total <= 0:
            return CpuShares(idle=1.0, processes=0.0, steal=0.0)
        return CpuShares(
            idle=(self.idle - before.idle) / total,
            processes=(self.processes - before.processes) / total,
            steal=(self.steal - before.steal) / total,
        )


def parse_cpu_times(text: str) -> CpuTimes:
    """The first line of /proc/stat. ValueError for anything else."""
    name, *fields = text.split("\n", 1)[0].split()
    if name != "cpu":
        raise ValueError(f"/proc/stat: got {name!r} first, expected 'cpu'")
    ticks = [int(field) for field in fields[:8]]  # what follows (guests) is part of the first two
    return CpuTimes(
        total=sum(ticks),
        idle=ticks[_IDLE] + ticks[_IOWAIT],
        processes=sum(ticks[:_IDLE]),  # user, nice, system
        steal=ticks[_STEAL],
    )


def read_cpu_times() -> CpuTimes:
    """This machine's CPU times so far, from /proc/stat."""
    return parse_cpu_times(Path("/proc/stat").read_text())


SWITCH = "ovs-vswitchd"  # switches packets for the run without being one of its children
_LONGEST_LINE = 64


def parse_run_time(text: bytes) -> float:
    """Seconds that a process has run, from its schedstat. ValueError for anything else."""
    ran_ns, _waited_ns, _slices = text.split()
    return int(ran_ns) / 1e9


def run_times_kept() -> bool:
    """Whether this kernel counts them: without CONFIG_SCHED_INFO, or with it switched off, all is zero or missing."""
    try:
        return parse_run_time(Path("/proc/self/schedstat").read_bytes()) > 0
    except (OSError, ValueError):
        return False


def parse_process(text: bytes) -> tuple[str, int]:
    """(name, parent's process id) from a process's stat; names may hold blanks and brackets."""
    opening, closing = text.index(b"("), text.rindex(b")")
    return text[opening + 1 : closing].decode(errors="replace"), int(text[closing + 1 :].split()[1])


def family(root: int, processes: Iterable[tuple[int, str, int]]) -> set[int]:
    """`root`, everything below it, and the switch's daemon, out of (process id, name, parent's process id)."""
    children: dict[int, list[int]] = {}
    found = {root}
    for pid, name, parent in processes:
        children.setdefault(parent, []).append(pid)
        if name == SWITCH:
            found.add(pid)
    to_visit = [root]
    while to_visit:
        below = children.get(to_visit.pop(), [])
        found.update(below)
        to_visit += below
    return found


class OwnProcesses:
    """Follows the processes below `root`, through files kept open: a microsecond for each reading.

    Who they are is looked up in a thread. What the kernel tells of a stranger may have to wait for a lock that the
    stranger holds: for more than a second, where that one starts a program and gets hardly any time (SCHED_IDLE).
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._files: dict[int, int] = {}
        self._last_s: dict[int, float] = {}

    @contextlib.contextmanager
    def followed(self, every_s: float) -> Iterator[None]:
        """Within the block new ones are looked for so often."""
        over = threading.Event()

        def look() -> None:
            while not over.is_set():
                self.look_round()
                over.wait(every_s)

        # nobody waits for its end, which may have to wait, too
        threading.Thread(target=look, daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def look_round(self) -> None:
        """Follow those that have come since, too; their time counts from the next reading on."""
        for pid in family(self._root, _all_processes()):
            if pid not in self._files:
                with contextlib.suppress(OSError):  # it has ended already
                    self._files[pid] = os.open(f"/proc/{pid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def ran_s(self) -> float:
        """Seconds of core time that they took since the last call."""
        total_s = 0.0
        for pid, file in list(self._files.items()):
            try:
                now_s = parse_run_time(os.pread(file, _LONGEST_LINE, 0))
            except (OSError, ValueError):  # it has ended
                os.close(self._files.pop(pid))
                self._last_s.pop(pid, None)
                continue
            total_s += now_s - self._last_s.get(pid, now_s)
            self._last_s[pid] = now_s
        return total_s


def _all_processes() -> Iterator[tuple[int, str, int]]:
    """(process id, name, parent's process id) of every process there is."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
                yield (int(entry), *parse_process(file.read()))

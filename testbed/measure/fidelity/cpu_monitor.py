"""The host's CPU use during a run: the watcher process, the time of the cores, and the run's own share."""

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

import psutil

from testbed.processes import close_pipes, wait_or_kill

WINDOW_S = 0.1
STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class MonitorWindow:
    """The state of the host over some time.

    `idle` is the idle share of all cores per 100 ms window, and `steal` is the stolen share over all windows. `lags_s`
    is the lateness of every tick that is more than 0.2 ms late, and `ticks` is the number of ticks due. `foreign` is
    the share of all cores' time that processes outside the run use; None if the kernel does not report it.
    """

    idle: tuple[float, ...]
    steal: float
    lags_s: tuple[float, ...]
    ticks: int
    foreign: float | None = None

    def lag_percentile(self, share: float) -> float:
        """Return the lateness that `share` of the ticks did not exceed; ticks on time count as 0."""
        rank = int(share * self.ticks)
        late = sorted(self.lags_s)
        in_time = self.ticks - len(late)
        return 0.0 if rank < in_time else late[min(rank - in_time, len(late) - 1)]


def read_windows(path: Path, spans: list[tuple[float, float]]) -> MonitorWindow:
    """Return the monitor's readings within the given spans (CLOCK_MONOTONIC), merged into one window."""
    entries = [
        entry
        for entry in map(json.loads, path.read_text().splitlines())
        if any(start <= entry["time_s"] and entry["time_s"] - entry["span_s"] <= end for start, end in spans)
    ]
    watched_s = sum(entry["span_s"] for entry in entries)
    foreign = None
    if entries and all("foreign" in entry for entry in entries):
        # the kernel accounts the cores' time in ticks, so single windows have errors of a few percent
        foreign = max(0.0, sum(entry["foreign"] * entry["span_s"] for entry in entries) / watched_s)
    return MonitorWindow(
        idle=tuple(entry["idle"] for entry in entries),
        steal=sum(entry["steal"] * entry["span_s"] for entry in entries) / watched_s if entries else 0.0,
        lags_s=tuple(lag for entry in entries for lag in entry["lags_s"]),
        ticks=sum(entry["ticks"] for entry in entries),
        foreign=foreign,
    )


class MonitorProcess:
    """The host monitor's process, which writes to `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> MonitorProcess:
        self.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the monitor and return once it is running."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "testbed.measure.fidelity.watcher", str(self.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def alive(self) -> bool:
        """Return whether the monitor is still running."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Stop the monitor if it is running."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        wait_or_kill(process, STOP_TIMEOUT_S)
        close_pipes(process)


@dataclass(frozen=True)
class CpuTimes:
    """CPU seconds of all cores together since boot: total, idle, in processes, and stolen by the hypervisor."""

    total: float
    idle: float
    processes: float
    steal: float

    @classmethod
    def read(cls) -> CpuTimes:
        """Return this host's CPU times; interrupts count as neither idle nor in processes."""
        own = psutil.cpu_times()
        idle, processes = own.idle + own.iowait, own.user + own.nice + own.system
        # the time of guests is included in `user` and `nice`
        return cls(idle + processes + own.irq + own.softirq + own.steal, idle, processes, own.steal)

    def shares_since(self, before: CpuTimes) -> CpuTimes:
        """Return the shares of the time since an earlier reading; all idle if no time has passed."""
        total = self.total - before.total
        if total <= 0:
            return CpuTimes(1.0, 1.0, 0.0, 0.0)
        spent = (
            (getattr(self, name) - getattr(before, name)) / total for name in ("idle", "processes", "steal")
        )
        return CpuTimes(1.0, *spent)


SWITCH = "ovs-vswitchd"  # works for the run but is not its child
_LONGEST_LINE = 64


def parse_run_time(text: bytes) -> float:
    """Return the seconds of CPU time of a process from its schedstat; raise ValueError for any other text."""
    ran_ns, _waited_ns, _slices = text.split()
    return int(ran_ns) / 1e9


def has_run_times() -> bool:
    """Return whether this kernel records run times; without CONFIG_SCHED_INFO they are zero or missing."""
    try:
        return parse_run_time(Path("/proc/self/schedstat").read_bytes()) > 0
    except (OSError, ValueError):
        return False


def parse_process(text: bytes) -> tuple[str, int]:
    """Return the name and parent process id from a process's stat; names may contain blanks and brackets."""
    opening, closing = text.index(b"("), text.rindex(b")")
    return text[opening + 1 : closing].decode(errors="replace"), int(text[closing + 1 :].split()[1])


def process_family(root: int, processes: Iterable[tuple[int, str, int]]) -> set[int]:
    """Return `root`, its descendants and the switch's daemon from a list of (process id, name, parent process id)."""
    children: dict[int, list[int]] = {}
    found = {root}
    for pid, name, parent in processes:
        children.setdefault(parent, []).append(pid)
        if name == SWITCH:
            found.add(pid)
    to_visit = [root]
    while to_visit:
        descendants = children.get(to_visit.pop(), [])
        found.update(descendants)
        to_visit += descendants
    return found


class OwnProcesses:
    """CPU time of `root` and its descendants, read from schedstat files that stay open (about 1 us per process).

    A separate thread looks for new processes, because reading /proc of a foreign process can block on a lock which that
    process holds. This takes more than a second if that process is in execve and gets hardly any CPU time (SCHED_IDLE).
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._files: dict[int, int] = {}
        self._last_s: dict[int, float] = {}

    @contextlib.contextmanager
    def refreshed(self, every_s: float) -> Iterator[None]:
        """Look for new processes every `every_s` seconds within the block."""
        stop = threading.Event()

        def run() -> None:
            while not stop.is_set():
                self.refresh()
                stop.wait(every_s)

        # the thread is not joined, since it may be blocked
        threading.Thread(target=run, daemon=True).start()
        try:
            yield
        finally:
            stop.set()

    def refresh(self) -> None:
        """Add new processes; their time counts from the next reading onwards."""
        for pid in process_family(self._root, _all_processes()):
            if pid not in self._files:
                with contextlib.suppress(OSError):  # the process has already ended
                    self._files[pid] = os.open(f"/proc/{pid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def ran_s(self) -> float:
        """Return the seconds of CPU time that the processes used since the last call."""
        total_s = 0.0
        for pid, file in list(self._files.items()):
            try:
                now_s = parse_run_time(os.pread(file, _LONGEST_LINE, 0))
            except (OSError, ValueError):  # the process has ended
                os.close(self._files.pop(pid))
                self._last_s.pop(pid, None)
                continue
            total_s += now_s - self._last_s.get(pid, now_s)
            self._last_s[pid] = now_s
        return total_s


def _all_processes() -> Iterator[tuple[int, str, int]]:
    """Yield (process id, name, parent process id) of every process."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
                yield (int(entry), *parse_process(file.read()))

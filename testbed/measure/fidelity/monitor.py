"""The machine while a run is measured: starts and stops the watcher's process, and reads what it wrote."""

from __future__ import annotations

import json
import subprocess
import sys
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

"""The machine while a run is measured: starts and stops the watcher's process, and reads what it wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from testbed.links.process import close_pipes, wait_or_kill

WINDOW_S = 0.1
STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class MonitorWindow:
    """What happened on the machine from one moment to another.

    Per 100 ms window: `idle` shares of all cores' time; `steal` share over all. `lags_s` is every tick's lateness
    beyond 0.2 ms, `ticks` how many there were.
    """

    idle: tuple[float, ...]
    steal: float
    lags_s: tuple[float, ...]
    ticks: int

    def lag_percentile(self, share: float) -> float:
        """Lateness that `share` of the ticks kept to; ticks that were in time count as on the spot."""
        rank = int(share * self.ticks)
        late = sorted(self.lags_s)
        in_time = self.ticks - len(late)
        return 0.0 if rank < in_time else late[min(rank - in_time, len(late) - 1)]


def read_windows(path: Path, spans: list[tuple[float, float]]) -> MonitorWindow:
    """What the monitor saw within the given spans (CLOCK_MONOTONIC), put together."""
    idle: list[float] = []
    lags: list[float] = []
    steal = ticks = 0.0
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if any(start <= entry["time_s"] and entry["time_s"] - WINDOW_S <= end for start, end in spans):
            idle.append(entry["idle"])
            lags += entry["lags_s"]
            steal += entry["steal"]
            ticks += entry["ticks"]
    return MonitorWindow(tuple(idle), steal / len(idle) if idle else 0.0, tuple(lags), int(ticks))


class MonitorProcess:
    """The watcher, writing to `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; returns once it watches."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "testbed.fidelity.watcher", str(self.path)],
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

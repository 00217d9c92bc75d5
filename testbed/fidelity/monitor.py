"""Watches the machine while a run is measured: `python -m testbed.fidelity.monitor FILE`.

A ticker that wants to wake a thousand times a second notes how late it does (what the ranks feel, so it has no priority
of its own); every 100 ms a line goes to the file with that, and with the share of time in which the cores were idle.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from testbed.fidelity.cputime import CpuTimes, read_cpu_times
from testbed.links.process import end_with_parent

TICK_S = 0.001
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


IN_TIME_S = 0.0002


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
    """The monitor, writing to `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; returns once it watches."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "testbed.fidelity.monitor", str(self.path)],
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
        try:
            process.communicate(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def watch(path: Path) -> None:
    """Watch until SIGTERM."""
    before: CpuTimes = read_cpu_times()
    next_tick = time.monotonic() + TICK_S
    window_end = time.monotonic() + WINDOW_S
    lags: list[float] = []
    ticks = 0
    with path.open("w", buffering=1) as output:
        while True:
            time.sleep(max(0.0, next_tick - time.monotonic()))
            now = time.monotonic()
            lag = now - next_tick
            ticks += 1
            if lag > IN_TIME_S:
                lags.append(round(lag, 6))
            next_tick = max(next_tick + TICK_S, now)
            if now >= window_end:
                after = read_cpu_times()
                idle, steal = after.shares_since(before)
                entry = {"time_s": now, "idle": idle, "steal": steal, "ticks": ticks, "lags_s": lags}
                output.write(json.dumps(entry) + "\n")
                before, lags, ticks = after, [], 0
                window_end = now + WINDOW_S


def main() -> None:
    """Write to the file given as the first argument."""
    end_with_parent(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run stops us in good order
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    print("watching", flush=True)
    with contextlib.suppress(FileNotFoundError):  # the run directory was discarded under us
        watch(Path(sys.argv[1]))


if __name__ == "__main__":
    main()

"""Watches the machine while a run is measured: `python -m testbed.fidelity.watcher FILE`.

A ticker that wants to wake a thousand times a second notes how late it does (what the ranks feel, so it has no priority
of its own); every 100 ms a line goes to the file with that, and with the share of time in which the cores were idle.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from pathlib import Path

from testbed.fidelity.cputime import CpuTimes, read_cpu_times
from testbed.fidelity.monitor import WINDOW_S
from testbed.links.process import end_with_parent

TICK_S = 0.001
IN_TIME_S = 0.0002  # lateness below this is the timer's own and not written down


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

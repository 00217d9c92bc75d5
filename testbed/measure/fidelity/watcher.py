"""The host monitor of a run, in a separate process: `python -m testbed.measure.fidelity.watcher FILE`.

A ticker wakes up 500 times a second and records how late each wake-up is. It has normal priority, so it sees the same
delays as the ranks. Every 100 ms it writes a line with the lateness, how the cores spent their time, and how much of
that time processes outside the run used. The run is the parent process and all its descendants.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from testbed.measure.fidelity.cpu_monitor import WINDOW_S, CpuTimes, OwnProcesses, has_run_times
from testbed.processes import set_parent_death_signal

TICK_S = 0.002  # each tick costs about 30 us of a core: twice the frequency would take 3 % of a core
IN_TIME_S = 0.0002  # lateness below this is timer noise and is not recorded
REFRESH_S = 1.0
CORES = os.cpu_count() or 1


def late_ticks(lag_s: float) -> list[float]:
    """Return the lateness of every tick that was due when one wake-up came `lag_s` late.

    A stall of 20 ms delays many ticks. If it counted as one late tick, long stalls would look better than short ones.
    """
    return [round(lag_s - number * TICK_S, 6) for number in range(int(lag_s / TICK_S) + 1)]


def watch(path: Path, stop: threading.Event) -> None:
    """Write a line per window until `stop` is set; the window in progress is completed first."""
    own = OwnProcesses(os.getppid()) if has_run_times() else None
    before, window_start = CpuTimes.read(), time.monotonic()
    next_tick = window_start + TICK_S
    lags: list[float] = []
    ticks = 0
    refreshing = own.refreshed(REFRESH_S) if own else contextlib.nullcontext()
    with refreshing, path.open("w", buffering=1) as output:
        while True:
            time.sleep(max(0.0, next_tick - time.monotonic()))
            now = time.monotonic()
            lag = now - next_tick
            next_tick += TICK_S
            ticks += 1
            if lag > IN_TIME_S:
                late = late_ticks(lag)
                lags += late
                next_tick += (len(late) - 1) * TICK_S
                ticks += len(late) - 1
            if now < window_start + WINDOW_S:
                if stop.is_set():
                    return
                continue
            after = CpuTimes.read()
            shares = after.shares_since(before)
            span_s = now - window_start
            entry = {
                "time_s": now,
                "span_s": span_s,
                "idle": shares.idle,
                "steal": shares.steal,
                "ticks": ticks,
                "lags_s": lags,
            }
            if own is not None:
                entry["foreign"] = shares.processes - own.ran_s() / (span_s * CORES)
            output.write(json.dumps(entry) + "\n")
            before, window_start, lags, ticks = after, now, [], 0


def main() -> None:
    """Monitor the host into the file given as the first argument, until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    set_parent_death_signal(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run stops the monitor itself, with SIGTERM
    print("watching", flush=True)
    with contextlib.suppress(FileNotFoundError):  # the run directory was removed in the meantime
        watch(Path(sys.argv[1]), stop)


if __name__ == "__main__":
    main()

"""Watches the machine while a run is measured: `python -m testbed.measure.fidelity.watcher FILE`.

A ticker that wants to wake five hundred times a second notes how late it does (what the ranks feel, so it has no
priority of its own). Every 100 ms a line goes to the file with that, with how the cores spent their time, and with how
much of it went to processes that are not the run's. The run is whoever started us, with all its children.
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

from testbed.measure.fidelity.cpu_monitor import WINDOW_S, OwnProcesses, read_cpu_times, run_times_kept
from testbed.processes import set_parent_death_signal

TICK_S = 0.002  # each costs some 30 us of a core: twice as often would take three percent of it
IN_TIME_S = 0.0002  # lateness below this is the timer's own and not written down
LOOK_ROUND_S = 1.0
CORES = os.cpu_count() or 1


def late_ticks(lag_s: float) -> list[float]:
    """Lateness of every tick that was due by the time one wake-up came, which was `lag_s` late.

    A stall of 20 ms is many ticks that did not happen in time. Counting it as one would make a machine look the better
    the longer its stalls are.
    """
    return [round(lag_s - number * TICK_S, 6) for number in range(int(lag_s / TICK_S) + 1)]


def watch(path: Path, told: threading.Event) -> None:
    """Watch until told to end; what kept us waiting until just then is still written down."""
    own = OwnProcesses(os.getppid()) if run_times_kept() else None
    before, window_start = read_cpu_times(), time.monotonic()
    next_tick = window_start + TICK_S
    lags: list[float] = []
    ticks = 0
    following = own.followed(LOOK_ROUND_S) if own else contextlib.nullcontext()
    with following, path.open("w", buffering=1) as output:
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
                if told.is_set():
                    return
                continue
            after = read_cpu_times()
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
    """Write to the file given as the first argument."""
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: told.set())
    set_parent_death_signal(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run stops us in good order
    print("watching", flush=True)
    with contextlib.suppress(FileNotFoundError):  # the run directory was discarded under us
        watch(Path(sys.argv[1]), told)


if __name__ == "__main__":
    main()

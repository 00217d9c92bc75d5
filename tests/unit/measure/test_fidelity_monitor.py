"""The watcher's process, from its start to its end."""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from testbed.measure.fidelity.cpu_monitor import MonitorProcess, read_windows

STALL_S = 0.4


def test_what_kept_the_watcher_waiting_until_it_was_stopped_is_written_down(tmp_path: Path) -> None:
    path = tmp_path / "watched.jsonl"
    monitor = MonitorProcess(path)
    monitor.start()
    (watcher,) = (child for child in psutil.Process().children() if str(path) in child.cmdline())
    try:
        while not path.exists() or not path.read_text():
            assert monitor.alive()
            time.sleep(0.01)
        watcher.suspend()
        from_s = time.monotonic()
        time.sleep(STALL_S)
        watcher.terminate()
    finally:
        watcher.resume()  # the machine goes on just when the run is over
        monitor.stop()
    window = read_windows(path, [(from_s, time.monotonic())])
    assert len(window.idle) == 1
    assert max(window.lags_s) > STALL_S - 0.01
    assert not watcher.is_running()

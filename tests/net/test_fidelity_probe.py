"""The probe measures what a link really does, and the watcher feels a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testbed.config import Building, Direction, Topology, WanLink, probe_address
from testbed.fidelity import MonitorProcess, measure_links, read_windows
from testbed.links.command import run_script
from testbed.links.shaping import Shape, shape_commands
from tests.net.namespaces import namespaces

pytestmark = pytest.mark.net


@pytest.mark.parametrize("rate_bps", [2e6, 50e6, 400e6])
def test_the_probe_measures_each_directions_own_rate(rate_bps: float) -> None:
    forth = Direction(rate_bps, 0.0, 0.0, 0.0, queue_bytes=600_000)
    back = Direction(rate_bps / 2, 0.0, 0.0, 0.0, queue_bytes=600_000)
    link = WanLink("left", "right", 0, forth, back)
    topology = Topology("pair", 9000, (Building("left", 0, ()), Building("right", 1, ())), (link,))
    a, b = probe_address(0, "a"), probe_address(0, "b")
    with namespaces(2) as (left, right):
        run_script(
            left.pid,
            [
                f"ip link add eth0 mtu 9000 type veth peer name eth0 mtu 9000 netns {right.pid}",
                "ethtool -K eth0 tx off tso off gso off gro off",
                f"ip address add {a} peer {b} dev eth0",
                "ip link set eth0 up",
                *shape_commands("eth0", Shape(forth.rate_bps, forth.queue_bytes), 9000),
            ],
        )
        run_script(
            right.pid,
            [
                "ethtool -K eth0 tx off tso off gso off gro off",
                f"ip address add {b} peer {a} dev eth0",
                "ip link set eth0 up",
                *shape_commands("eth0", Shape(back.rate_bps, back.queue_bytes), 9000),
            ],
        )
        found = measure_links(topology, {"left": left.pid, "right": right.pid})
    assert [entry.direction for entry in found] == ["a_to_b", "b_to_a"]
    for entry in found:
        assert entry.rate_bps == pytest.approx(entry.asked.rate_bps, rel=0.03)
        assert 0 < entry.delay_s < 0.001
        assert entry.lost == 0


def test_the_watcher_feels_somebody_elses_work(tmp_path: Path) -> None:
    watcher = MonitorProcess(tmp_path / "monitor.jsonl")
    watcher.start()
    hogs = []
    try:
        time.sleep(0.5)
        busy_from_s = time.monotonic()
        hogs = [
            subprocess.Popen([sys.executable, "-c", "import os\nwhile os.getppid() > 1: pass"])
            for _ in range(os.cpu_count() or 1)
        ]
        time.sleep(1.5)
        busy_to_s = time.monotonic()
        assert watcher.alive()
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
        watcher.stop()
    busy = read_windows(watcher.path, [(busy_from_s + 0.4, busy_to_s - 0.2)])
    assert len(busy.idle) >= 8
    assert max(busy.idle) < 0.05
    assert not watcher.alive()

"""The probe measures what a link really does, and the watcher feels a busy machine."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import pytest

from testbed.measure.fidelity import probe
from testbed.measure.fidelity.cpu_monitor import MonitorProcess, MonitorWindow, read_windows
from testbed.measure.fidelity.invariants import cpu_headroom, delay_accuracy, foreign_load, rate_accuracy
from testbed.measure.fidelity.probe import LinkMeasurement, measure_links
from testbed.net.links.netns import run_script
from testbed.net.links.packet_sockets import probe_transmission_s
from testbed.net.links.setup import Setup
from testbed.net.links.shaping import Shape, shape_commands
from testbed.spec.buildings import Building
from testbed.spec.link_direction import Direction
from testbed.spec.links import WanLink
from testbed.spec.topology import Topology, probe_address
from tests.net.namespaces import namespaces

pytestmark = [pytest.mark.net, pytest.mark.quiet]
_fork = multiprocessing.get_context("fork")


MTU = 9000
PAUSED_AT = 150  # milliseconds of the blast


def probed(asked: tuple[Direction, Direction], set_bps: tuple[float, float]) -> list[LinkMeasurement]:
    """What the probe makes of a link without delay whose directions are really set to `set_bps`."""
    link = WanLink("left", "right", 0, *asked)
    topology = Topology("pair", MTU, (Building("left", 0, ()), Building("right", 1, ())), (link,))
    a, b = probe_address(0, "a"), probe_address(0, "b")
    with namespaces(2) as (left, right):
        pair = f"ip link add eth0 mtu {MTU} type veth peer name eth0 mtu {MTU} netns {right.pid}"
        for end, here, there, first, rate_bps in (
            (left, a, b, [pair], set_bps[0]),
            (right, b, a, [], set_bps[1]),
        ):
            commands = [
                *first,
                "ethtool -K eth0 tx off tso off gso off gro off",
                f"ip address add {here} peer {there} dev eth0",
                "ip link set eth0 up",
            ]
            run_script(end.pid, commands)
            shape = Shape(rate_bps, asked[0].queue_bytes)
            Setup(tc=shape_commands("eth0", shape, MTU)).apply(end.pid)
        return measure_links(topology, {"left": left.pid, "right": right.pid})


def direction(rate_bps: float) -> Direction:
    """Without delay, with room for a few dozen jumbo frames."""
    return Direction(rate_bps, 0.0, 0.0, 0.0, queue_bytes=600_000)


@pytest.mark.parametrize("rate_bps", [1e6, 50e6, 400e6, 1e9])
def test_the_probe_measures_each_directions_own_rate(rate_bps: float) -> None:
    found = probed((direction(rate_bps), direction(rate_bps / 2)), (rate_bps, rate_bps / 2))
    assert [entry.direction for entry in found] == ["a_to_b", "b_to_a"]
    for entry in found:
        assert entry.rate_bps == pytest.approx(entry.asked.rate_bps, rel=0.03)
        # this link takes no time for a frame, which is taken off all the same
        assert 0 <= entry.delay_s + probe_transmission_s(entry.asked.rate_bps) < 0.001
        assert entry.lost == 0
    assert rate_accuracy(found).ok is True
    # where a frame should have taken longer than half a millisecond, a link on which it takes nothing is found out
    assert delay_accuracy(found).ok is (probe_transmission_s(rate_bps / 2) < 0.0005)


def test_a_pause_while_probing_does_not_make_a_fast_link_look_right(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = itertools.count()

    def sleep(seconds: float) -> None:
        time.sleep(0.045 if next(calls) == PAUSED_AT else seconds)

    monkeypatch.setattr(probe, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    found = probed((direction(50e6), direction(50e6)), (53.5e6, 53.5e6))
    assert next(calls) > PAUSED_AT  # the blast was long enough to be interrupted
    assert found[0].rate_bps == pytest.approx(53.5e6, rel=0.03)


@pytest.mark.parametrize("off", [0.9, 1.07])
def test_the_probe_finds_a_rate_that_is_not_what_was_asked(off: float) -> None:
    asked = direction(50e6)
    found = probed((asked, asked), (50e6, off * 50e6))
    assert found[1].rate_bps == pytest.approx(off * 50e6, rel=0.03)
    verdict = rate_accuracy(found)
    assert verdict.ok is False
    assert verdict.severity == "untrusted"
    assert "right to left, plane 0" in verdict.sentence


def watched_run(path: Path, own_hogs: int, pipe: Connection) -> None:
    """A run, as far as the watcher is concerned: what this process starts is the run's. Ends when told to."""
    monitor = MonitorProcess(path)
    monitor.start()
    with spinning(own_hogs):
        pipe.send(monitor.alive())
        pipe.recv()
    monitor.stop()
    pipe.send(monitor.alive())


@contextlib.contextmanager
def spinning(count: int) -> Iterator[None]:
    """`count` processes that never rest; they end with whoever started them."""
    code = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
    hogs = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def watched(path: Path, own_hogs: int, foreign_hogs: int) -> MonitorWindow:
    """What the watcher makes of a run with hogs of its own and of somebody else's beside it."""
    ours, theirs = _fork.Pipe()
    run = _fork.Process(target=watched_run, args=(path, own_hogs, theirs))
    run.start()
    try:
        with spinning(foreign_hogs):
            assert ours.recv() is True
            # by windows of the watcher's: a busy machine may keep it waiting for a second and more
            from_s = when_written(path, 13)  # it looks for new processes every ten
            to_s = when_written(path, 28)
            ours.send(None)
            assert ours.recv() is False
    finally:
        run.join(5)
        run.kill()
        run.join()
    return read_windows(path, [(from_s, to_s)])


def when_written(path: Path, windows: int) -> float:
    """The moment at which the watcher has written so many; AssertionError if that takes half a minute."""
    until_s = time.monotonic() + 30.0
    while not path.exists() or len(path.read_text().splitlines()) < windows:
        assert time.monotonic() < until_s
        time.sleep(0.02)
    return time.monotonic()


@pytest.mark.real_clock("a program that spins is no load where computing takes no time")
def test_the_watcher_tells_somebody_elses_work_from_the_runs(tmp_path: Path) -> None:
    cores = os.cpu_count() or 1
    foreign = watched(tmp_path / "foreign.jsonl", own_hogs=0, foreign_hogs=cores)
    own = watched(tmp_path / "own.jsonl", own_hogs=cores, foreign_hogs=0)
    for window in (foreign, own):
        assert len(window.idle) >= 10
        assert sum(window.idle) < 0.05 * len(window.idle)
        assert cpu_headroom(window).severity == "untrusted"
        assert window.ticks > 500  # 750 were due; a busy machine may have kept the watcher itself waiting
    assert foreign.foreign is not None
    assert own.foreign is not None
    assert foreign.foreign > 0.7
    assert own.foreign < foreign.foreign - 0.2  # other people may be at work here meanwhile
    assert foreign_load(foreign).severity == "untrusted"

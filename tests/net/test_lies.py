"""Planted distortions must turn the verdict, and the right invariant must name them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.net.fabric.fabric_state import FabricState, load_all
from testbed.net.fabric.running_fabric import engine_of
from testbed.net.links.netns import run_script
from tests.net.runs import SMALLER, end, owned, run_testbed, start, wait_for_words, write_scenario

pytestmark = [
    pytest.mark.net,
    pytest.mark.real_clock("lies are planted while the testbed is not looking, from another process"),
]

TRIALS = 3
OPTIONS = ("--link-engine", "userspace", *SMALLER)


def change(state: FabricState, **settings: Any) -> None:
    """Set every WAN direction of the userspace engine, as nobody is supposed to during a run."""
    now = engine_of(state).settings()
    engine_of(state).change(
        {key: dataclasses.replace(direction, **settings) for key, direction in now.items()}
    )


def lengthen_delay(state: FabricState, run: subprocess.Popen[str]) -> None:
    change(state, delay_s=0.012)


def halve_rate(state: FabricState, run: subprocess.Popen[str]) -> None:
    now = engine_of(state).settings()
    halved = {
        key: dataclasses.replace(direction, rate_bps=direction.rate_bps / 2) for key, direction in now.items()
    }
    engine_of(state).change(halved)


def lose_a_hundredth(state: FabricState, run: subprocess.Popen[str]) -> None:
    change(state, loss=0.01)


def drop_for_a_while(state: FabricState, run: subprocess.Popen[str]) -> None:
    change(state, loss=1.0)
    time.sleep(0.2)
    change(state, loss=0.0)


def stop_the_engine(state: FabricState, run: subprocess.Popen[str]) -> None:
    (engine,) = owned(run, "testbed.net.links.emulator")
    for _ in range(4):  # some of it hits a step, and not only the checks between two
        engine.send_signal(signal.SIGSTOP)
        time.sleep(0.8)
        engine.send_signal(signal.SIGCONT)
        time.sleep(0.2)


def switch_an_offload_on(state: FabricState, run: subprocess.Popen[str]) -> None:
    run_script(state.pids["north1"], ["ethtool -K eth0 gro on"])


def take_a_rule_away(state: FabricState, run: subprocess.Popen[str]) -> None:
    run_script(None, [f"ovs-ofctl -O OpenFlow13 del-flows {state.prefix}e0 ip,nw_dst=10.1.0.0/16"])


@pytest.mark.parametrize(
    ("lie", "moment", "names"),
    [
        (lengthen_delay, "step", {"settings_in_force"}),
        (halve_rate, "step", {"settings_in_force"}),
        (halve_rate, "measuring", {"rate_accuracy", "settings_in_force"}),
        (lose_a_hundredth, "step", {"loss_accuracy", "settings_in_force"}),
        (drop_for_a_while, "step", {"loss_accuracy"}),
        (stop_the_engine, "step 2", {"emulator_stalls"}),
        (switch_an_offload_on, "step", {"offload_state", "nothing_changed"}),
        (take_a_rule_away, "step", {"rules_in_force", "nothing_changed"}),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_a_lie_is_detected_and_named(
    lie: Callable[[FabricState, subprocess.Popen[str]], None], moment: str, names: set[str], tmp_path: Path
) -> None:
    run, said = start(tmp_path, trials=TRIALS, more=OPTIONS)
    try:
        wait_for_words(run, said, moment)
        lie(next(state for state in load_all() if state.owner_pid == run.pid), run)
        assert run.wait(100) == 3, "".join(said)
    finally:
        end(run)
    assert_named(json.loads((tmp_path / "out/summary.json").read_text()), names)


def assert_named(summary: dict[str, Any], names: set[str]) -> None:
    """At least one variant is not trusted, and these invariants do not hold there."""
    caught = [
        {entry["name"] for entry in variant["verdict"]["invariants"] if entry["ok"] is False}
        for variant in summary["variants"]
        if variant["verdict"]["status"] != "trusted"
    ]
    assert any(names <= failed for failed in caught), caught


WRONG_RANK = """
import sys
if "testbed.measure.ranks.launcher" in sys.orig_argv:
    import testbed.comm.collectives
    honest = testbed.comm.collectives.fill
    def fill(array, rank, salt=0, op="sum"):
        honest(array, rank, salt, op)
        if rank == 1:
            array[array.size // 2] += 1
    testbed.comm.collectives.fill = fill
"""


def test_a_rank_with_a_wrong_sum_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lie").mkdir()
    (tmp_path / "lie/sitecustomize.py").write_text(WRONG_RANK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lie"))
    done = run_testbed("run", write_scenario(tmp_path), "--output", tmp_path / "out", "--json", *SMALLER)
    assert done.returncode == 3, done.stderr
    summary = json.loads(done.stdout)
    assert_named(summary, {"payload_correct"})
    assert summary["status"] == "untrusted"


@contextlib.contextmanager
def busy_cores(programs: int) -> Iterator[None]:
    """Somebody else's work on every core."""
    hogs = [
        subprocess.Popen([sys.executable, "-c", "import os\nwhile os.getppid() > 1: pass"])
        for _ in range(programs * (os.cpu_count() or 1))
    ]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


@pytest.mark.quiet
def test_a_busy_machine_turns_the_verdict(tmp_path: Path) -> None:
    """The step time may or may not suffer, the verdict must."""
    with busy_cores(1):
        done = run_testbed("run", write_scenario(tmp_path), "--output", tmp_path / "out", "--json", *SMALLER)
    assert done.returncode in (0, 3), done.stderr
    summary = json.loads(done.stdout)
    for variant in summary["variants"]:
        headroom = next(e for e in variant["verdict"]["invariants"] if e["name"] == "cpu_headroom")
        assert headroom["ok"] is False
        assert variant["verdict"]["status"] != "trusted"


@pytest.mark.quiet
def test_an_untrusted_run_is_repeated_with_more_dilation_and_its_figures_withheld(tmp_path: Path) -> None:
    options = ("--strict", "--retry-dilated", 2, "--json", *SMALLER)
    with busy_cores(4):
        done = run_testbed("run", write_scenario(tmp_path), "--output", tmp_path / "out", *options)
    assert done.returncode == 3, done.stderr
    said = " ".join(done.stderr.split())
    assert re.search(r"untrusted \(cpu_headroom.*\): repeating, time stretched 2 times", said), said
    assert "its figures are not reported. --clock virtual gives exact ones" in said
    shown = json.loads(done.stdout)
    assert shown["scale"]["time_dilation"] == 2
    assert set(shown["variants"][0]) == {"name", "verdict"}
    assert not (tmp_path / "out/report.html").exists()

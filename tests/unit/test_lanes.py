"""`make test` as a whole: which lanes run when, what is said of them, and that none outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.lanes import Outcome, results, shares_by_session, summary

ROOT = Path(__file__).parents[2]
REPORT = """\
<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" errors="1" failures="1" skipped="2" tests="5">
<testcase classname="a" name="one"/><testcase classname="a" name="two"><failure message="no">no</failure></testcase>
<testcase classname="a" name="three"><skipped type="pytest.skip" message="no netem">a.py:1</skipped></testcase>
<testcase classname="a" name="four"><skipped type="pytest.skip" message="no netem">a.py:1: no netem</skipped></testcase>
<testcase classname="a" name="five"><error message="left behind">left</error></testcase>
</testsuite></testsuites>
"""
MAKEFILE = """\
lint unit net-shared net-quiet test-machines:
	@echo begin $@ >>log; {front}; echo end $@ >>log
test-virtual:
	@echo begin $@ >>log; echo $$$$ >pid; {back}; echo virtual says its piece; echo end $@ >>log
"""
PROGRAM = """
import sys, pathlib, tests.lanes as lanes
lanes.REPOSITORY = pathlib.Path(sys.argv[1])
lanes.has_sshd = lambda: sys.argv[2] == "sshd"
sys.exit(lanes.main())
"""


def test_a_report_tells_what_passed_and_why_something_did_not_run(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    assert results(tmp_path / "report.xml") == (1, ("no netem", "no netem"))
    assert results(tmp_path / "none.xml") == (0, ())
    (tmp_path / "half.xml").write_text(REPORT[:200])  # its pytest was killed
    assert results(tmp_path / "half.xml") == (0, ())


def test_the_summary_has_each_lanes_time_and_each_reason_once() -> None:
    outcomes = [
        Outcome("unit", 0, 61.2, 1200, ("slow",)),
        Outcome("net-shared", 2, 400.4, 118, ("no netem", "no netem")),
    ]
    said = summary(outcomes, 500.0, {"net-quiet": "stopped by signal 2"})
    for words in (
        "  unit              61 s, 1200 passed, 1 skipped\n",
        "  net-shared       400 s, 118 passed, 2 skipped, FAILED with status 2\n",
        "  together         500 s\n",
        "  net-quiet      did not run: stopped by signal 2\n",
        "  net-shared: 2 of them: no netem\n",
        "left to `make test-all`",
    ):
        assert words in said
    assert "skipped: nothing" in summary([], 1.0)


@pytest.mark.parametrize(
    ("groups", "autogroup", "expected"),
    [
        ("1:cpu:/\n0::/\n", "1\n", True),
        ("4:cpu,cpuacct:/\n0::/\n", "1\n", True),
        ("1:cpu:/docker/4711\n", "1\n", False),
        ("0::/\n", "1\n", True),
        ("0::/user.slice/user-0.slice\n", "1\n", False),
        ("1:cpu:/\n", "0\n", False),
        ("1:cpu:/\n", None, False),
    ],
)
def test_sessions_share_cores_only_outside_control_groups(
    groups: str, autogroup: str | None, expected: bool
) -> None:
    assert shares_by_session(groups, autogroup) is expected


def start(folder: Path, front: str, back: str, has: str = "sshd") -> subprocess.Popen[str]:
    (folder / "Makefile").write_text(MAKEFILE.format(front=front, back=back))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MAKEFLAGS": ""}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), has],
        env=environment,
        stdout=pipe,
        text=True,
        start_new_session=True,
    )


def test_guests_come_after_lint_and_unit_and_what_they_say_is_in_one_piece(tmp_path: Path) -> None:
    running = start(tmp_path, "echo $@ said", "sleep 0.3")
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 0, said
    log = (tmp_path / "log").read_text().splitlines()
    assert len(log) == 12
    front = [line for line in log if "virtual" not in line]
    lanes = ("lint", "unit", "net-shared", "net-quiet", "test-machines")
    assert front == [f"{what} {lane}" for lane in lanes for what in ("begin", "end")]
    assert log.index("begin test-virtual") > log.index("end unit")
    assert "==> test-virtual said:\nvirtual says its piece\n" in said
    assert "net-shared said" in said


def test_one_that_fails_fails_all_and_the_others_run_all_the_same(tmp_path: Path) -> None:
    running = start(tmp_path, "[ $@ != net-shared ] || exit 3", "true")
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 1
    assert "end test-machines" in (tmp_path / "log").read_text()
    assert "net-shared         0 s, FAILED with status 2" in said


def test_without_an_ssh_server_machines_are_left_out_with_the_reason(tmp_path: Path) -> None:
    running = start(tmp_path, "true", "true", has="nothing")
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 0
    assert "test-machines" not in (tmp_path / "log").read_text()
    assert "  test-machines  did not run: there is no SSH server here" in said


@pytest.mark.parametrize(
    ("number", "whole_group"),
    [(signal.SIGINT, True), (signal.SIGTERM, True), (signal.SIGTERM, False)],
    ids=["Ctrl-C", "timeout", "kill"],
)
def test_no_lane_outlives_it(tmp_path: Path, number: signal.Signals, whole_group: bool) -> None:
    running = start(tmp_path, "[ $@ != net-shared ] || sleep 60", "sleep 60")
    deadline_s = time.monotonic() + 20
    while not ((tmp_path / "log").exists() and "net-shared" in (tmp_path / "log").read_text()):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    lanes = psutil.Process(running.pid).children(recursive=True)
    assert len(lanes) >= 2
    (os.killpg if whole_group else os.kill)(running.pid, number)
    said, _ = running.communicate(timeout=30)
    assert running.returncode == 128 + number
    assert f"net-quiet      did not run: stopped by signal {int(number)}\n" in said
    _, alive = psutil.wait_procs(lanes, timeout=10)
    assert not alive

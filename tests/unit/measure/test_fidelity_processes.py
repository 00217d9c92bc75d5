"""Whose work the cores did: read from this machine, no root needed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from testbed.measure.fidelity import cpu_monitor
from testbed.measure.fidelity.cpu_monitor import OwnProcesses, has_run_times

pytestmark = pytest.mark.skipif(not has_run_times(), reason="this kernel keeps no run times")

WORK_S = 0.1
# Says that it is there, works when told to, says that it has.
CHILD = f"""
import time
print("there", flush=True)
input()
until = time.process_time() + {WORK_S}
while time.process_time() < until:
    pass
print("done", flush=True)
input()
"""


def test_a_childs_work_is_ours_and_ours_is_not_the_childs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_monitor, "SWITCH", "no such program")  # this machine's may be at work for others
    ours = OwnProcesses(os.getpid())
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "there\n"
        childs = OwnProcesses(child.pid)
        for followed in (ours, childs):
            followed.refresh()
            assert followed.ran_s() == 0  # what came before does not count
        child.stdin.write("go\n")
        assert child.stdout.readline() == "done\n"
        assert childs.ran_s() >= WORK_S
        assert ours.ran_s() >= WORK_S
        until = time.process_time() + WORK_S
        while time.process_time() < until:
            pass
        assert ours.ran_s() >= WORK_S
        assert childs.ran_s() < WORK_S / 2
        child.stdin.write("end\n")
    assert childs.ran_s() == 0


def test_nobody_waits_until_all_processes_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    told, asked = threading.Event(), threading.Event()
    looked = cpu_monitor._all_processes

    def late() -> Iterator[tuple[int, str, int]]:
        asked.set()
        assert told.wait(10)
        yield from looked()

    monkeypatch.setattr(cpu_monitor, "_all_processes", late)
    ours = OwnProcesses(os.getpid())
    with ours.refreshed(0.01):
        assert asked.wait(10)
        assert ours.ran_s() == 0
        told.set()
        until_s = time.monotonic() + 10
        while ours.ran_s() == 0:  # of this very loop, once it is known
            assert time.monotonic() < until_s

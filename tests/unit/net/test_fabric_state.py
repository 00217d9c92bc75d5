"""The mark by which a fabric's processes are found again, and how its owner is told from a later process."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from testbed.net.fabric.fabric_state import ENVIRONMENT_MARK, mark_child_processes
from testbed.processes import process_start_ticks


@pytest.mark.parametrize("former", [None, "00ab"])
def test_processes_of_a_block_are_marked_and_later_ones_are_as_before(
    monkeypatch: pytest.MonkeyPatch, former: str | None
) -> None:
    monkeypatch.delenv(ENVIRONMENT_MARK, raising=False)
    if former is not None:
        monkeypatch.setenv(ENVIRONMENT_MARK, former)
    with mark_child_processes("12cd"):
        assert os.environ[ENVIRONMENT_MARK] == "12cd"
    assert os.environ.get(ENVIRONMENT_MARK) == former


def test_a_process_is_known_by_its_start_and_gone_once_it_ended() -> None:
    here = process_start_ticks(os.getpid())
    assert here is not None
    ticks_s = os.sysconf("SC_CLK_TCK")
    assert 0 < here / ticks_s <= time.clock_gettime(time.CLOCK_BOOTTIME)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = process_start_ticks(child.pid)
    assert started is not None
    assert here <= started
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_start_ticks(child.pid) is None  # a corpse
    child.communicate()
    assert process_start_ticks(child.pid) is None

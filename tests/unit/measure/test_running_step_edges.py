"""When counters of links are due to be read for a job's steps."""

from __future__ import annotations

import time

import pytest

from testbed.clock import CLOCK_VARIABLE
from testbed.measure.execution.job_run import EARLY_S, StepEdges


def test_a_measured_step_is_due_before_it_begins_and_over_when_all_ranks_say_so() -> None:
    edges = StepEdges()
    edges.began({"trial": -1, "start_s": 5.0})
    assert edges.due_s is None  # of a warm-up nothing is counted
    edges.began({"trial": 0, "start_s": 9.0})
    assert edges.due_s == pytest.approx(9.0 - EARLY_S[None])
    edges.wait_for_start()  # by the real clock without delay
    assert edges.due_s is None
    # two machines' launchers, each of which speaks once its ranks have ended
    assert not edges.ended({"index": 1, "ranks": 4, "of": 6})
    assert not edges.ended({"index": 2, "ranks": 1, "of": 6})
    assert edges.ended({"index": 1, "ranks": 2, "of": 6})


def test_where_a_reading_takes_no_time_it_waits_for_the_very_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CLOCK_VARIABLE, "free")
    edges = StepEdges()
    start_s = time.monotonic() + 0.05
    edges.began({"trial": 0, "start_s": start_s})
    assert edges.due_s == pytest.approx(start_s - EARLY_S["free"])
    edges.wait_for_start()
    assert time.monotonic() >= start_s - 1e-8

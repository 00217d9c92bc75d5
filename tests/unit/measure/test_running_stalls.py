"""A step that does not end is noticed, once, and what ranks do meanwhile is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.comm.flight_recorder import FLIGHT, STALLED
from testbed.measure.diagnosis.dumps import read_evidence
from testbed.measure.execution.stalls import LEAST_TIMES, Stall, StallReporter, StallWatch
from testbed.measure.results.shards import Shard
from tests.unit.comm.flight_world import faulty


def test_of_a_first_step_nobody_knows_how_long_it_should_take() -> None:
    watch = StallWatch(1.0)
    assert watch.due_s is None
    watch.began("ring", -1, 5.0)
    assert watch.due_s is None
    assert watch.look(1e6) is None


def test_a_step_is_stalled_after_the_least_time_and_many_times_what_is_usual() -> None:
    watch = StallWatch(1.0)
    watch.began("ring", -1, 5.0)
    watch.began("ring", 0, 5.1)
    assert watch.due_s == pytest.approx(6.2)
    watch.began("ring", 1, 5.4)  # the one before took 300 ms
    assert watch.due_s == pytest.approx(5.4 + 0.2 + 1.0)
    watch.began(
        "ring", 2, 8.25
    )  # one of many times what is usual is no measure of that; it cost more than a second
    assert watch.due_s == pytest.approx(8.25 + LEAST_TIMES * 0.2)
    assert watch.look(9.2) is None
    stall = watch.look(12.25)
    assert stall is not None
    assert (stall.variant, stall.trial, stall.lasted_s, round(stall.usual_s, 9)) == ("ring", 2, 4.0, 0.2)
    assert watch.due_s == pytest.approx(
        12.25 + 0.5
    )  # looked at again half as long later, unless who it is is known
    assert watch.look(12.7) is None
    assert watch.look(12.8) is not None
    assert watch.look(13.2) is None
    assert watch.look(13.3) is not None
    assert watch.due_s is None
    assert watch.look(30.0) is None


def test_once_it_is_known_who_it_is_nobody_looks_again() -> None:
    watch = StallWatch(1.0)
    for number, start_s in enumerate((0.0, 0.1, 0.2)):
        watch.began("ring", number, start_s)
    assert watch.look(2.0) is not None
    watch.settled = True
    assert watch.due_s is None
    assert watch.look(9.0) is None


def test_what_is_usual_is_so_of_a_variant() -> None:
    watch = StallWatch(1.0)
    watch.began("ring", 0, 0.0)
    watch.began("tree", 0, 10.0)
    assert watch.due_s is None
    watch.began("ring", 1, 10.2)
    assert watch.due_s == 10.2 + LEAST_TIMES * 10.0
    watch.began("tree", 1, 20.0)
    assert watch.due_s == pytest.approx(21.2)


def test_slow_steps_in_a_row_count_together() -> None:
    watch = StallWatch(6.0)
    for number, start_s in enumerate((0.0, 0.2, 0.4, 0.6, 4.8)):  # the last that is over took 4.2 s, not 0.2
        watch.began("ring", number, start_s)
    assert watch.due_s == pytest.approx(4.8 + 0.2 + 6.0 - 4.0)
    watch.began("ring", 5, 5.0)  # that one was as usual again
    assert watch.due_s == pytest.approx(5.0 + 0.2 + 6.0)


def test_who_it_is_is_said_from_what_ranks_do_meanwhile(tmp_path: Path) -> None:
    flight = tmp_path / FLIGHT
    (flight / STALLED).mkdir(parents=True)
    world, whose = faulty("skip of a bucket", 3)
    world.paths.write(flight / "paths.json")
    for dump in world.play():
        dump.write(flight / STALLED / f"rank-{dump.rank}.json")
    said: list[str] = []
    watch = StallWatch(1.0)
    reporter = StallReporter(flight, said.append, watch, Shard(3, "two buildings", 4, 2, 1))
    for lasted_s in (10.0, 15.0):
        reporter.report(Stall("ring", 1, lasted_s, 0.5))
        reporter.end()
    (line,) = said  # the same is not said again
    lasted = "step 5 of two buildings has lasted 10 s, 20 times the usual duration"
    begins = f"{lasted}: RANK_NOT_JOINED: rank {whose[0]}, since "
    assert line.startswith(begins)
    assert watch.settled
    (flight / "rank-0.json").write_text((flight / STALLED / "rank-0.json").read_text())
    assert [evidence.name for evidence in read_evidence(tmp_path)] == [""]


def test_without_dumps_that_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    watch = StallWatch(1.0)
    reporter = StallReporter(tmp_path, said.append, watch, Shard(0, None, 0, 3, 1))
    reporter.report(Stall("ring", -1, 10.0, 0.5))
    reporter.end()
    assert said[0].startswith(
        "a warm-up step of ring has lasted 10 s, 20 times the usual duration: the cause is unknown: "
    )
    assert "no dumps" in said[0]
    assert not watch.settled

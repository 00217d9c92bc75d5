"""Every invariant: when it holds, when it does not, how bad that is, and when it does not apply."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import psutil
import pytest

from testbed.measure.fidelity import invariants
from testbed.measure.fidelity.cpu_monitor import (
    CpuTimes,
    MonitorWindow,
    parse_process,
    parse_run_time,
    process_family,
    read_windows,
)
from testbed.measure.fidelity.invariants import Conservation
from testbed.measure.fidelity.probe import LinkMeasurement
from testbed.measure.fidelity.verdict import Invariant, judge, worst
from testbed.measure.fidelity.watcher import TICK_S, late_ticks
from testbed.spec.link_direction import Direction

ASKED = Direction(rate_bps=100e6, delay_s=0.010, jitter_s=0.0, loss=0.0, queue_bytes=1_000_000)
GOOD = LinkMeasurement("east", "west", 0, "a_to_b", ASKED, rate_bps=100.5e6, delay_s=0.0101, lost=0.0)
QUIET = MonitorWindow(idle=(0.6,) * 50, steal=0.0, lags_s=(0.0005,) * 20, ticks=5000)
NAN = float("nan")


@pytest.mark.parametrize(
    ("rate_bps", "ok"), [(100e6, True), (97.1e6, True), (96.9e6, False), (103.1e6, False), (NAN, False)]
)
def test_rate_accuracy(rate_bps: float, ok: bool) -> None:
    bad = dataclasses.replace(GOOD, plane=1, rate_bps=rate_bps)
    found = invariants.rate_accuracy([GOOD, bad])
    assert found.ok is ok
    assert ("plane 1" in found.sentence) is (abs(rate_bps / 100e6 - 1) > 0.005 or math.isnan(rate_bps))


@pytest.mark.parametrize(("delay_s", "ok"), [(0.0104, True), (0.0106, False), (0.0094, False), (NAN, False)])
def test_delay_accuracy(delay_s: float, ok: bool) -> None:
    found = invariants.delay_accuracy([GOOD, dataclasses.replace(GOOD, direction="b_to_a", delay_s=delay_s)])
    assert found.ok is ok
    assert "west to east" in found.sentence


def test_long_delays_are_judged_by_their_share_and_jitter_is_allowed_for() -> None:
    long = dataclasses.replace(GOOD, asked=dataclasses.replace(ASKED, delay_s=0.1), delay_s=0.1019)
    assert invariants.delay_accuracy([long]).ok is True
    shaky = dataclasses.replace(GOOD, asked=dataclasses.replace(ASKED, jitter_s=0.002), delay_s=0.0113)
    assert invariants.delay_accuracy([shaky]).ok is True


def test_a_link_that_the_probe_cannot_fill_is_not_called_slow() -> None:
    unfilled = dataclasses.replace(GOOD, plane=1, rate_bps=60e6, saturated=False)
    found = invariants.rate_accuracy([GOOD, unfilled])
    assert (found.ok, found.severity) == (False, "caution")
    assert "all that the probe could send, 60 Mbit/s" in found.sentence
    wrong = dataclasses.replace(GOOD, plane=2, rate_bps=95e6)
    for bad in (wrong, dataclasses.replace(wrong, rate_bps=NAN)):
        found = invariants.rate_accuracy([GOOD, unfilled, bad])
        assert (found.ok, found.severity) == (False, "untrusted")  # what is known comes first
        assert "plane 2" in found.sentence
    fast = dataclasses.replace(unfilled, rate_bps=140e6)  # that it carries too much is known all the same
    assert invariants.rate_accuracy([fast]).severity == "untrusted"
    fine = dataclasses.replace(unfilled, rate_bps=98e6)
    assert invariants.rate_accuracy([fine]).ok is True


def test_without_wan_links_there_is_nothing_to_probe() -> None:
    found = [invariants.rate_accuracy([]), invariants.delay_accuracy([])]
    assert [entry.ok for entry in found] == [None, None]
    assert judge(found).status == "trusted"


@pytest.mark.parametrize(
    ("full", "status"), [(0, "trusted"), (10, "trusted"), (11, "caution"), (25, "caution"), (26, "untrusted")]
)
def test_cpu_headroom(full: int, status: str) -> None:
    window = dataclasses.replace(QUIET, idle=(0.0,) * full + (0.5,) * (50 - full))
    assert judge([invariants.cpu_headroom(window)]).status == status


def test_stolen_time_counts_as_lacking() -> None:
    found = invariants.cpu_headroom(dataclasses.replace(QUIET, steal=0.3))
    assert found.ok is False
    assert "hypervisor took 30%" in found.sentence


@pytest.mark.parametrize(
    ("idle", "foreign", "status"),
    [
        (0.5, 0.0, "trusted"),
        (0.5, 0.12, "trusted"),
        (0.5, 0.13, "caution"),
        (0.1, 0.05, "caution"),
        (0.1, 0.31, "untrusted"),
        (0.0, 0.5, "untrusted"),
        (0.0, 0.0, "trusted"),  # the run fills the machine by itself: cpu_headroom tells
    ],
)
def test_foreign_load(idle: float, foreign: float, status: str) -> None:
    found = invariants.foreign_load(dataclasses.replace(QUIET, idle=(idle,) * 50, foreign=foreign))
    assert judge([found]).status == status
    assert ("stop them" in found.sentence) is (status != "trusted")


def test_a_kernel_that_does_not_tell_whose_work_it_is() -> None:
    found = invariants.foreign_load(dataclasses.replace(QUIET, foreign=None))
    assert found.ok is None
    assert judge([found]).status == "trusted"


@pytest.mark.parametrize(
    ("lag_s", "status"), [(0.0049, "trusted"), (0.0051, "caution"), (0.021, "untrusted")]
)
def test_scheduler_lag(lag_s: float, status: str) -> None:
    rare = dataclasses.replace(QUIET, lags_s=(lag_s,) * 49)  # fewer than 1 % of the ticks
    assert judge([invariants.scheduler_lag(rare)]).status == "trusted"
    often = dataclasses.replace(QUIET, lags_s=(lag_s,) * 51)
    assert judge([invariants.scheduler_lag(often)]).status == status


def test_a_monitor_that_saw_nothing_is_not_trusted() -> None:
    blind = MonitorWindow(idle=(), steal=0.0, lags_s=(), ticks=0)
    assert judge([invariants.cpu_headroom(blind)]).status == "untrusted"
    assert judge([invariants.foreign_load(blind)]).status == "untrusted"
    assert judge([invariants.scheduler_lag(blind)]).status == "untrusted"


BOUNDS_S = (0.001, 0.005, 0.02)


@pytest.mark.parametrize(
    ("counts", "status"),
    [
        ((99, 1, 0, 0), "trusted"),
        ((98, 2, 0, 0), "caution"),
        ((90, 0, 10, 0), "untrusted"),
        ((90, 0, 0, 10), "untrusted"),
        ((0, 0, 0, 0), "trusted"),
    ],
)
def test_emulator_lateness(counts: tuple[int, ...], status: str) -> None:
    found = invariants.emulator_lateness({"good": (100, 0, 0, 0), "other": counts}, BOUNDS_S)
    assert judge([found]).status == status
    if status != "trusted":
        assert "other" in found.sentence


def test_an_engine_in_the_kernel_has_no_lateness_of_its_own() -> None:
    found = invariants.emulator_lateness(None)
    assert found.ok is None
    assert judge([found]).status == "trusted"


def test_payload_correct() -> None:
    assert invariants.payload_correct(0, 10).ok is True
    assert invariants.payload_correct(1, 10).ok is False
    assert invariants.payload_correct(0, 0).ok is False
    assert invariants.payload_correct(0, 10, 10).ok is True
    found = invariants.payload_correct(0, 10, 16)
    assert found.ok is False
    assert "The plan has 16: 6 were not checked." in found.sentence


def test_wan_bytes_as_computed() -> None:
    assert invariants.wan_bytes_as_computed(10, [10, 10]).ok is True
    off = invariants.wan_bytes_as_computed(10, [10, 13])
    assert off.ok is False
    assert "up to 3 bytes" in off.sentence
    assert invariants.wan_bytes_as_computed(10, []).ok is False


BALANCED = Conservation(
    "east-west-0 a_to_b",
    entered=100,
    crossed=100,
    taken_in=100,
    given_out=93,
    arrived=93,
    lost=2,
    duplicated=1,
    dropped=5,
    overrun=0,
    held=1,
)
EDGES = {"east": (500, 500), "west": (400, 400)}


def test_conservation() -> None:
    assert invariants.conservation([BALANCED], EDGES).ok is True
    for change in ({"taken_in": 99}, {"crossed": 99}, {"given_out": 94}, {"arrived": 92}, {"held": 0}):
        spoilt = dataclasses.replace(BALANCED, name="spoilt", **change)
        found = invariants.conservation([BALANCED, spoilt], EDGES)
        assert found.ok is False
        assert "most on spoilt" in found.sentence
    overrun = dataclasses.replace(BALANCED, lost=1, overrun=1)
    assert invariants.conservation([overrun], EDGES).measured == "1 missing"
    leak = invariants.conservation([BALANCED], {**EDGES, "west": (400, 398)})
    assert leak.ok is False
    assert leak.measured == "2 missing"
    assert "the edge switch of west" in leak.sentence


def test_the_verdict_is_as_bad_as_its_worst_invariant() -> None:
    fine = Invariant(name="a", bound="b", measured="c", ok=True, sentence="d")
    bad = fine.model_copy(update={"ok": False})
    careful = bad.model_copy(update={"severity": "caution"})
    assert judge([]).status == "trusted"
    assert judge([fine, careful]).status == "caution"
    assert judge([careful, bad, fine]).status == "untrusted"
    assert worst(["trusted", "untrusted", "caution"]) == "untrusted"
    assert judge([fine]).document() == {
        "status": "trusted",
        "invariants": [{"name": "a", "bound": "b", "measured": "c", "ok": True, "sentence": "d"}],
    }


def test_only_the_windows_of_the_measured_steps_count(tmp_path: Path) -> None:
    path = tmp_path / "monitor.jsonl"
    lines = [
        {"time_s": time_s, "span_s": span_s, "idle": idle, "steal": idle, "ticks": 100, "lags_s": [time_s]}
        | {"foreign": foreign}
        for time_s, span_s, idle, foreign in (
            (1.0, 0.1, 0.1, 0.9),
            (2.0, 0.1, 0.2, -0.04),
            (2.1, 0.1, 0.3, 0.0),
            (3.0, 0.2, 0.4, 0.4),
        )
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    window = read_windows(path, [(1.5, 2.05), (2.95, 9.0)])
    assert window.idle == (0.2, 0.3, 0.4)
    assert window.ticks == 300
    assert window.lags_s == (2.0, 2.1, 3.0)
    assert window.steal == pytest.approx((0.02 + 0.03 + 0.08) / 0.4)  # by how long each window was
    assert window.foreign == pytest.approx((0.08 - 0.004) / 0.4)
    assert read_windows(path, [(1.95, 2.0)]).foreign == 0.0  # an error of counting, not less than nothing
    assert read_windows(path, [(4.0, 5.0)]) == MonitorWindow((), 0.0, (), 0)
    for line in lines:
        del line["foreign"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_windows(path, [(1.5, 2.05)]).foreign is None


def test_percentiles_count_ticks_in_time() -> None:
    window = MonitorWindow(idle=(), steal=0.0, lags_s=(0.001, 0.002, 0.003), ticks=100)
    assert window.lag_percentile(0.5) == 0.0
    assert window.lag_percentile(0.97) == 0.001
    assert window.lag_percentile(0.99) == 0.003


def test_shares_of_the_cores_time_between_two_readings() -> None:
    before = CpuTimes(total=1000, idle=800, processes=200, steal=0)
    after = CpuTimes(total=1100, idle=840, processes=250, steal=10)
    assert after.shares_since(before) == CpuTimes(total=1.0, idle=0.4, processes=0.5, steal=0.1)
    assert before.shares_since(before) == CpuTimes(total=1.0, idle=1.0, processes=0.0, steal=0.0)
    now = CpuTimes.read()
    assert now.total == pytest.approx(sum(psutil.cpu_times()[:8]), rel=1e-3)
    assert now.idle + now.processes + now.steal <= now.total


def test_a_stall_counts_for_as_long_as_it_was() -> None:
    assert late_ticks(0.0005) == [0.0005]
    assert late_ticks(3.5 * TICK_S) == pytest.approx([3.5 * TICK_S, 2.5 * TICK_S, 1.5 * TICK_S, 0.5 * TICK_S])
    # ten stalls of 20 ms in a second: a fifth of it, however few wake-ups they make late
    stalled = [lag for _ in range(10) for lag in late_ticks(0.020)]
    window = dataclasses.replace(QUIET, lags_s=tuple(stalled), ticks=round(1 / TICK_S))
    assert window.lag_percentile(0.99) > 0.015


def test_the_run_is_its_root_and_all_below_and_the_switch() -> None:
    processes = [
        (1, "init", 0),
        (10, "testbed", 1),
        (12, "launcher", 10),
        (13, "rank", 12),
        (20, "ovs-vswitchd", 1),
        (30, "shell", 1),
        (31, "testbed", 30),
    ]
    assert process_family(10, processes) == {10, 12, 13, 20}


def test_a_process_from_its_stat() -> None:
    assert parse_process(b"4711 (a (strange) name) S 42 4711 4711 0 -1") == ("a (strange) name", 42)
    assert parse_run_time(b"1500000000 20 3\n") == 1.5
    with pytest.raises(ValueError, match="unpack"):
        parse_run_time(b"")

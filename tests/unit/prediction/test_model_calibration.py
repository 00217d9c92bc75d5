"""Calibration: what losses do by the textbook, where figures are kept, and that a fit finds what was planted."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.cli.experiments.run import measured_probes
from testbed.cli.main import app
from testbed.measure.results.result import Result
from testbed.net.errors import VirtualClockError
from testbed.net.paths import LossyConnection, network
from testbed.net.paths.congestion import LossResponse
from testbed.prediction import calibration_run
from testbed.prediction.calibration import (
    REAL,
    VIRTUAL,
    BadCalibration,
    Calibration,
    file_in_use,
    find_calibration,
    write_calibration,
)
from testbed.prediction.calibration_run import MeasuredProbe
from testbed.prediction.step_prediction import predict_step
from testbed.spec.scale import Scale
from testbed.workload.job.job import job_of
from tests.unit.show.report_run import SyntheticRun

RATE = 62.5e6  # 500 Mbit/s
PACKET = 8948.0
MADE = {"testbed": "1", "kernel": "6", "created": "today"}


def lossy(control: str, loss: float, rtt_s: float = 0.04, **response: float) -> LossyConnection:
    return LossyConnection(control, loss, rtt_s, RATE, PACKET, LossResponse(**response))


def test_windows_are_the_textbook_s() -> None:
    assert lossy("reno", 0.001).window_bytes == pytest.approx(math.sqrt(1.5 / 0.001) * PACKET)
    assert lossy("reno", 0.001, window=0.8).window_bytes == pytest.approx(0.8 * math.sqrt(1500) * PACKET)
    # over a short path CUBIC is no slower than Reno, over a long one with few losses much quicker
    assert lossy("cubic", 0.01, rtt_s=0.001).window_bytes == lossy("reno", 0.01, rtt_s=0.001).window_bytes
    assert lossy("cubic", 1e-6, rtt_s=0.2).window_bytes > 2 * lossy("reno", 1e-6, rtt_s=0.2).window_bytes
    assert lossy("bbr", 0.01).window_bytes == math.inf


def test_a_message_within_the_window_leaves_at_the_path_s_rate_a_long_one_by_round_trips() -> None:
    connection = lossy("reno", 0.001)
    window = connection.window_bytes
    assert connection.least_s(window) == pytest.approx(window / RATE)
    assert connection.least_s(11 * window) == pytest.approx(window / RATE + 10 * 0.04)
    assert lossy("bbr", 0.001).least_s(1e9) == pytest.approx(1e9 / RATE)


def late_s(connections: Sequence[LossyConnection], size_bytes: float) -> float:
    """What losses add to a message's way over these connections side by side."""
    paths = [network.Path(0.02, (), one) for one in connections]
    return network.LossDelay().arrival_s(paths, size_bytes) - 0.02


def test_a_loss_near_the_end_makes_a_message_late() -> None:
    one = [lossy("reno", 0.001, recovery=2.0)]
    assert late_s(one, PACKET) == pytest.approx(2 * 0.04 * 0.001)
    assert late_s(one, 10 * PACKET) == pytest.approx(2 * 0.04 * (1 - 0.999**10))
    assert late_s(one, 1e9) == late_s(one, 10 * PACKET)  # what was lost long before the end is mended by then
    assert late_s([lossy("reno", 0.001, recovery=0.0)], 1e9) == 0.0
    # a link that loses all is predicted, too
    assert late_s([lossy("reno", 1.0, recovery=2.0)], 1e9) == pytest.approx(2 * 0.04)


def test_a_message_on_several_connections_is_late_when_any_part_is() -> None:
    one = lossy("reno", 0.001, recovery=2.0)
    assert late_s([one] * 8, 80 * PACKET) == pytest.approx(2 * 0.04 * (1 - 0.999**80))
    assert late_s([one] * 8, 1e9) > 7 * late_s([one], 1e9)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TESTBED_CALIBRATION", str(tmp_path / "own" / "calibration.json"))
    return tmp_path / "own" / "calibration.json"


def test_what_is_kept_is_found_again_by_clock(file: Path) -> None:
    usual = find_calibration(VIRTUAL)
    assert file_in_use() is None
    assert set(usual.losses) >= {"reno", "cubic", "bbr"}
    own = Calibration({"reno": LossResponse(0.7, 1.5)}, 2e-4, 1e-9, {"created": "today"})
    assert write_calibration(REAL, own) == file
    assert file_in_use() == file
    assert find_calibration(REAL) == own
    assert find_calibration(VIRTUAL) == usual
    write_calibration(VIRTUAL, replace(own, message_s=None))
    assert find_calibration(REAL) == own
    assert find_calibration(VIRTUAL).response("dctcp") == LossResponse(0.7, 1.5)


def test_a_file_that_knows_of_no_datagrams_is_read(file: Path) -> None:
    kept = Calibration({"reno": LossResponse(0.7, 1.5)}, made={"created": "today"}, mending={"nack": 1.5})
    write_calibration(VIRTUAL, kept)
    assert find_calibration(VIRTUAL) == kept
    document = json.loads(file.read_text())
    del document[VIRTUAL]["mending"]
    file.write_text(json.dumps(document))
    found = find_calibration(VIRTUAL)
    assert found == replace(kept, mending={})
    assert found.mending_factor("nack") == 1.0


@pytest.mark.parametrize("content", ["", "{}", '{"schema": 9}', '{"schema": 1, "real": {}}', "[]"])
def test_a_file_that_is_none_is_named(file: Path, content: str) -> None:
    file.parent.mkdir()
    file.write_text(content)
    with pytest.raises(BadCalibration, match=r"own/calibration\.json is no calibration of this version"):
        find_calibration(REAL)


def measured(planted: Calibration, names: list[str], trusted: bool = True) -> list[MeasuredProbe]:
    scenario = calibration_run.probe_scenario()
    steps = {
        name: predict_step(job_of(scenario.variant(name), Scale()), "ring", planted, draws=0).step_time_s
        for name in names
    }
    return [MeasuredProbe(name, step_s, trusted) for name, step_s in steps.items()]


def test_a_fit_finds_what_was_planted() -> None:
    scenario = calibration_run.probe_scenario()
    planted = Calibration({"reno": LossResponse(0.7, 2.0)}, message_s=3e-4, byte_s=1e-9)
    names = [name for name in scenario.variant_names if name.startswith("reno")]
    found = calibration_run.fit(scenario, measured(planted, names), Scale(), REAL, MADE)
    assert found.calibration.message_s == pytest.approx(3e-4, rel=0.05)
    assert found.calibration.byte_s == pytest.approx(1e-9, rel=0.05)
    assert found.calibration.losses["reno"].window == pytest.approx(0.7, rel=0.06)
    assert found.calibration.losses["reno"].recovery == pytest.approx(2.0, abs=0.3)
    assert found.calibration.made == MADE
    assert found.median_error < 0.02
    assert max(map(abs, found.errors.values())) < 0.05


def test_what_has_no_window_is_fitted_to_messages_that_are_longer() -> None:
    scenario = calibration_run.probe_scenario()
    planted = Calibration({"bbr": LossResponse(recovery=9.0)})
    names = [name for name in scenario.variant_names if name.startswith("bbr")]
    assert {"bbr-1ms-1-1mb", "bbr-20ms-1-1mb"} < set(names)
    found = calibration_run.fit(
        scenario, measured(planted, names), Scale(), VIRTUAL, MADE
    ).calibration.losses["bbr"]
    assert found.recovery == pytest.approx(9.0, abs=0.3)
    assert found.window == 1.0


def test_mending_has_a_factor_by_how_it_is_done() -> None:
    scenario = calibration_run.probe_scenario()
    planted = Calibration({}, mending={"go_back_n": 1.3, "nack": 0.8})
    names = [name for name in scenario.variant_names if name.startswith(("gobackn", "nack"))]
    assert len(names) == 8
    found = calibration_run.fit(scenario, measured(planted, names), Scale(), VIRTUAL, MADE)
    assert found.calibration.mending["go_back_n"] == pytest.approx(1.3, rel=0.02)
    assert found.calibration.mending["nack"] == pytest.approx(0.8, rel=0.02)
    assert set(found.calibration.mending) == {"go_back_n", "nack"}
    assert max(map(abs, found.errors.values())) < 0.01


def test_of_what_is_mended_packet_by_packet_as_much_counts_as_was_lost() -> None:
    scenario = calibration_run.probe_scenario()
    name = "nack-20ms-1-1mb"
    more = scenario.variant(name).changed({"topology.wan.0.loss": 0.013}, "more")
    took_s = predict_step(job_of(more, Scale()), "ring", Calibration({}), draws=0).step_time_s
    packets = 2 * 50 * 113  # of 8,920 bytes of a datagram's or 8,948 of TCP's
    probe = MeasuredProbe(name, took_s, trusted=True, mended=round(0.013 * packets))
    clean = measured(Calibration({}), ["nack-1ms-0-1mb"])
    found = calibration_run.fit(scenario, [probe, *clean], Scale(), VIRTUAL, MADE)
    assert found.calibration.mending["nack"] == pytest.approx(1.0, rel=0.03)
    as_expected = calibration_run.fit(scenario, [replace(probe, mended=None), *clean], Scale(), VIRTUAL, MADE)
    assert as_expected.calibration.mending["nack"] > 1.1


def test_hosts_without_verbs_have_no_probes_of_cards() -> None:
    rdma = [name for name in calibration_run.probe_scenario().variant_names if name.startswith("rdma")]
    assert rdma
    assert set(calibration_run.probe_scenario().variant_names) - set(rdma) == set(
        calibration_run.probe_scenario(cards=False).variant_names
    )


def test_probes_that_are_not_to_be_trusted_are_refused() -> None:
    scenario = calibration_run.probe_scenario()
    name = scenario.variant_names[0]
    untrusted = measured(find_calibration(VIRTUAL), [name], trusted=False)
    with pytest.raises(ValueError, match="0 of 1 probes are to be trusted"):
        calibration_run.fit(scenario, untrusted, Scale(), VIRTUAL, MADE)


def mended_by(result: Result, name: str) -> int:
    return sum(one.retransmits for one in result.variant(name).connections)


def test_untrusted_probes_of_a_run_are_not_fitted_to(tmp_path: Path) -> None:
    run = SyntheticRun(statuses={"ring": "untrusted"}).write(tmp_path / "run")
    result = Result.open(run)
    assert measured_probes(result) == [
        MeasuredProbe("ring", result.variant("ring").step_time_s.median, False, mended_by(result, "ring")),
        MeasuredProbe(
            "hierarchical",
            result.variant("hierarchical").step_time_s.median,
            True,
            mended_by(result, "hierarchical"),
        ),
    ]


def test_the_package_s_own_calibration_says_where_it_is_from() -> None:
    text = (Path(__file__).parents[3] / "testbed/data/calibration.json").read_text()
    document = json.loads(text)
    assert set(document) == {"schema", VIRTUAL, REAL}
    for clock in (VIRTUAL, REAL):
        assert set(document[clock]["made"]) == {"testbed", "kernel", "link_engine", "created"}


def test_a_calibration_that_cannot_run_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTBED_KERNELS", str(tmp_path / "none"))
    folder, kept = tmp_path / "calibration", tmp_path / "kept.json"
    ran = CliRunner().invoke(app, ["calibrate", "-o", str(folder), "--keep", str(kept)])
    assert isinstance(ran.exception, VirtualClockError)
    assert not folder.exists()
    assert not kept.exists()

"""The command `run` from end to end on a small scenario: its outputs, and what happens when parts are killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from testbed.comm.flight_recorder import RankDump
from testbed.measure.diagnosis.dumps import dump_running
from testbed.net.fabric.fabric_state import ENVIRONMENT_MARK, clean_abandoned, load_all
from testbed.workload.job.errors import RunError
from tests.net.runs import (
    ROOT,
    end,
    owned,
    run_testbed,
    start,
    status_at_end,
    wait_for_words,
    write_scenario,
)

pytestmark = pytest.mark.net


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("run")
    done = run_testbed("run", write_scenario(folder), "--output", folder / "out", "--json")
    assert done.returncode in (0, 3), done.stderr  # a busy machine may make it untrusted
    return folder / "out", json.loads(done.stdout)


def test_json_on_standard_output_is_the_summary_and_nothing_else(
    finished: tuple[Path, dict[str, Any]],
) -> None:
    folder, summary = finished
    assert summary == json.loads((folder / "summary.json").read_text())
    assert [variant["name"] for variant in summary["variants"]] == ["ring", "hierarchical"]
    for variant in summary["variants"]:
        assert variant["step_time_s"]["n"] == 2
        assert variant["step_time_s"]["median"] > variant["compute_s"] > 0
        assert variant["exposed_comm_s"] > 0
        assert variant["limited_by"]
        assert variant["verdict"]["status"] in ("trusted", "caution", "untrusted")


def test_the_wan_carries_exactly_what_the_formula_says(finished: tuple[Path, dict[str, Any]]) -> None:
    _, summary = finished
    ring, hierarchical = (variant["wan_bytes"] for variant in summary["variants"])
    assert ring["expected"] == ring["observed"] > 0
    assert hierarchical["expected"] == hierarchical["observed"] > 0
    assert hierarchical["observed"] < ring["observed"]
    for variant in summary["variants"]:
        links = variant["wan_links"]
        # no byte of a step is missed; by the real clock a few beside it are counted
        for trial in range(variant["step_time_s"]["n"]):
            assert sum(link["steps"][trial]["bytes"] for link in links) > variant["wan_bytes"]["observed"]
        beside = sum(link["rate_bps"] / 8 * link["beyond_s"] for link in links)
        assert sum(link["bytes"] for link in links) < 1.2 * variant["wan_bytes"]["observed"] + beside
        assert all(0 < link["beyond_s"] < 1 for link in links)


def test_invariants_that_do_not_depend_on_the_machine_hold(finished: tuple[Path, dict[str, Any]]) -> None:
    _, summary = finished
    for variant in summary["variants"]:
        invariants = {entry["name"]: entry for entry in variant["verdict"]["invariants"]}
        for name in ("payload_correct", "wan_bytes_as_computed"):
            assert invariants[name]["ok"] is True, invariants[name]
        for name in (
            "conservation",
            "rate_accuracy",
            "delay_accuracy",
            "cpu_headroom",
            "scheduler_lag",
            "emulator_lateness",
        ):
            assert invariants[name]["sentence"]


def test_the_run_directory_is_complete(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = finished
    names = {path.name for path in folder.iterdir()}
    assert {"scenario.yaml", "manifest.json", "samples.jsonl", "summary.json", "report.html"} <= names
    assert not list(folder.parent.glob("*.partial"))
    # of steps that were slower than predicted, as on a busy machine, ranks' dumps stay
    assert {path.name for path in folder.iterdir() if path.is_dir()} <= {"flight"}
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["congestion_control"] == ["cubic"]
    assert len(manifest["fabric"]["hosts"]) == 6
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert {sample["rank"] for sample in samples} == set(range(6))
    assert {sample["operation"] for sample in samples} >= {"forward", "backward", "all_reduce", "step"}
    assert all(sample["end_s"] >= sample["start_s"] for sample in samples)
    assert run_testbed("check", folder / "scenario.yaml").returncode == 0


def assert_nothing_left(run: subprocess.Popen[str], folder: Path, fabric_id: str) -> None:
    links = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout
    bridges = subprocess.run(["ovs-vsctl", "list-br"], capture_output=True, text=True, check=True).stdout
    assert f"tb{fabric_id}" not in links + bridges
    assert fabric_id not in {state.id for state in load_all()}
    for process in psutil.process_iter():
        try:
            assert process.environ().get(ENVIRONMENT_MARK) != fabric_id
        except psutil.Error:
            continue


VICTIMS = {
    "rank": (
        "testbed.measure.ranks.launcher",
        -1,
        r"rank \d on .*: (its process \d+ was killed by signal 9|.*lost)",
    ),
    "launcher": ("testbed.measure.ranks.launcher", 0, "launcher of the ranks was killed by signal 9"),
    "link engine": ("testbed.net.links.emulator", 0, "link engine .* was killed by signal 9"),
}


def test_a_run_outlives_its_controller(tmp_path: Path) -> None:
    run, said = start(tmp_path, trials=8)
    try:
        wait_for_words(run, said, "step")
        (controller,) = owned(run, "testbed.net.controller")
        controller.kill()
        assert run.wait(100) in (0, 3), "".join(said)
        (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
        assert json.loads((folder / "manifest.json").read_text())["policy"]["controller_restarts"] == 1
        events = [
            json.loads(line)["event"] for line in (folder / "controller.jsonl").read_text().splitlines()
        ]
        assert "restarted" in events
        assert "repaired" not in events
    finally:
        end(run)


def test_variants_take_turns_in_networks_of_their_own(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    path.write_text(
        path.read_text().replace("[ring, hierarchical]", "[hierarchical]")
        + "variants:\n  even: {policy: qp_aware}\n  thin: {policy: te, topology.wan.0.rate: 50 Mbit/s}\n"
    )
    done = run_testbed("run", path, "--output", tmp_path / "out", "--trials", "2", "--json")
    assert done.returncode in (0, 3), done.stderr
    even, thin = json.loads(done.stdout)["variants"]
    assert [(v["name"], v["policy"], v["algorithm"]) for v in (even, thin)] == [
        ("even", "qp_aware", "hierarchical"),
        ("thin", "te", "hierarchical"),
    ]
    assert even["step_time_s"]["n"] == thin["step_time_s"]["n"] == 2
    assert thin["wan_links"][0]["rate_bps"] == 50e6
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    order = [part["variant"] for part in manifest["clock"]["parts"]]
    assert order == ["even", "thin", "thin", "even"]
    rules = [json.loads(line) for line in (tmp_path / "out" / "rules.jsonl").read_text().splitlines()]
    assert {rule["variant"] for rule in rules} == {"even", "thin"}
    assert any(rule["packets"] and "channel 0 on" in rule["comment"] for rule in rules)


@pytest.mark.parametrize("victim", list(VICTIMS))
def test_a_killed_part_ends_the_run_within_seconds_with_its_name(victim: str, tmp_path: Path) -> None:
    words, which, message = VICTIMS[victim]
    run, said = start(tmp_path)
    try:
        wait_for_words(run, said, "step")
        fabric_id = next(state.id for state in load_all() if state.owner_pid == run.pid)
        processes = sorted(owned(run, words), key=lambda process: (process.create_time(), process.pid))
        processes[which].kill()
        start_s = time.monotonic()
        assert status_at_end(run, said) == 1
        assert time.monotonic() - start_s < 10
        time.sleep(0.1)
        assert re.search(message, "".join(said)), "".join(said)
        assert_nothing_left(run, tmp_path, fabric_id)
        left = sorted(path.name for path in tmp_path.iterdir())
        if (
            words == "testbed.measure.ranks.launcher" and which == 0
        ):  # who would have said what ranks did last
            assert left == ["small.yaml"]
            return
        assert left == ["out.failed", "small.yaml"], left
        dumps = [RankDump.read(path) for path in (tmp_path / "out.failed" / "flight").glob("rank-*.json")]
        assert sorted(dump.rank for dump in dumps) == list(range(len(dumps)))
        assert all(any(entry.name == "all_reduce" for entry in dump.entries) for dump in dumps)
    finally:
        end(run)


def test_ranks_at_work_are_dumped_when_somebody_asks(tmp_path: Path) -> None:
    run, said = start(tmp_path)
    try:
        wait_for_words(run, said, "step")
        for _ in range(2):  # the second ones are new
            (folder,) = dump_running(tmp_path / "out")
            dumps = [RankDump.read(path) for path in folder.glob("rank-*.json")]
            assert [dump.ended for dump in dumps] == [""] * len(dumps)
            assert all(dump.entries and dump.groups for dump in dumps)
            assert len({dump.time_s for dump in dumps}) == len(dumps)
        with pytest.raises(RunError, match="other: no rank of this run is running here"):
            dump_running(tmp_path / "other")
    finally:
        end(run)


@pytest.mark.parametrize(
    "moment", ["starting the controller", "building", "link engine on", "measuring", "step"]
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupted_run_takes_everything_down(moment: str, number: int, tmp_path: Path) -> None:
    run, said = start(tmp_path)
    try:
        wait_for_words(run, said, moment)
        fabric_id = next((state.id for state in load_all() if state.owner_pid == run.pid), "none")
        time.sleep(0.15)
        run.send_signal(number)
        assert status_at_end(run, said) == 128 + number, "".join(said)
        assert_nothing_left(run, tmp_path, fabric_id)
        assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]
    finally:
        end(run)


@pytest.mark.quiet
def test_what_a_killed_run_leaves_is_cleaned_and_only_that(tmp_path: Path) -> None:
    run, said = start(tmp_path)
    wait_for_words(run, said, "step")
    fabric_id = next(state.id for state in load_all() if state.owner_pid == run.pid)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        removed = clean_abandoned()
        assert fabric_id in removed, "".join(said)
        assert_nothing_left(run, tmp_path, fabric_id)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_scenario_beyond_the_host_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    topology = ROOT / "topologies" / "two-buildings.yaml"
    path = write_scenario(tmp_path, topology=topology, ranks=8, size_scale=1)
    done = run_testbed("run", path, "--output", tmp_path / "out")
    assert done.returncode == 2
    assert "size_scale: got 1: its NICs add up to 3200 Gbit/s" in done.stderr.replace("\n", " ")
    assert "expected size_scale of at least" in done.stderr.replace("\n", " ")
    assert "building" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_an_existing_output_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    done = run_testbed("run", write_scenario(tmp_path), "--output", tmp_path / "out")
    assert done.returncode == 2
    assert "exists already" in done.stderr

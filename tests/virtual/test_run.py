"""Runs under the virtual clock: exact, repeatable, side by side, judged, and clear when they cannot be."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.virtual.conftest import SOON_S, WALL_S, Person, ordinary_user
from tests.virtual.quickstart import OPTIONS, SCENARIO, load, run

pytestmark = [pytest.mark.virtual, pytest.mark.timeout(300)]


def left_by(person: Person) -> list[str]:
    """Return what is in a person's home, but for the cache of the compiled model."""
    return sorted(path.name for path in person.home.iterdir() if path.name != ".cache")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A finished run, one part after the other."""
    with ordinary_user() as person:
        done = run(person, "one", "--jobs", "1")
        assert done.returncode == 0, done.stdout + done.stderr
        assert left_by(person) == ["one"]  # and no one.partial
        yield person.home / "one"


def test_a_run_is_whole_trusted_and_says_which_invariants_cannot_fail(folder: Path) -> None:
    names = {"summary.json", "manifest.json", "scenario.yaml", "samples.jsonl", "links.jsonl", "report.html"}
    assert names <= {path.name for path in folder.iterdir()}
    summary, manifest = load(folder, "summary.json"), load(folder, "manifest.json")
    assert summary["clock"] == "virtual"
    assert summary["scale"]["size_scale"] == 1
    assert [variant["name"] for variant in summary["variants"]] == ["ring", "hierarchical"]
    for variant in summary["variants"]:
        assert variant["verdict"]["status"] == "trusted", variant["verdict"]
        rows = {row["name"]: row for row in variant["verdict"]["invariants"]}
        checked = {name for name, row in rows.items() if row["ok"]}
        assert checked >= {
            *("rate_accuracy", "delay_accuracy", "jitter_accuracy", "loss_accuracy", "conservation"),
            "drops_only_where_modelled",
            *("bytes_witnessed", "compute_as_asked", "begun_at_once", "step_ends_witnessed", "common_start"),
            *("steps_alike", "model_error"),
            *(
                "rules_in_force",
                "settings_in_force",
                "nothing_changed",
                "serialisation",
                "offload_state",
                "payload_correct",
                "wan_bytes_as_computed",
            ),
            "model_agreement",
            *("conservation_in_buildings", "no_foreign_traffic", "ranks_awake", "network_as_before"),
        }
        cannot_fail = {name for name, row in rows.items() if row["measured"] == "cannot fail"}
        assert cannot_fail == {
            *("cpu_headroom", "foreign_load", "scheduler_lag", "emulator_lateness", "emulator_stalls"),
        }
        assert variant["wan_bytes"]["expected"] == variant["wan_bytes"]["observed"]
    assert len(manifest["clock"]["parts"]) == 2
    assert manifest["link_engine"] == "netem"
    assert "virtual clock" in (folder / "report.html").read_text()


def test_events_and_captures_of_all_parts_are_put_together(person: Person) -> None:
    events = "events=[{at: 20 ms, action: plane_down, target: 0, for: 30 ms}]"
    done = run(person, "cut", "--set", events, "--set", "telemetry={interval: 10 ms, capture: all}")
    assert done.returncode == 0, done.stdout + done.stderr
    folder = person.home / "cut"
    log = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [(entry["variant"], entry["begins"]) for entry in log] == [
        (variant, begins) for variant in ("ring", "hierarchical") for begins in (True, False)
    ]
    assert all(0 <= entry["actual_s"] - entry["planned_s"] < 0.01 for entry in log)
    summary, manifest = load(folder, "summary.json"), load(folder, "manifest.json")
    assert [variant["verdict"]["status"] for variant in summary["variants"]] == ["trusted"] * 2
    for variant in ("ring", "hierarchical"):
        captures = {path.name for path in (folder / "captures" / variant).iterdir()}
        own = [entry for entry in manifest["captures"] if entry["folder"] == variant]
        assert captures == {f"{entry['link']}.{entry['direction']}.pcapng" for entry in own}
        assert sum(entry["packets"] for entry in own) > 100
        assert sum(entry["missed"] for entry in own) == 0


def test_what_goes_wrong_in_a_guest_is_said_and_leaves_nothing(person: Person) -> None:
    done = run(person, "bad", "--set", "transport.congestion_control=nonesuch")
    assert done.returncode == 1
    assert "nonesuch" in done.stderr
    assert left_by(person) == []


def test_bad_options_are_refused_with_status_2(person: Person) -> None:
    for options, words in (
        (("--clock", "sideways"), "--clock: got sideways, expected real or virtual"),
        (("--clock", "virtual", "--link-engine", "userspace"), "expected netem and system"),
        (("--clock", "virtual", "--cpu-time", "dear"), "--cpu-time: got dear, expected free or counted"),
        (("--clock", "virtual", "--memory", "90 TiB"), "a smaller --memory"),
    ):
        done = person.call("run", str(SCENARIO), *options)
        assert done.returncode == 2, done.stderr
        assert words in done.stderr.replace("\n", " ")


def test_an_interrupted_run_leaves_nothing(person: Person) -> None:
    running = person.start("run", str(SCENARIO), "-o", str(person.home / "stopped"), *OPTIONS)
    assert running.stderr is not None
    for line in running.stderr:
        if "building" in line:
            break
    assert psutil.Process(running.pid).children(recursive=True)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=SOON_S)
    assert running.returncode == 130
    assert left_by(person) == []


def test_finished_parts_of_an_interrupted_run_are_taken_up_by_the_same_command(
    folder: Path, person: Person
) -> None:
    command = ("run", str(SCENARIO), "-o", str(person.home / "again"), *OPTIONS, "--jobs", "1")
    running = person.start(*command)
    deadline = time.monotonic() + WALL_S
    while not list(person.home.glob(".parts/*/0/finished.json")):
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=SOON_S)
    assert running.returncode == 130
    assert "1 of 2 parts kept in" in said
    assert left_by(person) == [".parts"]
    (kept,) = person.home.glob(".parts/*")
    assert sorted(path.name for path in kept.iterdir()) == ["0", "lock"]
    done = person.call(*command)
    assert done.returncode == 0, done.stderr
    assert "1 of 2 parts were already done" in done.stderr
    assert left_by(person) == ["again"]
    assert (person.home / "again/samples.jsonl").read_bytes() == (folder / "samples.jsonl").read_bytes()


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_it_was_an_ordinary_user_who_ran_all_this(person: Person) -> None:
    if not person.prefix:
        pytest.skip("the checkout cannot be read by anyone but the user who runs the tests")
    done = subprocess.run([*person.prefix, "id", "-u"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() != "0"

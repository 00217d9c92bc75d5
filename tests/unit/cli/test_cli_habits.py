"""Habits of the command line: version, completion, which network is meant, runs that lie about, reasons, figures."""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from testbed.cli import fabric as fabrics
from testbed.cli import runs as commands
from testbed.cli.main import app
from testbed.cli.runs import age_s, age_text, shorten_list
from testbed.measure.execution.run import Request, prepare
from testbed.measure.fidelity.verdict import Invariant, Verdict
from testbed.measure.results.result import Result
from testbed.measure.results.run_directory import OWNER, RunDirectory, RunExists
from testbed.measure.results.run_listing import list_entries, list_killed, select_prunable
from testbed.net.doctor.host_resources import describe_busy, find_busiest
from testbed.net.errors import FabricError, UnknownHost
from testbed.net.fabric.fabric_state import FabricState, select_fabric
from testbed.processes import process_start_ticks
from testbed.show.report import print_summary
from testbed.spec.errors import ConfigError
from testbed.spec.scenario import load_scenario
from testbed.spec.units import signed_percent_text
from testbed.version import VERSION
from tests.unit.show.report_run import SyntheticRun

ROOT = Path(__file__).parents[3]


def fabric(fabric_id: str, topology: str, hosts: str, links: str) -> FabricState:
    details = {
        "hosts": [{"name": name} for name in hosts.split()],
        "wan": [{"name": name} for name in links.split()],
    }
    started = process_start_ticks(os.getpid())
    assert started is not None
    return FabricState(fabric_id, os.getpid(), started, topology, "up", details=details)


MINE = fabric("00aa", "mine", "east1 east2 west1", "east-west-0")
THEIRS = fabric("00bb", "theirs", "north1 south1 east1", "north-south-0")


def test_what_only_one_network_has_says_which_is_meant() -> None:
    assert select_fabric([MINE], None) is MINE
    assert select_fabric([MINE], None, ("nobody",)) is MINE  # who uses it says what is wrong
    both = [MINE, THEIRS]
    assert select_fabric(both, None, ("west1",)) is MINE
    assert select_fabric(both, None, ("north1", "south1")) is THEIRS
    assert select_fabric(both, None, ("east1", "west1")) is MINE
    assert select_fabric(both, None, link="north-south-0") is THEIRS
    assert select_fabric(both, "00bb") is THEIRS
    assert select_fabric(both, "mine") is MINE


@pytest.mark.parametrize(
    ("asked", "hosts", "link", "error", "told"),
    [
        (
            None,
            (),
            None,
            FabricError,
            "several fabrics are up, select one with --fabric: 00aa (mine), 00bb (theirs)",
        ),
        (None, ("east1",), None, FabricError, "select one with --fabric: 00aa (mine), 00bb (theirs)"),
        (None, ("nrth1",), None, UnknownHost, "did you mean north1?"),
        (None, (), "a-b-0", FabricError, "select one with --fabric"),
        ("zz", (), None, FabricError, "no fabric 'zz' is up; up: 00aa, 00bb"),
    ],
)
def test_what_is_not_clear_is_asked(
    asked: str | None, hosts: tuple[str, ...], link: str | None, error: type[Exception], told: str
) -> None:
    with pytest.raises(error) as caught:
        select_fabric([MINE, THEIRS], asked, hosts, link)
    assert told in str(caught.value)


def test_networks_of_one_name_are_told_apart_by_id() -> None:
    twin = fabric("00cc", "mine", "x1", "")
    with pytest.raises(FabricError, match=r"several fabrics are called mine.*00aa \(mine\), 00cc \(mine\)"):
        select_fabric([MINE, twin], "mine")
    with pytest.raises(FabricError, match="no fabric is up; start one"):
        select_fabric([], None)


def test_ps_says_whose_networks_are_and_what_is_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = FabricState("00dd", 1, 0.5, "old", "up")
    monkeypatch.setattr(commands, "load_all", lambda: [MINE, gone])
    found = json.loads(CliRunner().invoke(app, ["ps", "--json"]).stdout)
    assert [(one["id"], one["phase"], one["pid"]) for one in found] == [
        ("00aa", "up", os.getpid()),
        ("00dd", "left behind", 1),
    ]
    assert 0 < found[0]["age_s"] < 1e6
    assert found[1]["age_s"] is None
    said = CliRunner().invoke(app, ["ps"], env={"COLUMNS": "200"}).stdout
    assert "east1 ... west1 (3)" in said
    assert "east-west-0" in said
    assert "gone: testbed clean" in said


def test_names_and_ages_are_short() -> None:
    assert shorten_list(["a"]) == "a"
    assert shorten_list(["a1", "a2", "a3"]) == "a1 ... a3 (3)"
    assert [age_text(one) for one in (-1.0, 5.0, 119.0, 121.0, 7201.0, 2 * 86400.0)] == [
        "0 s",
        "5 s",
        "119 s",
        "2 min",
        "2 h",
        "2 d",
    ]
    assert [age_s(one) for one in ("2 d", "0.5d", "3 h", "30 min")] == [172800.0, 43200.0, 10800.0, 1800.0]
    with pytest.raises(ConfigError, match="an age such as"):
        age_s("soon")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    for number, (name, mark, document) in enumerate(
        [
            ("old", "summary.json", {"scenario": "one", "status": "trusted", "clock": "virtual"}),
            ("swept", "sweep.json", {"scenario": "two", "clock": "model"}),
            ("new", "summary.json", {"scenario": "one", "status": "caution", "clock": "real"}),
        ]
    ):
        (folder / name).mkdir(parents=True)
        (folder / name / mark).write_text(json.dumps(document))
        (folder / name / "points").mkdir()
        os.utime(folder / name / mark, (1000.0 + number, 1000.0 + number))
    (folder / "notes").mkdir()  # nobody's
    (folder / "bad.failed").mkdir()
    (folder / "dead.partial").mkdir()
    (folder / "dead.partial" / OWNER).write_text(json.dumps({"pid": 1, "started": 0.5}))
    (folder / ".parts" / "abc").mkdir(parents=True)
    RunDirectory(folder / "alive")
    return folder


def test_what_lies_in_a_folder_is_listed_with_its_verdict(runs: Path) -> None:
    found = {
        entry.path.name: (entry.kind, entry.scenario, entry.status, entry.clock)
        for entry in list_entries(runs)
    }
    assert found == {
        "old": ("run", "one", "trusted", "virtual"),
        "swept": ("sweep", "two", "", "model"),
        "new": ("run", "one", "caution", "real"),
        "bad.failed": ("failed", "bad", "", ""),
        "dead.partial": ("killed", "dead", "", ""),
        ".parts": ("parts", "", "", ""),
        "alive.partial": ("going on", "alive", "", ""),
    }
    assert [entry.path.name for entry in list_killed(runs)] == ["dead.partial"]
    assert list_entries(runs / "none") == []


def test_pruning_keeps_the_newest_and_what_goes_on(runs: Path) -> None:
    found = list_entries(runs)

    def names(**asked: Any) -> set[str]:
        options: dict[str, Any] = {"keep": None, "older_s": None, "left": False, **asked}
        return {entry.path.name for entry in select_prunable(found, 2001.5, **options)}

    assert names(keep=1) == {"old", "swept"}
    assert names(keep=0) == {"old", "swept", "new"}
    assert names(older_s=1000.0) == {"old", "swept"}
    assert names(keep=2, older_s=1000.0) == {"old"}
    assert names(left=True) == {"bad.failed", "dead.partial", ".parts"}


def test_the_command_removes_only_what_it_was_told_to(runs: Path) -> None:
    def prune(*more: str) -> Any:
        return CliRunner().invoke(app, ["runs", "prune", str(runs), *more])

    assert isinstance(prune().exception, ConfigError)
    assert prune("--keep", "1", "--dry-run").stderr.count("would be removed") == 2
    assert (runs / "old").exists()
    lock = (runs / ".parts" / "abc" / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)  # a run uses them
    assert prune("--left").stderr.count("removed") == 2
    lock.close()
    prune("--keep", "1")
    assert {path.name for path in runs.iterdir()} == {"new", "notes", ".parts", "alive.partial"}
    said = CliRunner().invoke(app, ["runs", "ls", str(runs)], env={"COLUMNS": "120"}).stdout
    assert "going on" in said
    assert "caution" in said


def test_a_folder_that_is_there_is_refused_before_anything_with_status_2(tmp_path: Path) -> None:
    request = Request(load_scenario("quickstart"), tmp_path, clock="virtual")
    with pytest.raises(RunExists, match="exists already; choose another --output") as caught:
        prepare(request)
    assert caught.value.status == 2
    assert isinstance(caught.value, FileExistsError)


def test_the_version_and_what_completes_a_command() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"testbed {VERSION}\n"

    def completed(*words: str) -> list[str]:
        asked = {
            "_TESTBED_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(("testbed", *words)),
            "COMP_CWORD": str(len(words)),
        }
        return CliRunner().invoke(app, [], prog_name="testbed", env=asked).stdout.split()

    assert completed("swe") == ["sweep"]
    assert completed("sweep", "--cl") == ["--clock"]  # whose module is imported only then


def test_what_rounds_to_nothing_has_no_sign() -> None:
    assert [signed_percent_text(one) for one in (-0.0004, 0.0004, -0.0006, 0.012)] == [
        "0.0 %",
        "0.0 %",
        "-0.1 %",
        "+1.2 %",
    ]
    assert signed_percent_text(-0.004, 0) == "0 %"


def test_of_many_reasons_five_are_told_the_worst_first_and_under_the_headline(tmp_path: Path) -> None:
    SyntheticRun(statuses={"ring": "caution", "hierarchical": "untrusted"}).write(tmp_path)
    result = Result.open(tmp_path)

    def failing(count: int, status: Any) -> Verdict:
        some = (
            Invariant(name=f"n{number % 4}", bound="b", measured="m", ok=False, sentence=f"Reason {number}.")
            for number in range(count)
        )
        return Verdict(status=status, invariants=tuple(some))

    ring, hierarchical = result.variants
    variants = (
        ring.model_copy(update={"verdict": failing(4, "caution")}),
        hierarchical.model_copy(update={"verdict": failing(4, "untrusted")}),
    )
    out = io.StringIO()
    print_summary(result.model_copy(update={"variants": variants}).at(tmp_path), Console(file=out, width=200))
    lines = out.getvalue().splitlines()
    reasons = [line for line in lines if "Reason" in line]
    assert [line.split(",")[0] for line in reasons] == ["UNTRUSTED: hierarchical"] * 4 + ["caution: ring"]
    assert "And 3 more, see the report: n1, n2, n3." in lines
    assert lines.index(reasons[0]) < next(
        number for number, line in enumerate(lines) if "model predicts" in line
    )


def test_who_is_busy_is_named() -> None:
    code = "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass"
    spinning = subprocess.Popen([sys.executable, "-c", code])
    try:
        deadline_s = time.monotonic() + 15
        found = find_busiest(0.3)
        while spinning.pid not in [one.pid for one in found] and time.monotonic() < deadline_s:
            found = find_busiest(0.3)
        (mine,) = [one for one in found if one.pid == spinning.pid]
        assert 0.05 <= mine.cores <= 1.5
        assert f"process {spinning.pid}" in describe_busy(found)
    finally:
        spinning.kill()
        spinning.wait()
    assert describe_busy([]) == ""


@pytest.mark.parametrize(("status", "ends", "told"), [(0, 0, False), (3, 0, True), (1, 2, False)])
def test_the_demonstration_on_a_busy_machine_ends_well_and_offers_the_virtual_clock(
    tmp_path: Path, status: int, ends: int, told: bool
) -> None:
    """3: still untrusted when it was done as slowly as may be."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    asked = tmp_path / "asked"
    programs = {
        ".venv/bin/testbed": f'echo "$@" >> {asked}; exit {status}',
        "tools/bootstrap": "exit 0",
        "bin/sudo": 'exec "$@"',
    }
    for name, body in programs.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    environment = {name: value for name, value in environment.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "demo"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == ends
    assert asked.read_text() == "run scenarios/quickstart.yaml --retry-dilated 4\n"
    assert ("too busy" in done.stdout, "--clock virtual" in done.stdout) == (told, told)
    assert "Error 3" not in done.stderr


def test_cleaning_names_folders_that_killed_runs_left_and_leaves_them(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs.parent)
    monkeypatch.setattr(fabrics, "need_root", lambda doing: None)
    monkeypatch.setattr(fabrics, "clean_abandoned", lambda everything: {})
    said = CliRunner().invoke(app, ["clean"]).stderr
    assert "runs/dead.partial: left behind by a killed run" in said
    assert "alive.partial" not in said
    assert "nothing to clean" not in said
    assert (runs / "dead.partial").exists()
    shutil.rmtree(runs / "dead.partial")
    assert CliRunner().invoke(app, ["clean"]).stderr.strip() == "nothing to clean"

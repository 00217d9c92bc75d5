"""A run whose buildings are on two machines: everything as on one, with the tunnel between them measured and judged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.machines.machines import FakeMachine, two_machines

pytestmark = [pytest.mark.machines, pytest.mark.timeout(300)]

BOTH = "machine1,machine2"
# Both machines are this one: half of the speed, for its cores.
SLOWER = ("--set", "scale.time_dilation=2", "--trials", "2")
QUICKSTART = "scenarios/quickstart.yaml"


@pytest.fixture(scope="module")
def machines() -> Iterator[dict[str, FakeMachine]]:
    with two_machines() as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_is_left(machines: dict[str, FakeMachine]) -> Iterator[None]:
    """Processes, interfaces and folders of each machine are as they were."""
    before = {name: survey(machine) for name, machine in machines.items()}
    yield
    deadline = time.monotonic() + 10
    while (after := {name: survey(machine) for name, machine in machines.items()}) != before:
        assert time.monotonic() < deadline, {name: set(after[name]) ^ set(before[name]) for name in after}
        time.sleep(0.2)


def survey(machine: FakeMachine) -> list[str]:
    said = machine.run(
        "sh", "-c", "ip -br link; ls /run/testbed 2>/dev/null; ovs-vsctl list-br; ps -eo args"
    ).stdout
    passing = ("ps -eo", "sh -c", "nsenter", "sshd: root", "ovs-", "[")
    return sorted(line for line in said.splitlines() if not line.startswith(passing))


def run(machines: dict[str, FakeMachine], folder: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    done = machines["machine1"].testbed("run", *arguments, "-o", str(folder))
    print(done.stdout, done.stderr)
    summary = json.loads((folder / "summary.json").read_text()) if folder.exists() else {}
    return done.returncode, summary, done.stderr


def test_a_run_over_two_machines_is_whole_and_its_tunnel_is_judged(
    machines: dict[str, FakeMachine], tmp_path: Path
) -> None:
    status, summary, _ = run(machines, tmp_path / "run", QUICKSTART, *SLOWER, "--machines", BOTH)
    assert status in (0, 3)  # two machines on two cores may be too busy, and say so
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    (tunnel,) = manifest["tunnels"]
    assert (tunnel["machine"], tunnel["building"]) == ("machine2", "west")
    assert tunnel["sent"] == tunnel["arrived"] > 10_000
    assert {"monitor.jsonl", "monitor-machine2.jsonl"} <= set(os.listdir(tmp_path / "run"))
    for variant in summary["variants"]:
        checks = {check["name"]: check for check in variant["verdict"]["invariants"]}
        for name in (
            "payload_correct",
            "wan_bytes_as_computed",
            "tunnel_loss",
            "rate_accuracy",
            "rules_in_force",
            "nothing_changed",
        ):
            assert checks[name]["ok"], checks[name]
        assert checks["tunnel_rate"]["ok"], checks["tunnel_rate"]
        assert "the tunnel to west on machine2" in checks["tunnel_delay"]["sentence"].lower()
        assert checks["clocks_agree"]["ok"], checks["clocks_agree"]
        assert 1.3 < variant["step_time_s"]["median"] < 4
    samples = [json.loads(line) for line in (tmp_path / "run/samples.jsonl").read_text().splitlines()]
    assert {sample["rank"] for sample in samples} == set(range(8))
    steps = [sample for sample in samples if sample["operation"] == "step"]
    for step in {sample["step"] for sample in steps}:
        starts = {sample["start_s"] for sample in steps if sample["step"] == step}
        assert len(starts) == 1  # all ranks agree on it, by the same clock
        ends = [sample["end_s"] for sample in steps if sample["step"] == step]
        assert 0 < min(ends) - min(starts) <= max(ends) - min(starts) < 20  # machine2's own is 1234 s ahead


def test_a_tunnel_that_is_too_slow_and_too_long_is_said(
    machines: dict[str, FakeMachine], tmp_path: Path
) -> None:
    shape = "tc qdisc replace dev cable root tbf rate 120mbit burst 20k latency 50ms"
    machines["machine2"].run("sh", "-c", shape)
    try:
        status, summary, _ = run(machines, tmp_path / "run", QUICKSTART, "--trials", "1", "--machines", BOTH)
    finally:
        machines["machine2"].run("sh", "-c", "tc qdisc del dev cable root")
    assert status == 3
    checks = {check["name"]: check for check in summary["variants"][0]["verdict"]["invariants"]}
    assert checks["tunnel_rate"]["ok"] is False
    assert "The tunnel to west on machine2 carried " in checks["tunnel_rate"]["sentence"]


@pytest.mark.parametrize(
    ("machines_asked", "words"),
    [
        ("machine1", "--machines: got 1, expected one for each building, in this order: east, west"),
        ("machine1,machine9", "machine machine9: "),
        ("machine1,nobody@machine2", "does `ssh nobody@machine2 sudo -n true` work?"),
    ],
)
def test_machines_that_cannot_be_are_one_line(
    machines: dict[str, FakeMachine], tmp_path: Path, machines_asked: str, words: str
) -> None:
    status, _, said = run(machines, tmp_path / "run", QUICKSTART, "--machines", machines_asked)
    assert status in (1, 2)
    assert words in said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_stopped_leaves_nothing_on_either_machine(
    machines: dict[str, FakeMachine], tmp_path: Path, number: signal.Signals
) -> None:
    first = machines["machine1"]
    command = first.command(
        *(sys.executable, "-m", "testbed", "run", QUICKSTART, "--machines", BOTH, "-o", str(tmp_path / "run"))
    )
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    said = []
    for line in running.stderr:
        said.append(line)
        if "step 1 of" in line:
            break
    else:
        pytest.fail(f"the run ended before its first step; it said:\n{''.join(said)}")
    pids = first.run("pgrep", "-f", f"testbed run scenarios.*{tmp_path}/run").stdout.split()
    first.run("kill", f"-{int(number)}", pids[0])
    running.communicate(timeout=60)
    assert running.returncode != 0
    if number == signal.SIGKILL:
        first.testbed("clean")


def test_another_machine_that_dies_ends_the_run_and_is_named(
    machines: dict[str, FakeMachine], tmp_path: Path
) -> None:
    command = machines["machine1"].command(
        *(sys.executable, "-m", "testbed", "run", QUICKSTART, "--machines", BOTH, "-o", str(tmp_path / "run"))
    )
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    for line in running.stderr:
        if "step 1 of" in line:
            break
    agents = machines["machine2"].run("pgrep", "-f", "python -m testbed.net.fabric.machines").stdout.split()
    machines["machine2"].run("kill", "-KILL", agents[-1])
    _, said = running.communicate(timeout=60)
    assert running.returncode == 1
    assert "machine machine2: " in said
    assert not (tmp_path / "run").exists()

"""A rank that is killed returns as a new process in the namespace of its host, where its job goes on without it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from testbed.clock import clock_here
from testbed.measure.execution.launchers import LauncherProcess
from testbed.measure.execution.network_setup import choose_network_backend
from testbed.measure.execution.progress import Progress
from testbed.measure.execution.rank_network import RankNetwork
from testbed.measure.execution.shard_run import ShardRun
from testbed.measure.results.shards import whole_run_shard
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario
from testbed.workload.job.endpoints import JobEndpoints, RankEndpoint
from testbed.workload.job.launch_spec import JobSpec, Step
from testbed.workload.plan import Computing, JobPlan
from tests.net.namespaces import namespaces

pytestmark = [pytest.mark.net]

STEPS, STEP_S = 4, 0.5  # so long that a rank is killed within the step of which it told last
TIMEOUT_S = 30.0
ALONE = JobPlan(ranks=((Computing("work", "work", "compute", duration_s=STEP_S),),))


def job(pid: int, folder: Path) -> JobSpec:
    """One rank that computes, on a host whose namespace process `pid` is in."""
    wiring = JobEndpoints(
        "token",
        (RankEndpoint(0, "host", 0, "127.0.0.1", pid),),
        seed=1,
        timeout_s=5.0,
        distances=(("host",),),
    )
    steps = tuple(Step("ring", "ring", trial) for trial in range(STEPS))
    return JobSpec(wiring, "float32", ALONE, steps, str(folder), survives_kills=True)


class Told:
    """What a launcher says, event after event."""

    def __init__(self, launcher: LauncherProcess) -> None:
        self.launcher = launcher
        self._waiting: list[dict[str, Any]] = []

    def until(self, fits: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """What it says up to the first event that fits; all that it says to its end, where none does."""
        said: list[dict[str, Any]] = []
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            while self._waiting:
                said.append(self._waiting.pop(0))
                if fits(said[-1]):
                    return said
            events = self.launcher.events(0.1)
            if events is None:
                return said
            self._waiting += events
        raise AssertionError(said)


def started(pid: int) -> str:
    """The namespace of a process's only thread that counts."""
    return os.readlink(f"/proc/{pid}/ns/net")


def indexes(told: Sequence[dict[str, Any]]) -> list[int]:
    """Return which steps were told to begin."""
    return [event["index"] for event in told if event["event"] == "step"]


def test_it_returns_into_its_namespace_and_starts_anew(tmp_path: Path) -> None:
    with namespaces(1) as (place,), LauncherProcess(job(place.pid, tmp_path).to_json(), {}) as launcher:
        told = Told(launcher)
        *_, second_step = told.until(lambda event: event.get("index") == 1)
        assert second_step["event"] == "step"
        (first,) = [pid for pid in _children(launcher) if started(pid) == started(place.pid)]
        os.kill(first, signal.SIGKILL)
        (killed,) = told.until(lambda event: event["event"] == "killed")
        assert killed["ranks"] == [0]
        assert f"process {first} was killed by signal 9" in killed["message"]
        launcher.return_ranks([0])
        (returned,) = told.until(lambda event: event["event"] == "returned")
        assert returned["incarnation"] == 1
        second = returned["pids"]["0"]
        assert second != first
        rest = told.until(lambda event: event["event"] == "step")
        assert indexes(rest) == [2]  # steps done once more are not told again
        assert started(second) == started(place.pid)
        rest = told.until(lambda event: event["event"] == "done")
        assert indexes(rest) == [*range(3, STEPS)]
        assert launcher.ended(TIMEOUT_S) is None
    lines = [json.loads(line) for line in (tmp_path / "rank-0.jsonl").read_text().splitlines()]
    assert [line["trial"] for line in lines if line["operation"] == "step"] == list(range(STEPS))


def test_one_that_has_not_ended_yet_is_replaced(tmp_path: Path) -> None:
    with namespaces(1) as (place,), LauncherProcess(job(place.pid, tmp_path).to_json(), {}) as launcher:
        told = Told(launcher)
        told.until(lambda event: event.get("index") == 1)
        for incarnation in (1, 2):
            launcher.return_ranks([0])
            said = told.until(lambda event: event["event"] == "returned")
            assert [event["event"] for event in said if event["event"] != "step"] == ["killed", "returned"]
            assert said[-1]["incarnation"] == incarnation
        assert told.until(lambda event: event["event"] == "done")
        assert len(_children(launcher)) == 0


def test_a_job_that_does_not_survive_it_ends(tmp_path: Path) -> None:
    with namespaces(1) as (place,):
        mortal = replace(job(place.pid, tmp_path), survives_kills=False)
        with LauncherProcess(mortal.to_json(), {}) as launcher:
            told = Told(launcher)
            told.until(lambda event: event.get("index") == 1)
            for pid in _children(launcher):
                os.kill(pid, signal.SIGKILL)
            launcher.return_ranks([0])
            assert [event["event"] for event in told.until(lambda event: False)] == ["killed"]
            assert launcher.ended(TIMEOUT_S) == "the launcher of the ranks ended with status 1"


SILENT = Progress(lambda line: None, lambda done, every: None)
LONE = """
name: lone
topology:
  name: two
  buildings:
    east: {hosts: 1, nic: {rate: 100 Mbit/s}}
    west: {hosts: 1, nic: {rate: 100 Mbit/s}}
  wan:
    - {a: east, b: west, rate: 100 Mbit/s, delay: 1 ms}
ranks: 1
workload:
  model: {dim: 64, n_layers: 1, n_heads: 2, n_kv_heads: 2, ffn_dim: 128, vocab_size: 256}
  sequence_length: 64
  peak_flops: 1 Gflop/s
trials: 8
events:
  - {step: 1, action: host_kill, target: east1, for: 300 ms}
"""


class SurvivingShard(ShardRun):
    """One whose job goes on when a rank is killed."""

    def _job_spec(self, running: RankNetwork) -> JobSpec:
        return replace(super()._job_spec(running), survives_kills=True)


@pytest.mark.quiet
def test_a_host_that_is_killed_comes_back_with_its_card_and_its_rank(tmp_path: Path) -> None:
    (tmp_path / "lone.yaml").write_text(LONE)
    scenario = load_scenario(tmp_path / "lone.yaml")
    engine, datapath = ("netem", "system") if clock_here() else ("userspace", "netdev")
    backend = choose_network_backend(engine, datapath)
    (shard,) = whole_run_shard(scenario)
    run = SurvivingShard(shard, scenario, backend, Scale(), tmp_path, SILENT)
    record = run.measure()
    assert [(entry["action"], entry["begins"]) for entry in record.events] == [
        ("host_kill", True),
        ("host_kill", False),
    ]
    begun, ended = record.events
    assert 0.29 <= ended["actual_s"] - begun["actual_s"] < 0.8
    starts = sorted(sample["start_s"] for sample in record.samples if sample["operation"] == "step")
    assert len(starts) == scenario.trials  # it went through all of them anew
    assert starts[0] == 0.0
    (variant,) = record.figures.variants
    invariants = {entry.name: entry for entry in variant.verdict.invariants}
    for name in ("nothing_changed", "settings_in_force", "conservation", "events_on_time", "payload_correct"):
        assert invariants[name].ok, invariants[name]


def _children(launcher: LauncherProcess) -> list[int]:
    return [child.pid for child in psutil.Process(launcher._process.pid).children()]

"""Schedules of files: carried out as any, and wrong ones told of before anything is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.errors import TestbedError
from testbed.prediction.dry_run import workloads_of
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario
from testbed.workload.schedules import SCHEDULES, Costs, ScheduleEntry, ScheduleRequest, make_schedule
from tests.unit.workload.test_workload_pipeline_plan import write_topology

STAGE = "{forward: 10 ms, backward_input: 10 ms, backward_weight: 10 ms, activation: 1 MB}"
HEAD = """
from testbed.workload.schedules import Action, Kind, ScheduleError, schedule

F, B = Kind.FORWARD, Kind.FULL_BACKWARD
"""
GPIPE = """
def mine(request):
    return [
        [Action(rank, kind, number) for kind in (F, B) for number in range(request.microbatches)]
        for rank in range(request.ranks)
    ]
"""


def scenario(folder: Path, code: str, microbatches: int = 2) -> Scenario:
    write_topology(folder, hosts=1)
    (folder / "mine.py").write_text(HEAD + code)
    (folder / "scenario.yaml").write_text(
        f"name: mine\ntopology: pair.yaml\nworkload:\n  stage: {STAGE}\n"
        "  parallelism: {pipeline_parallel_degree: 2}\n"
        f"  schedule: {{name: 'mine.py:mine', microbatches: {microbatches}}}\n"
    )
    return load_scenario(folder / "scenario.yaml")


def orders_of(asked: Scenario) -> Any:
    training = workloads_of(asked, Scale())[asked.name].training
    assert training is not None
    return training.schedule.orders


def test_a_function_of_a_file_is_a_schedule(tmp_path: Path) -> None:
    found = orders_of(scenario(tmp_path, GPIPE))
    assert [" ".join(map(str, order)) for order in found] == ["0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"]


def test_what_is_declared_counts(tmp_path: Path) -> None:
    code = """
@schedule(chunks=2)
def mine(request):
    stages = [[0, 3], [1, 2]]
    return [
        [*(Action(s, F, 0) for s in own), *(Action(s, B, 0) for s in own[::-1])] for own in stages
    ]
"""
    found = orders_of(scenario(tmp_path, code, 1))
    assert " ".join(map(str, found[0])) == "0F0 3F0 3B0 0B0"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def mine(request):\n    return 1 / 0\n", "ZeroDivisionError: division by zero (FILE, line 6)"),
        (
            "\n\ndef mine(request):\n    return []\n",
            "FILE:7: schedule mine: got orders of 0 ranks, expected 2",
        ),
        (
            "def mine(request):\n    return None\n",
            "FILE:5: schedule mine: got a NoneType, expected 2 sequences",
        ),
        (
            "def mine(request):\n    return [[1], []]\n",
            "FILE:5: schedule mine: got rank 0: 1, expected an Act",
        ),
        (
            GPIPE.replace("range(request.microbatches)", "[0]"),
            "FILE:6: schedule mine: got rank 0, stage 0, microbatch 1: nothing, expected F and B",
        ),
        (
            GPIPE.replace("(F, B)", "(B, F)"),
            "FILE:6: schedule mine: got rank 0: 0B0, expected 0F0 before it",
        ),
        (
            "def mine(request):\n"
            "    return [[Action(r, k, n) for n in ((0, 1), (1, 0))[r] for k in (F, B)] for r in (0, 1)]\n",
            "FILE:5: schedule: got mine, expected one that completes; this one never completes",
        ),
        (
            "def mine(request):\n    raise ScheduleError(got='2', expected='3 of them')\n",
            "workload.schedule: got 2, expected 3 of them",
        ),
        ("class mine:\n    pass\n", "got class mine, expected a function from a ScheduleRequest"),
    ],
)
def test_a_wrong_one_is_one_clear_error(tmp_path: Path, code: str, said: str) -> None:
    asked = scenario(tmp_path, code)
    with pytest.raises(TestbedError) as raised:
        workloads_of(asked, Scale())
    assert said.replace("FILE", str(tmp_path / "mine.py")) in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_names_come_from_where_schedules_stand() -> None:
    assert {"GPipe", "1F1B", "ZBH1", "CrossUDSub"} <= set(SCHEDULES)
    assert all(isinstance(entry, ScheduleEntry) for entry in SCHEDULES.values())
    for name in SCHEDULES:  # the testbed's own are no plug-ins
        assert make_schedule(name, ScheduleRequest(2, 4, 1, 1.0, Costs(1.0, 1.0, 1.0))).source is None

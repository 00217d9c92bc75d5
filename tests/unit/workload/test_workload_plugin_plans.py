"""Workloads that are functions: their plans' bytes and times, and what is told of wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.documents import from_json, to_json
from testbed.errors import TestbedError
from testbed.prediction.dry_run import dry_runs, workloads_of
from testbed.spec.errors import ConfigError
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario
from testbed.spec.workload import WORKLOAD_KEYS
from testbed.workload.job.job import job_of
from testbed.workload.job.kinds import WORKLOADS
from testbed.workload.plan import Computing, JobPlan
from testbed.workload.plans import PlanBuilder, WorkloadRequest, check_plan
from testbed.workload.plans.builder import Options
from tests.unit.workload.test_workload_pipeline_plan import write_topology

HEAD = """
from testbed.workload.plan import Computing, GroupCollective, JobPlan, Message
from testbed.workload.plans import PlanBuilder

"""


def scenario(folder: Path, workload: dict[str, Any] | str, **more: Any) -> Scenario:
    if isinstance(workload, str):
        (folder / "mine.py").write_text(HEAD + workload)
        workload = {"plan": "mine.py:mine"}
    write_topology(folder, hosts=2)
    (folder / "scenario.yaml").write_text(f"name: mine\ntopology: pair.yaml\nworkload: {workload}\n")
    return load_scenario(folder / "scenario.yaml", [f"{key}={value}" for key, value in more.items()])


def test_local_sgd_crosses_buildings_once_in_its_inner_steps(tmp_path: Path) -> None:
    options = {"parameters": "80 MB", "compute": "10 ms", "inner_steps": 3}
    asked = scenario(tmp_path, {"plan": "local_sgd", "options": options})
    job = job_of(asked, Scale(size_scale=10.0))
    # a ring all-reduce over four ranks in two buildings crosses twice, with 2 (n - 1) / n of the array each time
    assert job.scale.real_bytes(job.wan_bytes("ring")) == pytest.approx(2 * 1.5 * 80e6, rel=1e-3)
    found = dry_runs(asked, Scale())
    assert list(found) == ["mine"]
    assert found["mine"].timeline.step_time_s > 3 * 0.010
    assert job.workload.compute_s == pytest.approx(0.030)


def step_s(folder: Path, **options: Any) -> float:
    workload = {"plan": "local_sgd", "options": {"parameters": "2 GB", "compute": "100 ms", **options}}
    return dry_runs(scenario(folder, workload), Scale())["mine"].timeline.step_time_s


def wan_bytes(folder: Path, **options: Any) -> float:
    asked = {"plan": "local_sgd", "options": {"parameters": "80 MB", "inner_steps": 4, **options}}
    return job_of(scenario(folder, asked), Scale()).wan_bytes("ring")


def test_parts_of_local_sgd_are_the_same_bytes_and_hide_behind_inner_steps(tmp_path: Path) -> None:
    assert wan_bytes(tmp_path, outer_parts=4) == pytest.approx(wan_bytes(tmp_path), rel=1e-3)
    inner_s = 4 * step_s(tmp_path, inner_steps=1, outer_bits=1)  # with next to nothing to exchange
    whole_s, streamed_s = (
        step_s(tmp_path, inner_steps=4, **options) for options in ({}, {"outer_parts": 4, "outer_overlap": 1})
    )
    assert streamed_s < whole_s
    assert streamed_s > inner_s * 0.9


def test_few_bits_of_local_sgd_cross_once_each_way_and_cannot_be_added_up(tmp_path: Path) -> None:
    # each building's 80 MB in 4 of 32 bits to the other
    assert wan_bytes(tmp_path, outer_bits=4) == pytest.approx(2 * 80e6 * 4 / 32, rel=1e-3)
    assert wan_bytes(tmp_path, outer_bits=8, outer_parts=2) == pytest.approx(2 * 80e6 * 8 / 32, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"outer_parts": 3}, "outer_parts: got 3, expected a divisor of 4, as inner_steps"),
        ({"outer_parts": 2, "outer_overlap": 3}, "outer_overlap: got 3, expected 0 to 2"),
        ({"outer_bits": 64}, "outer_bits: got 64, expected 1 to 32"),
    ],
)
def test_what_local_sgd_cannot_do_is_said(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(TestbedError, match=words):
        job_of(scenario(tmp_path, {"plan": "local_sgd", "options": options}), Scale())


def test_of_several_algorithms_each_is_tried(tmp_path: Path) -> None:
    asked = scenario(tmp_path, {"plan": "local_sgd"}, algorithms="[ring, hierarchical]")
    assert list(dry_runs(asked, Scale())) == ["ring", "hierarchical"]


MODEL = {"model": "llama3-8b", "accelerator": "h100", "bucket_cap": "4 GB", "first_bucket_cap": "4 GB"}


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("data_parallel", MODEL),
        ("collectives", {"collectives": [{"collective": "all_gather", "size": "1 MB"}], "compute": "1 ms"}),
        ("collectives", {"exchange": {"messages": 2, "size": "1 MB"}}),
        ("parallel_training", {**MODEL, "parallelism": {"data_parallel_shard_degree": 4}}),
    ],
)
def test_what_keys_describe_is_a_workload_of_the_registry(
    tmp_path: Path, kind: str, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = scenario(tmp_path, keys)
    assert asked.workload.kind == kind
    plan = job_of(asked, Scale()).workload.plan
    assert job_of(scenario(tmp_path, {**keys, "plan": kind}), Scale()).workload.plan == plan

    def other(request: WorkloadRequest) -> JobPlan:
        builder = PlanBuilder(request)
        builder.compute(0, "7 ms")
        return builder.plan()

    monkeypatch.setitem(WORKLOADS._known, kind, other)
    assert job_of(asked, Scale()).workload.compute_s == pytest.approx(0.007)


def test_a_workload_that_is_named_goes_with_its_own_keys(tmp_path: Path) -> None:
    assert set(WORKLOAD_KEYS) <= set(WORKLOADS)
    with pytest.raises(
        ConfigError, match=r"got data_parallel with keys of no workload, expected model with it"
    ):
        scenario(tmp_path, {"plan": "data_parallel"})
    with pytest.raises(
        ConfigError,
        match=r"got collectives with keys of data_parallel, expected collectives or exchange with it",
    ):
        scenario(tmp_path, {**MODEL, "plan": "collectives"})


def test_a_function_is_told_of_the_job(tmp_path: Path) -> None:
    code = """def mine(request):
    builder = PlanBuilder(request)
    for rank, host in enumerate(request.hosts):
        builder.compute(rank, len(request.topology.wan) * 1e-3, name=host.name)
    return builder.plan()
"""
    plan = job_of(scenario(tmp_path, code), Scale()).workload.plan
    assert [own[0].name for own in plan.ranks] == ["east1", "east2", "west1", "west2"]


def test_a_plan_stands_alone(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"workload.model: got model with a plan, expected only one of the two"
    ):
        scenario(tmp_path, {"plan": "local_sgd", "model": "llama3-8b"})
    with pytest.raises(ConfigError, match=r"workload.options: got options without a plan"):
        scenario(tmp_path, {"exchange": {"messages": 1, "size": "1 MB"}, "options": {}})
    with pytest.raises(
        ConfigError, match=r"FILE.py:NAME or a workload: .*local_sgd.*; did you mean local_sgd\?"
    ):
        scenario(tmp_path, {"plan": "local_sdg"})


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def mine(request):\n    return 1 / 0\n", "ZeroDivisionError: division by zero (FILE, line 6)"),
        ("def mine(request):\n    return 1\n", "FILE:5: workload mine: got a int, expected a JobPlan"),
        (
            "def mine(request, size):\n    return 1\n",
            "missing a required argument: 'size'), expected options: size",
        ),
        (
            "def mine(request):\n    c = Computing('a', 's', 'optimiser', (), 1.0)\n"
            "    return JobPlan(((c,), (), (), ()))\n",
            "got rank 0, a: computing of kind optimiser, expected one of: compute, forward, backward, full_",
        ),
        (
            "def mine(request):\n    return JobPlan(((),))\n",
            "FILE:5: workload mine: got plans of 1 ranks, expected",
        ),
        (
            "def mine(request):\n    c = Message('a', 's', 'k', (), 1, 4, 0, True)\n"
            "    return JobPlan(((c,), (), (), ()))\n",
            "got rank 0: a send of 4 elements, tag 0, from 0 to 1, expected a matching receive on rank 1",
        ),
        (
            "def mine(request):\n    b = PlanBuilder(request)\n    b.collective(b.group('g', [0, 2]), 'all_reduce', 8,"
            " algorithm='rnig')\n    return b.plan()\n",
            "all_reduce by rnig",
        ),
        (
            "def mine(request):\n    b = PlanBuilder(request)\n    one = b.compute(0, '1 ms')\n"
            "    b.message(1, 0, 8, after=one)\n",
            "after an operation of rank 0, expected one of rank 1",
        ),
        (
            "def mine(request):\n    b = PlanBuilder(request)\n    b.group('g', [0, 1])\n    b.group('g', [1, 2])\n"
            "    b.compute(0, 1)\n    return b.plan()\n",
            "group 1 (g): rank 1 twice",
        ),
        (
            "def mine(request):\n    own = [GroupCollective('c', 's', 'k', (), 0, numel=n) for n in (4, 8, 4, 4)]\n"
            "    return JobPlan(tuple((one,) for one in own), (('all', (0, 1, 2, 3)),))\n",
            "different collectives on rank 1 and on rank 0",
        ),
        (
            "def mine(request):\n    go = {'numel': 4}\n    ranks = [()] * 4\n"
            "    for here, there in ((0, 1), (1, 0)):\n"
            "        got = Message('got', 'r', 'k', (), there, 4, 0)\n"
            "        ranks[here] = (got, Message('go', 's', 'k', (0,), there, 4, 0, True))\n"
            "    return JobPlan(tuple(ranks))\n",
            "FILE:5: workload: got mine, expected one that completes; this one never completes",
        ),
    ],
)
def test_a_wrong_one_is_one_clear_error(tmp_path: Path, code: str, said: str) -> None:
    asked = scenario(tmp_path, code)
    with pytest.raises(TestbedError) as raised:
        workloads_of(asked, Scale())
    assert said.replace("FILE", str(tmp_path / "mine.py")) in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_the_builder_takes_real_figures() -> None:
    request = WorkloadRequest(("east", "west"), scale=Scale(size_scale=4.0, time_dilation=2.0))
    builder = PlanBuilder(request)
    sent, received = builder.message(0, 1, "4 kB", after=builder.compute(0, "10 ms"))
    builder.compute(1, 0.5, after=received)
    plan = builder.plan()
    check_plan(plan, 2, request.itemsize)
    assert (sent.rank, received.rank) == (0, 1)
    first = plan.ranks[0][0]
    assert isinstance(first, Computing)
    assert first.duration_s == pytest.approx(0.020)
    assert [getattr(own[-1 - rank], "numel", 0) for rank, own in enumerate(plan.ranks)] == [250, 250]
    assert from_json(JobPlan, to_json(plan)) == plan


def test_messages_and_collectives_have_the_same_options() -> None:
    request = WorkloadRequest(("east", "west"))
    plans = []
    for options in (Options(), Options(name="mine", stream="own", kind="pull", dscp=46)):
        builder = PlanBuilder(request)
        options["after"] = builder.compute(0, "1 ms")
        builder.message(0, 1, "4 kB", **options)
        builder.collective(builder.group("all"), "all_gather", "4 kB", **options)
        plans.append(builder.plan())
    usual, own = ([(one.name, one.stream, one.kind) for one in plan.ranks[0][1:]] for plan in plans)
    assert usual == [("message", "send 1", "message"), ("all_gather", "group 0", "all_gather")]
    assert own == [("mine", "own", "pull")] * 2
    assert [plan.dscps for plan in plans] == [{}, {"pull": 46}]
    assert all(one.after == (0,) for one in plans[1].ranks[0][1:])
    with pytest.raises(TestbedError, match=r"all_reduce: got option colour, expected name, .*dscp"):
        builder.collective(0, "all_reduce", 8, colour="red")  # type: ignore[call-arg]

"""A plan becomes a trace and Chakra's files, and these a plan again that takes as long."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.prediction.dry_run import dry_runs, workloads_of
from testbed.spec.errors import ConfigError
from testbed.spec.scale import UNSCALED, Scale
from testbed.spec.scenario import Scenario, load_scenario
from testbed.workload.job.kinds.trace import recorded_trace
from testbed.workload.plan import GroupCollective
from testbed.workload.trace_conversion import TraceInfo, trace_of
from testbed.workload.traces.chakra import read_job, write_job
from testbed.workload.traces.trace import Collective, Compute, TraceError
from tests.unit.workload.et_wire import (
    COMP,
    INT64,
    LOAD,
    UINT64,
    attribute,
    collective,
    node,
    version,
    waits,
    write,
)
from tests.unit.workload.test_workload_pipeline_plan import write_topology

SHIPPED = Path(__file__).parents[3] / "scenarios"


def own(name: str, variant: str) -> Scenario:
    scenario = load_scenario(SHIPPED / f"{name}.yaml")
    return scenario.variant(variant) if scenario.variants else replaced(scenario, variant)


def replaced(scenario: Scenario, algorithm: str) -> Scenario:
    return scenario.changed({"algorithms": [algorithm]}, scenario.name)


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("quickstart", "ring"),
        ("quickstart", "hierarchical"),
        ("chunking", "0.1ms-m8-v2"),
        ("sharding", "fsdp-ring-1"),
        ("send-tokens", "gpipe-tokens"),
    ],
)
def test_what_comes_back_takes_as_long(name: str, variant: str, tmp_path: Path) -> None:
    scenario = own(name, variant)
    (before,) = dry_runs(scenario, UNSCALED).values()
    trace = trace_of(before.workload.plan, TraceInfo("float32", "by hand"))
    write_job(trace, tmp_path)
    assert read_job(tmp_path) == trace
    data = {**scenario.to_data(), "workload": {"chakra": str(tmp_path)}, "algorithms": [before.algorithm]}
    (after,) = dry_runs(load_scenario(data), UNSCALED).values()
    assert after.timeline.step_time_s == before.timeline.step_time_s > 0
    plans = [run.workload.plan.with_algorithm("ring") for run in (before, after)]
    sizes = [[sum(getattr(one, "numel", 0) for one in own) for own in plan.ranks] for plan in plans]
    assert sizes[0] == sizes[1]


def test_figures_are_real_ones_and_uneven_collectives_keep_their_rows() -> None:
    scale = Scale(size_scale=10.0, time_dilation=4.0)
    scenario = own("sharding", "fsdp-ring-1")
    (workload,) = workloads_of(scenario, scale).values()
    trace = trace_of(workload.plan, TraceInfo("float32"), scale)
    (real,) = workloads_of(scenario, UNSCALED).values()
    there = [node for node in trace.ranks[0] if isinstance(node, Collective)]
    wanted = [one for one in real.plan.ranks[0] if isinstance(one, GroupCollective)]
    assert [node.numel for node in there] == pytest.approx([one.numel for one in wanted], rel=1e-4)
    rows = ((1, 2), (3, 4))
    uneven = GroupCollective("x", "s", "k", (), 0, "all_to_all_v", 8, "ring", table=rows)
    made = trace_of(
        replace(workload.plan, ranks=((uneven,), (uneven,)), groups=(("ep", (1, 0)),)), TraceInfo("float32")
    )
    assert [node.splits for own in made.ranks for node in own if isinstance(node, Collective)] == [
        (3, 4),
        (1, 2),
    ]
    assert made.groups == {"ep": (1, 0)}


def test_measured_durations_take_the_place_of_planned_ones() -> None:
    (workload,) = workloads_of(own("quickstart", "ring"), UNSCALED).values()
    trace = trace_of(workload.plan, TraceInfo("float32"), measured_s={(3, 0): 7.0})
    planned = trace_of(workload.plan, TraceInfo("float32"))
    assert trace.ranks[2] == planned.ranks[2]
    assert trace.ranks[3][1:] == planned.ranks[3][1:]
    first = trace.ranks[3][0]
    assert isinstance(first, Compute)
    assert first.duration_s == 7.0


def scenario_of(folder: Path, **workload: object) -> Scenario:
    topology = write_topology(folder, hosts=1)
    (folder / "job.yaml").write_text(
        json.dumps({"name": "job", "topology": topology.name, "ranks": 2, "workload": workload})
    )
    return load_scenario(folder / "job.yaml")


def test_traces_are_found_from_the_scenarios_folder_and_reckoned_for_its_accelerator(tmp_path: Path) -> None:
    for rank in range(2):
        work = node(0, "work", COMP, attribute("num_ops", INT64, 10**12))
        write(tmp_path / "traces" / f"a.{rank}.et", version(), work, collective(1, 0, 4096, waits(0)))
    slow = scenario_of(tmp_path, chakra="traces", peak_flops="1 Tflop/s", flops_utilisation="50 %")
    (run,) = dry_runs(slow, UNSCALED).values()
    assert run.workload.compute_s == 2.0
    h100 = scenario_of(tmp_path, chakra="traces", accelerator="h100")
    assert recorded_trace(h100.workload).ranks[0][0] == Compute(
        "work", duration_s=1 / (989 * 0.4), flops=1e12
    )
    with pytest.raises(TraceError, match=r"a\.0\.et: node 0 .*or an accelerator to estimate it for"):
        dry_runs(scenario_of(tmp_path, chakra="traces"), UNSCALED)


def test_memory_takes_its_time_where_its_rate_is_known(tmp_path: Path) -> None:
    size = attribute("tensor_size", UINT64, 67 * 10**9)
    for rank in range(2):
        load = node(0, "weights", LOAD, size)
        both = node(1, "matmul", COMP, attribute("num_ops", INT64, 10**12), size)
        write(tmp_path / "traces" / f"a.{rank}.et", version(), load, both)
    h100 = recorded_trace(scenario_of(tmp_path, chakra="traces", accelerator="h100").workload)
    assert [one.duration_s for one in h100.ranks[0] if isinstance(one, Compute)] == [
        0.02,
        0.02,
    ]  # of 3.35 TB/s
    with pytest.raises(TraceError, match=r"node 0 \(weights, MEM_LOAD_NODE\): got no duration_micros"):
        dry_runs(scenario_of(tmp_path, chakra="traces", peak_flops="1 Tflop/s"), UNSCALED)


def test_traces_of_other_ranks_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "traces" / "a.0.et", version())
    with pytest.raises(
        ConfigError, match=r"workload\.chakra: got .*traces, of 1 ranks, expected a trace of 2 ranks"
    ):
        dry_runs(scenario_of(tmp_path, chakra="traces"), UNSCALED)
    with pytest.raises(ConfigError, match="model with traces"):
        scenario_of(tmp_path, chakra="traces", model="llama3-8b", accelerator="h100")

"""Plans of traces: sizes, times and groups at a scale, and what is said of traces that a scenario cannot have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testbed.prediction.dry_run import dry_runs, workloads_of
from testbed.spec.errors import ConfigError
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario
from testbed.workload.plan import EVERYBODY, Computing, GroupCollective, Message, Pause
from testbed.workload.plans import WorkloadRequest, check_plan
from testbed.workload.trace_conversion import plan_trace
from testbed.workload.traces.trace import Collective, Compute, JobTrace, Node, PointToPoint
from tests.unit.workload.test_workload_pipeline_plan import write_topology

SCALE = Scale(size_scale=10.0, time_dilation=4.0)
REQUEST = WorkloadRequest(("east", "east", "west", "west"), scale=SCALE)


def planned(own: tuple[Node, ...], **groups: tuple[int, ...]) -> Any:
    trace = JobTrace((own,) * 4, groups or {"dp": (0, 1, 2, 3)})
    plan = plan_trace(trace, REQUEST)
    check_plan(plan, 4, REQUEST.itemsize)
    return plan


@pytest.mark.parametrize(
    ("collective", "numel", "dtype", "planned_as", "elements"),
    [
        ("all_reduce", 4000, "float32", "all_reduce", 400),
        ("all_reduce", 4000, "bfloat16", "all_reduce", 200),
        ("all_reduce", 1, "float32", "all_reduce", 1),
        ("all_gather", 4003, "bfloat16", "all_gather", 200),
        ("reduce_scatter", 40, "float32", "reduce_scatter", 4),
        ("reduce_scatter", 1, "int64", "reduce_scatter", 4),
        ("all_to_all", 8000, "float8", "all_to_all", 200),
        ("broadcast", 4000, "float64", "broadcast", 800),
        ("barrier", 0, "float32", "all_reduce", 1),
    ],
)
def test_a_collectives_bytes_are_those_of_its_type_at_the_scale(
    collective: str, numel: int, dtype: str, planned_as: str, elements: int
) -> None:
    node = Collective("one", "comm", group="dp", collective=collective, numel=numel, dtype=dtype, kind="data")
    (made,) = planned((node,)).ranks[0]
    assert (made.collective, made.numel, made.kind, made.stream) == (planned_as, elements, "data", "comm")


def test_computing_takes_its_time_and_messages_meet() -> None:
    def own(rank: int) -> tuple[Node, ...]:
        return (
            Compute("forward", duration_s=0.5, kind="forward"),
            PointToPoint("there", "out", (0,), peer=rank ^ 1, numel=100, dtype="bfloat16", sends=True, tag=3),
            PointToPoint("back", "in", peer=rank ^ 1, numel=100, dtype="bfloat16", tag=3, kind="pp"),
        )

    plan = plan_trace(JobTrace(tuple(map(own, range(4)))), REQUEST)
    check_plan(plan, 4, 4)
    assert plan.groups == ()
    computing, there, back = plan.ranks[2]
    assert computing == Computing("forward", "compute", "forward", (), 2.0)
    assert there == Message("there", "out", "message", (0,), 3, 5, 3, True)
    assert back == Message("back", "in", "pp", (), 3, 5, 3, False)


def test_groups_without_a_common_rank_share_a_name() -> None:
    def own(rank: int) -> tuple[Node, ...]:
        groups = (f"tp {rank // 2}", f"dp {rank % 2}", "world", "again", f"alone {rank}")
        return tuple(Collective("sum", group, group=group, numel=10) for group in groups)

    groups: dict[str, tuple[int, ...]] = {"tp 0": (0, 1), "tp 1": (2, 3), "dp 0": (0, 2), "dp 1": (1, 3)}
    groups |= {"world": (0, 1, 2, 3), "again": (0, 1, 2, 3), "nobody's": (0, 3)}
    groups |= {f"alone {rank}": (rank,) for rank in range(4)}
    plan = plan_trace(JobTrace(tuple(map(own, range(4))), groups), REQUEST)
    check_plan(plan, 4, 4)
    assert sorted(plan.groups) == [
        ("again", (0, 1, 2, 3)),
        (EVERYBODY, (0, 1, 2, 3)),
        ("dp 0", (0, 2)),
        ("dp 0", (1, 3)),
        ("tp 0", (0, 1)),
        ("tp 0", (2, 3)),
    ]
    assert plan.ranks[1][-1] == Pause("sum", "alone 1", "collective")


def test_a_broadcast_goes_from_its_root() -> None:
    node = Collective("weights", group="dp", collective="broadcast", numel=10, root=2)
    plan = planned((node, replace(node, root=0)))
    numbers = [operation.group for operation in plan.ranks[1]]
    assert [plan.groups[number][1][0] for number in numbers] == [2, 0]


def test_uneven_all_to_alls_have_all_ranks_rows() -> None:
    def own(rank: int) -> tuple[Node, ...]:
        splits = tuple(100 * (rank + other) for other in range(4))
        node = Collective("tokens", "ep", group="dp", collective="all_to_all_v", splits=splits)
        return (Collective("sum", "ep", group="dp", numel=10), replace(node, numel=sum(splits)))

    plan = plan_trace(JobTrace(tuple(map(own, range(4))), {"dp": (0, 1, 2, 3)}), REQUEST)
    check_plan(plan, 4, 4)
    made = plan.ranks[3][1]
    assert isinstance(made, GroupCollective)
    assert made.table == tuple(tuple(10 * (source + target) for target in range(4)) for source in range(4))
    assert made.numel == 4 * 60
    assert plan.ranks[0][1] is made


OWN: tuple[Node, ...] = (
    Compute("forward", duration_s=1e-3),
    Collective("g", "c", (0,), group="dp", numel=10**6),
)


def scenario(folder: Path, trace: JobTrace, workload: str = "{trace: job.json.gz}") -> Scenario:
    write_topology(folder, hosts=2)
    trace.write(folder / "job.json.gz")
    (folder / "scenario.yaml").write_text(f"name: mine\ntopology: pair.yaml\nworkload: {workload}\n")
    return load_scenario(folder / "scenario.yaml", [])


def test_a_scenario_names_a_trace_from_its_folder(tmp_path: Path) -> None:
    asked = scenario(tmp_path, JobTrace((OWN,) * 4, {"dp": (0, 1, 2, 3)}))
    assert asked.workload.kind == "trace"
    (tried,) = dry_runs(asked, Scale()).values()
    assert tried.timeline.step_time_s > 1e-3
    # a ring over two buildings of two crosses twice, with 3/2 of the array each time
    assert sum(tried.workload.pairs("ring")[0].values()) == 6 * 4 * 10**6


def test_a_trace_of_other_ranks_is_refused(tmp_path: Path) -> None:
    asked = scenario(tmp_path, JobTrace((OWN,) * 2, {"dp": (0, 1)}))
    expected = r"mine: workload.trace: got .*job.json.gz, of 2 ranks, expected a trace of 4 ranks"
    with pytest.raises(ConfigError, match=expected):
        workloads_of(asked, Scale())


def test_ranks_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    other = (OWN[0], Collective("g", "c", (0,), site="train.py:4", group="dp", numel=9))
    asked = scenario(tmp_path, JobTrace((*(OWN,) * 3, other), {"dp": (0, 1, 2, 3)}))
    with pytest.raises(ConfigError, match=r"fit together: collective 0 of group dp .* rank 3 at train.py:4"):
        workloads_of(asked, Scale())


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ("{trace: job.json.gz, model: llama3-8b, accelerator: h100}", "model with a trace"),
        ("{trace: job.json.gz, plan: local_sgd}", "trace with a plan"),
        ("{trace: job.json.gz, plan: collectives}", "got collectives with keys of trace"),
        ("{trace: job.json.gz, options: {a: 1}}", "options with a trace"),
        ("{plan: trace}", "got trace with keys of no workload, expected trace with it"),
    ],
)
def test_a_trace_says_all_that_ranks_do(workload: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        scenario(tmp_path, JobTrace((OWN,) * 4, {"dp": (0, 1, 2, 3)}), workload)

"""Ranks of a recorded job in other places: orders by what they do together, nothing lost on the way."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from testbed.cli.main import app
from testbed.prediction.dry_run import dry_runs
from testbed.show.exchange import export_chakra, load_job
from testbed.spec.buildings import Host
from testbed.spec.errors import ConfigError
from testbed.spec.scale import UNSCALED
from testbed.spec.scenario import load_scenario
from testbed.workload.job.job import job_of
from testbed.workload.plan import Computing
from testbed.workload.plan_volume import plan_traffic
from testbed.workload.plans import WorkloadRequest
from testbed.workload.trace_conversion import plan_trace
from testbed.workload.traces.consistency import check_matching
from testbed.workload.traces.rank_orders import families_of, order_of, placements_of, reorder_ranks
from testbed.workload.traces.trace import Collective, Compute, JobTrace, PointToPoint
from tests.unit.workload.recorded_jobs import PIPELINE, REPLICATE, SHARD, asked, recorded

MESH = recorded(2, 2, 2)
CROSSED = [0, 4, 1, 5, 2, 6, 3, 7]


def test_kinds_join_ranks_by_groups_and_by_messages() -> None:
    assert families_of(MESH) == {
        PIPELINE: ((0, 2), (1, 3), (4, 6), (5, 7)),
        REPLICATE: ((0, 4), (1, 5), (2, 6), (3, 7)),
        SHARD: ((0, 1), (2, 3), (4, 5), (6, 7)),
    }
    assert families_of(recorded(1, 4, 1))[PIPELINE] == ((0, 1, 2, 3),)
    assert families_of(JobTrace(((Compute("alone"),),) * 2)) == {}


@pytest.mark.parametrize(
    ("kinds", "order"),
    [
        ((), (0, 1, 2, 3, 4, 5, 6, 7)),
        ((REPLICATE, PIPELINE, SHARD), (0, 1, 2, 3, 4, 5, 6, 7)),
        ((SHARD,), (0, 1, 2, 3, 4, 5, 6, 7)),
        ((REPLICATE,), (0, 4, 1, 5, 2, 6, 3, 7)),
        ((SHARD, PIPELINE, REPLICATE), (0, 4, 2, 6, 1, 5, 3, 7)),
        ((PIPELINE, REPLICATE, SHARD), (0, 1, 4, 5, 2, 3, 6, 7)),
    ],
)
def test_ranks_of_the_innermost_kind_are_next_to_each_other(
    kinds: tuple[str, ...], order: tuple[int, ...]
) -> None:
    assert order_of(MESH, kinds) == order


def test_placements_are_those_that_differ() -> None:
    found = placements_of(MESH)
    assert len(found) == 5  # of six orders of three kinds one is the ranks' own
    assert len({tuple(order) for order in found.values()}) == 5
    assert all(order_of(MESH, kinds) == order for kinds, order in found.items())
    assert placements_of(recorded(4, 1, 1)) == {}  # what joins all says nothing


def test_another_order_keeps_all_bytes_and_who_sends_them_to_whom() -> None:
    """Of a job with roots, messages and uneven exchanges, too."""

    def own(rank: int) -> tuple[Any, ...]:
        splits = tuple(100 * (rank + other) for other in range(4))
        return (
            Collective("weights", group="all", collective="broadcast", numel=1000, root=2),
            Collective("tokens", group="all", collective="all_to_all_v", numel=sum(splits), splits=splits),
            PointToPoint("there", "out", peer=(rank + 1) % 4, numel=10 * (rank + 1), sends=True),
            PointToPoint("here", "in", peer=(rank - 1) % 4, numel=10 * ((rank - 1) % 4 + 1)),
        )

    request = WorkloadRequest(("east",) * 4)
    trace = JobTrace(tuple(map(own, range(4))), {"all": (0, 1, 2, 3)})
    order = (2, 0, 3, 1)
    moved = reorder_ranks(trace, order)
    check_matching(moved)
    before, after = (plan_traffic(plan_trace(one, request), 4) for one in (trace, moved))
    assert {(order[here], order[there]): size for (here, there), size in after.items()} == before
    assert moved.ranks[0][0] == Collective(
        "weights", group="all", collective="broadcast", numel=1000, root=order.index(2)
    )
    assert reorder_ranks(moved, (1, 3, 0, 2)) == trace  # back again
    assert reorder_ranks(trace, range(4)) is trace


def test_a_scenario_says_where_ranks_are(tmp_path: Path) -> None:
    """Shards over two buildings send more between them than replicas do; how much all send together stays."""
    crossing, everything = {}, {}
    for name, workload in {
        "recorded": {},
        "crossed": {"mapping": CROSSED},
        "stages": {"placement": [PIPELINE, REPLICATE, SHARD]},
        "scattered": {"mapping": "scattered"},
        "aware": {"mapping": "topology_aware", "placement": [SHARD, PIPELINE, REPLICATE]},
    }.items():
        job = job_of(asked(tmp_path, MESH, workload=workload), UNSCALED)
        crossing[name], everything[name] = job.wan_bytes("ring"), sum(job.workload.pairs("ring")[0].values())
    assert len(set(everything.values())) == 1
    assert (
        crossing["recorded"] == 8 * 4 * 10**6
    )  # gradients of 4 MB in groups of two that cross: each sends 4 MB
    assert crossing["aware"] == crossing["stages"] == 4 * 4 * 10**5  # activations: there is none less
    assert crossing["scattered"] > crossing["recorded"]
    assert crossing["crossed"] > crossing["recorded"]


def test_a_mapping_is_the_rank_of_each_place(tmp_path: Path) -> None:
    job = job_of(asked(tmp_path, marked(4), workload={"mapping": [2, 0, 3, 1]}), UNSCALED)
    assert computing_s(job) == [1, 3, 0, 2]
    outer = {"mapping": "by_distance"}
    assert computing_s(job_of(asked(tmp_path, marked(4), 4, workload=outer), UNSCALED)) == [0, 1, 2, 3]


def test_plan_says_which_ranks_of_the_trace_are_where(tmp_path: Path) -> None:
    asked(tmp_path, marked(4), workload={"mapping": [2, 0, 3, 1]})
    said = CliRunner().invoke(app, ["plan", str(tmp_path / "scenario.yaml")], catch_exceptions=False).stdout
    assert "mine: ranks 0, 1, ... are the trace's 1, 3, 0, 2." in said
    own = ["plan", str(tmp_path / "scenario.yaml"), "--set", "workload.mapping=consecutive"]
    assert "the trace's" not in CliRunner().invoke(app, own, catch_exceptions=False).stdout


def marked(ranks: int) -> JobTrace:
    """Each computes for as many seconds as its number."""
    return JobTrace(tuple((Compute("own", duration_s=float(rank)),) for rank in range(ranks)))


def computing_s(job: Any) -> list[float]:
    assert all(isinstance(host, Host) for host in job.hosts)
    return [one.duration_s for own in job.workload.plan.ranks for one in own if isinstance(one, Computing)]


def test_algorithms_go_to_collectives_of_a_kind_that_have_them(tmp_path: Path) -> None:
    workload = {"algorithms": {SHARD: "far_first", REPLICATE: "double_tree"}}
    plan = job_of(asked(tmp_path, MESH, workload=workload), UNSCALED).workload.plan
    named = Counter((op.kind, op.algorithm) for own in plan.ranks for op in own if hasattr(op, "algorithm"))
    assert named == {(SHARD, "far_first"): 8, (REPLICATE, "double_tree"): 8}
    # far_first is none of all-reduces, which go by the variant's
    (node,) = (Collective("sum", group="all", kind=SHARD, numel=10),)
    mixed = JobTrace(
        ((node, Collective("all", group="all", collective="all_gather", numel=8, kind=SHARD)),) * 4,
        {"all": (0, 1, 2, 3)},
    )
    plan = job_of(
        asked(tmp_path, mixed, workload={"algorithms": {SHARD: "far_first"}}), UNSCALED
    ).workload.plan
    assert [op.algorithm for op in plan.ranks[0] if hasattr(op, "algorithm")] == ["", "far_first"]


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ({"placement": ["shards"]}, "workload.placement: got shards, expected a kind .* did you mean shard"),
        ({"mapping": [1, 0]}, "workload.mapping: got a list of 2, expected each of 8 ranks once"),
        ({"algorithms": {"tensor": "ring"}}, "workload.algorithms.tensor: got ring, expected a kind of coll"),
        (
            {"algorithms": {REPLICATE: "far_first"}},
            "workload.algorithms.replicate: got far_first, expected an algorithm of all_reduce",
        ),
    ],
)
def test_what_is_of_another_job_is_named(workload: dict[str, Any], said: str, tmp_path: Path) -> None:
    scenario = asked(tmp_path, MESH, workload=workload)
    with pytest.raises(ConfigError, match=said):
        job_of(scenario, UNSCALED)


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ({"placement": "production"}, "expected as_recorded, or kinds of communication"),
        ({"placement": [SHARD, SHARD]}, "expected as_recorded, or kinds of communication"),
        ({"mapping": "scatterd"}, "expected consecutive, scattered"),
        ({"mapping": "by_speed"}, "expected consecutive, scattered, topology_aware, by_distance, or a list"),
        ({"algorithms": {SHARD: "rin"}}, "for shard FILE.py:NAME or an algorithm: .* did you mean ring"),
    ],
)
def test_what_is_no_choice_is_refused(workload: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        asked(tmp_path, MESH, workload=workload)


def test_choices_of_a_trace_need_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"workload.mapping: got mapping without trace or chakra"):
        asked(tmp_path, MESH).changed(
            {
                "workload": {
                    "collectives": [{"collective": "all_reduce", "size": "1 MB"}],
                    "mapping": "scattered",
                }
            },
            "other",
        )


def test_words_for_the_files_own_order_say_nothing_more(tmp_path: Path) -> None:
    plain = asked(tmp_path, MESH)
    said = asked(tmp_path, MESH, workload={"placement": "as_recorded", "mapping": "consecutive"})
    assert said == plain
    own = asked(tmp_path, MESH, workload={"placement": [SHARD, REPLICATE], "mapping": CROSSED})
    assert own.changed({}, "again") == own


def test_what_goes_out_is_as_it_was_placed(tmp_path: Path) -> None:
    workload = {"mapping": CROSSED, "algorithms": {SHARD: "far_first"}}
    own = asked(tmp_path, MESH, workload=workload, explore={"space": {"workload.mapping": [CROSSED]}})
    job = load_job(tmp_path / "scenario.yaml")
    out = job.trace
    assert out.groups[f"{SHARD} 0.0"] == (0, 4)  # the ranks on hosts 0 and 4
    assert {node.algorithm for node in out.ranks[0] if isinstance(node, Collective)} == {"far_first", ""}
    export_chakra(job, tmp_path / "out")
    back = load_scenario(tmp_path / "out/scenario.yaml")
    took_s = [one.timeline.step_time_s for some in (own, back) for one in dry_runs(some, UNSCALED).values()]
    assert took_s[0] == took_s[1]

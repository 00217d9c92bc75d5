"""Outer optimizers of planned jobs: what replicas exchange, when, and what waits for it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from testbed.prediction.dry_run import DryRun, dry_runs
from testbed.spec.errors import ConfigError
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario
from testbed.workload.dependency_tracker import waits
from testbed.workload.job.job import workload_of
from testbed.workload.local_sgd import OuterSchedule, Turn, repeat_steps
from testbed.workload.plan import Computing, GroupCollective, Message, Operation
from tests.unit.workload.test_workload_pipeline_plan import (
    MICROBATCHES,
    SCALE,
    numel,
    scenario,
    sent_bytes,
    workload,
    write_topology,
)

HSDP = {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 4}


def tried(made: Scenario) -> DryRun:
    (found,) = dry_runs(made, Scale()).values()
    return found


def step_s(folder: Path, parallelism: dict[str, Any] = HSDP, **more: Any) -> float:
    return tried(scenario(folder, parallelism, **more)).timeline.step_time_s


# ---- bytes by formula, of P parameters on n replicas; inside a replica they are what they are without


@pytest.mark.parametrize(
    ("outer", "steps", "bytes_of_parameter"),
    [
        ({"every": 1}, 1, 2 * 1 * 4),  # 2 (n - 1) x 4 P, as gradients in every step
        ({"every": 3}, 3, 2 * 1 * 4),
        ({"every": 4, "parts": 2}, 2, 2 * 1 * 4 / 2),
        ({"every": 4, "parts": 2, "overlap": 1}, 2, 2 * 1 * 4 / 2),
        ({"every": 4, "parts": 4, "overlap": 1, "bits": 16}, 1, 2 * 1 * 2 / 4),
        ({"every": 2, "bits": 8}, 2, 2 * (2 - 1) * 1),  # n (n - 1) x P bits / 8
        ({"every": 2, "parts": 2, "bits": 4}, 1, 2 * (2 - 1) * 0.5 / 2),
    ],
)
def test_replicas_exchange_what_their_parts_have_in_so_many_bits(
    tmp_path: Path, outer: dict[str, int], steps: int, bytes_of_parameter: float
) -> None:
    made = workload(tmp_path, HSDP, outer=outer)
    assert sent_bytes(made, crossing=True) == pytest.approx(bytes_of_parameter * numel(), rel=1e-3)
    # each replica's shards gather parameters in every microbatch, twice, and scatter gradients
    inside = 2 * 3 * numel() * (2 * MICROBATCHES * 2 + 4)
    assert sent_bytes(made, crossing=False) == pytest.approx(steps * inside, rel=1e-3)


def test_few_bits_of_more_replicas_are_gathered_by_all(tmp_path: Path) -> None:
    parallelism = {"data_parallel_replicate_degree": 8}
    summed = workload(tmp_path, parallelism, outer={"every": 1, "bits": 16})
    gathered = workload(tmp_path, parallelism, outer={"every": 1, "bits": 8})
    assert sent_bytes(summed) == pytest.approx(2 * 7 * 2 * numel(), rel=1e-3)
    assert sent_bytes(gathered) == pytest.approx(8 * 7 * 1 * numel(), rel=1e-3)


def test_more_training_steps_are_as_many_exchanges_more(tmp_path: Path) -> None:
    outer = {"every": 4, "parts": 2, "overlap": 2}
    once = workload(tmp_path, HSDP, outer=outer)
    twice = workload(tmp_path, HSDP, outer=outer, training_steps=4)
    assert twice.pairs("ring")[0] == {pair: 2 * size for pair, size in once.pairs("ring")[0].items()}
    names = {op.name for op in twice.plan.ranks[0] if isinstance(op, GroupCollective) and "outer" in op.name}
    assert names == {"outer gradients 0", "outer gradients 1"}


def test_a_model_in_stages_and_with_experts_exchanges_what_each_rank_has(tmp_path: Path) -> None:
    parallelism = {"data_parallel_replicate_degree": 2, "pipeline_parallel_degree": 4}
    made = workload(tmp_path, parallelism, outer={"every": 2})
    boundaries = 2 * 2 * MICROBATCHES * 3 * 2 * 2048 * 1024 * 2  # steps x replicas x ... x directions x bytes
    assert sent_bytes(made) == pytest.approx(2 * 4 * numel() + boundaries, rel=1e-3)


# ---- when


@pytest.mark.parametrize(
    ("outer", "steps", "turns"),
    [
        (OuterSchedule(4), 4, [Turn(0, 4, 4)]),
        (OuterSchedule(4), 8, [Turn(0, 4, 4), Turn(0, 8, 8)]),
        (OuterSchedule(2, parts=3, overlap=1), 4, [Turn(0, 0, 1), Turn(1, 2, 3)]),
        (OuterSchedule(1, parts=2, overlap=1), 3, [Turn(0, 0, 1), Turn(1, 1, 2), Turn(0, 2, 3)]),
    ],
)
def test_parts_take_turns_at_even_distances(outer: OuterSchedule, steps: int, turns: list[Turn]) -> None:
    assert outer.turns(steps) == turns


def test_a_step_begins_when_the_one_before_is_over_and_what_is_due_is_there() -> None:
    plan: list[Operation] = [
        Message("receive", "receives", "pipeline_parallel", peer=1, numel=1, tag=3),
        Computing("forward", "compute", "forward", (0,), 1.0),
        Computing("backward", "compute", "backward", (), 1.0),
        GroupCollective("gradients", "fsdp", "fsdp", (2,)),
    ]
    exchange = GroupCollective("outer gradients", "outer", "outer")
    (rows,) = repeat_steps([tuple(plan)], 3, OuterSchedule(2, parts=2, overlap=1), [exchange])
    names = [operation.name for operation in rows]
    of_step = [[f"{one.name}, step {step}" for one in plan] for step in range(3)]
    assert names == [
        *["outer gradients 0", *of_step[0]],
        *[*of_step[1], "outer gradients 1"],
        *of_step[2],
    ]
    reached = [{*own} for own in waits(rows)]
    for own in reached:
        own |= {further for near in own for further in reached[near]}
    place = names.index
    for before, after in pairwise(of_step):
        assert {place(name) for name in before} <= reached[place(after[0])] & reached[place(after[-1])]
    assert place("outer gradients 0") not in reached[place("gradients, step 0")]
    assert place("outer gradients 0") in reached[place("receive, step 1")]
    assert place("gradients, step 1") in reached[place("outer gradients 1")]
    assert place("outer gradients 1") not in reached[place("gradients, step 2")]
    assert len({one.tag for one in rows if isinstance(one, Message)}) == 3


STAGES = {"data_parallel_replicate_degree": 2, "pipeline_parallel_degree": 4}


@pytest.mark.parametrize(
    ("parallelism", "schedule"),
    [
        (HSDP, {}),
        ({"pipeline_parallel_degree": 4, "data_parallel_shard_degree": 2}, {}),
        ({"tensor_parallel_degree": 4, "context_parallel_degree": 2}, {}),
        (STAGES, {"receives": "in_order"}),
        (STAGES, {"wan_send_tokens": True}),
        ({"pipeline_parallel_degree": 2, "data_parallel_shard_degree": 4}, {"name": "ZBVZeroBubble"}),
    ],
)
def test_steps_in_a_row_take_as_long_as_by_themselves(
    tmp_path: Path, parallelism: dict[str, Any], schedule: dict[str, Any]
) -> None:
    once_s = step_s(tmp_path, parallelism, schedule=schedule)
    assert step_s(tmp_path, parallelism, schedule=schedule, training_steps=3) == pytest.approx(3 * once_s)


STAGE = {"forward": "20 ms", "backward_input": "40 ms", "backward_weight": "40 ms", "activation": "1 MB"}


def stage_job(folder: Path, outer: dict[str, int], gradients: str = "1 GB") -> DryRun:
    """Steps of 100 ms; 1 GB takes 20 ms at 400 Gbit/s and 1 ms to get there."""
    write_topology(folder, hosts=1)
    content = {
        "name": "apart",
        "topology": str(folder / "pair.yaml"),
        "algorithms": ["ring"],
        "workload": {
            "stage": {**STAGE, "gradients": gradients},
            "parallelism": {"data_parallel_replicate_degree": 2},
            "schedule": {"microbatches": 1},
            "outer": outer,
        },
    }
    return tried(load_scenario(content))


def test_an_exchange_is_waited_for_unless_it_overlaps(tmp_path: Path) -> None:
    alone_s = stage_job(tmp_path, {"every": 1, "parts": 1}, "1 kB").timeline.step_time_s - 0.1
    waited_s = stage_job(tmp_path, {"every": 3}).timeline.step_time_s - 0.3
    assert 0.002 < alone_s < 0.003  # two rounds of 1 ms
    assert waited_s == pytest.approx(0.020 + alone_s, rel=0.02)
    hidden_s = stage_job(tmp_path, {"every": 3, "overlap": 1}).timeline.step_time_s
    assert hidden_s == pytest.approx(0.3)
    # 10 GB take two steps: with one to overlap the second waits, with two none does
    large_s = stage_job(tmp_path, {"every": 1}, "10 GB").timeline.step_time_s - 0.1
    assert large_s == pytest.approx(0.2, rel=0.05)
    for overlap, expected_s in ((1, large_s + 0.2), (2, large_s + 0.1), (3, 0.3)):
        found_s = stage_job(tmp_path, {"every": 3, "overlap": overlap}, "10 GB").timeline.step_time_s
        assert found_s == pytest.approx(expected_s, rel=1e-6), overlap


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("bits", [32, 8])
def test_it_is_what_local_sgd_does(tmp_path: Path, overlap: int, bits: int) -> None:
    ours = stage_job(tmp_path, {"every": 4, "parts": 4, "overlap": overlap, "bits": bits})
    options = {"parameters": "1 GB", "compute": "100 ms", "inner_steps": 4, "outer_parts": 4}
    options |= {"outer_overlap": overlap, "outer_bits": bits}
    plan = {"plan": "local_sgd", "options": options}
    document = {"name": "apart", "topology": str(tmp_path / "pair.yaml"), "workload": plan}
    theirs = tried(load_scenario({**document, "algorithms": ["ring"]}))
    assert theirs.timeline.step_time_s == pytest.approx(4 * ours.timeline.step_time_s, rel=1e-3)
    sent = [one.workload.pairs("ring")[0] for one in (ours, theirs)]
    assert sent[1] == {pair: 4 * size for pair, size in sent[0].items()}


# ---- what does not fit


@pytest.mark.parametrize(
    ("parallelism", "more", "words"),
    [
        (HSDP, {"outer": {"every": 4, "parts": 3}}, r"outer.parts: got 3, expected a divisor of every \(4\)"),
        (HSDP, {"outer": {"every": 4, "parts": 2, "overlap": 3}}, "outer.overlap: got 3, expected 0 to 2"),
        (HSDP, {"outer": {"every": 4, "bits": 7}}, "outer.bits: got 7, expected one of: 32, 16, 8, 4"),
        (
            HSDP,
            {"outer": {"every": 4}, "training_steps": 6},
            "training_steps: got 6, expected a multiple of 4",
        ),
        ({"data_parallel_shard_degree": 8}, {"outer": {"every": 4}}, "got outer without replicas"),
        (
            {**HSDP, "collectives": {"data_parallel_replicate": "ring"}},
            {"outer": {"every": 4, "bits": 8}},
            "outer.bits: got 8 with collectives.data_parallel_replicate: ring",
        ),
        ({**HSDP, "faults": {}}, {"outer": {"every": 4}}, "got outer with parallelism.faults"),
        ({**HSDP, "faults": {}}, {"training_steps": 4}, "got training_steps with parallelism.faults"),
    ],
)
def test_what_does_not_fit_is_said(
    tmp_path: Path, parallelism: dict[str, Any], more: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        scenario(tmp_path, parallelism, **more)


def test_replicas_are_of_ranks_of_their_own(tmp_path: Path) -> None:
    others = ["data_parallel_shard", "pipeline_parallel", "context_parallel", "tensor_parallel"]
    within = {
        "data_parallel_replicate_degree": 2,
        "data_parallel_shard_degree": 8,
        "accelerators_per_rank": 2,
        "placement": [*others, "data_parallel_replicate"],
    }
    made = scenario(tmp_path, within, outer={"every": 4})
    with pytest.raises(ConfigError, match="outer: got replicas in one rank of 2 accelerators"):
        workload_of(made, made.topology.resolve(SCALE), SCALE)


def test_variants_have_as_many_training_steps_and_a_search_has_one(tmp_path: Path) -> None:
    data = scenario(tmp_path, HSDP).to_data()
    with pytest.raises(ConfigError, match="training steps of a step: 1 in plain, 4 in seldom"):
        load_scenario({**data, "variants": {"plain": {}, "seldom": {"workload.outer": {"every": 4}}}})
    data["workload"]["training_steps"] = 2
    with pytest.raises(ConfigError, match=r"explore: got a search with workload\.outer or training_steps"):
        load_scenario({**data, "explore": {"space": {"workload.schedule.prefetch": [1, 2]}}})


@pytest.mark.parametrize("keys", [{"outer": {"every": 2}}, {"training_steps": 2}])
def test_other_workloads_have_none(tmp_path: Path, keys: dict[str, Any]) -> None:
    write_topology(tmp_path)
    head = {"name": "none", "topology": str(tmp_path / "pair.yaml")}
    for workload_data, words in (
        ({"model": "llama3-8b", "accelerator": "h100"}, f"{next(iter(keys))} without parallelism"),
        ({"plan": "local_sgd"}, f"{next(iter(keys))} with a plan"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_scenario({**head, "workload": {**workload_data, **keys}})

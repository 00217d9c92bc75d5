"""From degrees, placement and schedule to plans: who is where, and bytes by closed formulas."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, permutations
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.comm.collectives import between_groups
from testbed.documents import from_json, to_json
from testbed.prediction.dry_run import check_memory, dry_run
from testbed.prediction.timeline import break_down_step, find_critical_path
from testbed.spec.errors import ConfigError
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario
from testbed.spec.transformer import ModelSpec
from testbed.workload.job.job import Workload, workload_of
from testbed.workload.job.rank_placement import minimize_crossing, shortest_route
from testbed.workload.models import parameters
from testbed.workload.parallelism import (
    CONTEXT,
    DIMENSIONS,
    EXPERT,
    PIPELINE,
    REPLICATE,
    SHARD,
    TENSOR,
    ParallelismError,
    make_mesh,
)
from testbed.workload.plan import Computing, GroupCollective, JobPlan, Message, jittered_s
from testbed.workload.stages import split_layers

SCALE = Scale(100.0, 1.0)
LAYERS, DIM, SEQUENCE, MICROBATCHES = 4, 1024, 2048, 4
MODEL = {"dim": DIM, "n_layers": LAYERS, "n_heads": 8, "n_kv_heads": 4, "ffn_dim": 4096, "vocab_size": 8192}
ACTIVATION_BYTES = SEQUENCE * DIM * 2


def write_topology(folder: object, hosts: int = 4, rate: str = "400 Gbit/s") -> Path:
    path = Path(str(folder)) / "pair.yaml"
    building = {"hosts": hosts, "nic": {"rate": rate}}
    wan = {"a": "east", "b": "west", "rate": rate, "delay": "1 ms"}
    path.write_text(
        yaml.safe_dump({"name": "pair", "buildings": {"east": building, "west": building}, "wan": [wan]})
    )
    return path


def scenario(
    folder: Path,
    parallelism: dict[str, Any],
    schedule: dict[str, Any] | None = None,
    algorithms: tuple[str, ...] = ("ring",),
    **workload: Any,
) -> Scenario:
    write_topology(folder)
    path = folder / "scenario.yaml"
    content = {
        "name": "training",
        "topology": "pair.yaml",
        "algorithms": list(algorithms),
        "workload": {
            "model": MODEL,
            "accelerator": "h100",
            "sequence_length": SEQUENCE,
            "parallelism": parallelism,
            "schedule": {"microbatches": MICROBATCHES, **(schedule or {})},
            **workload,
        },
    }
    path.write_text(yaml.safe_dump(content))
    return load_scenario(path)


def workload(folder: Path, parallelism: dict[str, Any], **more: Any) -> Workload:
    made = scenario(folder, parallelism, **more)
    return workload_of(made, made.topology.resolve(SCALE), SCALE)


def sent_bytes(made: Workload, *, crossing: bool | None = None) -> float:
    """Real payload bytes of a step, all of them or those that cross or not."""
    pairs = made.pairs("ring")[0]
    return SCALE.real_bytes(
        sum(
            count
            for (a, b), count in pairs.items()
            if crossing is None or (made.buildings[a] != made.buildings[b]) == crossing
        )
    )


def numel() -> int:
    return sum(parameter.numel for parameter in parameters(ModelSpec.model_validate(MODEL)))


# ---- closed formulas, of all bytes that ranks send in a step; docs/reference/training.md has them


def test_replicas_all_reduce_their_gradients(tmp_path: Path) -> None:
    made = workload(tmp_path, {"data_parallel_replicate_degree": 8})
    assert sent_bytes(made) == pytest.approx(2 * 7 * 4 * numel(), rel=1e-3)


def test_shards_gather_parameters_and_scatter_gradients(tmp_path: Path) -> None:
    made = workload(tmp_path, {"data_parallel_shard_degree": 8})
    # forward and backward of every microbatch gather 2 bytes, the last microbatch scatters 4
    assert sent_bytes(made) == pytest.approx(7 * numel() * (2 * MICROBATCHES * 2 + 4), rel=1e-3)


@pytest.mark.parametrize("algorithm", ["ring", "near_first", "far_first", "hierarchical", "auto"])
def test_shards_send_as_their_algorithm_has_it(tmp_path: Path, algorithm: str) -> None:
    """Four ranks in each building: a ring crosses with 7/8 of an array each way, the least is half of one."""
    made = workload(
        tmp_path, {"data_parallel_shard_degree": 8, "collectives": {"data_parallel_shard": algorithm}}
    )
    gathers, scatters = 2 * MICROBATCHES * 2 * numel(), 4 * numel()
    crossing = {
        "ring": 2 * 7 / 8 * (gathers + scatters),
        # the half of the array that is not there: by the four pairs at once, or the eighths that each has
        "near_first": 4 * gathers + scatters,
        "far_first": gathers + 4 * scatters,
    }.get(algorithm, gathers + scatters)
    assert sent_bytes(made, crossing=True) == pytest.approx(crossing, rel=1e-3)


@pytest.mark.parametrize("sequence", [False, True])
def test_tensor_ranks_apart_send_as_their_algorithm_has_it(tmp_path: Path, sequence: bool) -> None:
    parallelism: dict[str, Any] = {"tensor_parallel_degree": 8, "placement": "crosspipe"}
    if sequence:
        parallelism["tensor_communication"] = "sequence_parallel"
    crossing = [
        sent_bytes(
            workload(tmp_path, {**parallelism, "collectives": {"tensor_parallel": name}}), crossing=True
        )
        for name in ("ring", "hierarchical")
    ]
    assert crossing[0] == pytest.approx(7 / 4 * crossing[1], rel=1e-3)


def test_replicas_take_the_variants_algorithm_or_their_own(tmp_path: Path) -> None:
    degrees = {"data_parallel_replicate_degree": 8}
    made = workload(tmp_path, degrees, algorithms=["ring", "hierarchical"])
    ring, hierarchical = (
        between_groups(made.pairs(name)[0], made.buildings) for name in ("ring", "hierarchical")
    )
    assert ring == pytest.approx(7 / 4 * hierarchical, rel=1e-3)
    fixed = workload(tmp_path, {**degrees, "collectives": {"data_parallel_replicate": "hierarchical"}})
    assert fixed.pairs("ring") == fixed.pairs("hierarchical") == {0: made.pairs("hierarchical")[0]}


def test_shards_of_replicas_all_reduce_what_they_have(tmp_path: Path) -> None:
    made = workload(tmp_path, {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 4})
    assert sent_bytes(made, crossing=True) == pytest.approx(2 * 1 * 4 * numel(), rel=1e-3)
    gathered = 2 * 3 * numel() * (2 * MICROBATCHES * 2 + 4)
    assert sent_bytes(made, crossing=False) == pytest.approx(gathered, rel=1e-3)


def test_a_pipeline_sends_activations_and_their_gradients(tmp_path: Path) -> None:
    parallelism = {
        "data_parallel_replicate_degree": 2,
        "pipeline_parallel_degree": 4,
        "placement": "crosspipe",
    }
    made = workload(tmp_path, parallelism)
    assert sent_bytes(made, crossing=True) == pytest.approx(2 * 2 * MICROBATCHES * ACTIVATION_BYTES, rel=1e-3)
    inside = 2 * 2 * 2 * MICROBATCHES * ACTIVATION_BYTES + 2 * 4 * numel()
    assert sent_bytes(made, crossing=False) == pytest.approx(inside, rel=2e-3)


@pytest.mark.parametrize("name", ["CrossUD", "CrossUDSub", "ZBH1"])
def test_gradients_are_reduced_however_the_backward_is_cut(tmp_path: Path, name: str) -> None:
    parallelism = {"data_parallel_replicate_degree": 2, "pipeline_parallel_degree": 4}
    made = workload(tmp_path, parallelism, schedule={"name": name})
    assert sent_bytes(made, crossing=True) == pytest.approx(2 * 4 * numel(), rel=1e-2)


def test_tensor_ranks_all_reduce_twice_per_block_and_direction(tmp_path: Path) -> None:
    made = workload(tmp_path, {"data_parallel_replicate_degree": 2, "tensor_parallel_degree": 4})
    reduced = 2 * (2 * 3) * 4 * LAYERS * MICROBATCHES * ACTIVATION_BYTES
    assert sent_bytes(made, crossing=False) == pytest.approx(reduced, rel=1e-3)
    assert sent_bytes(made, crossing=True) == pytest.approx(2 * 4 * numel(), rel=1e-2)


def test_context_ranks_pass_keys_and_values_round(tmp_path: Path) -> None:
    made = workload(tmp_path, {"data_parallel_replicate_degree": 2, "context_parallel_degree": 4})
    keys = SEQUENCE // 4 * 2 * (DIM // 8 * 4) * 2  # of one rank: tokens, keys and values, bytes
    ring = 8 * 3 * (1 + 2) * LAYERS * MICROBATCHES * keys
    sharded = 2 * 3 * numel() * (2 * MICROBATCHES * 2 + 4)
    assert sent_bytes(made, crossing=False) == pytest.approx(ring + sharded, rel=1e-3)


def test_experts_get_tokens_and_send_them_back(tmp_path: Path) -> None:
    parallelism = {
        "data_parallel_replicate_degree": 2,
        "data_parallel_shard_degree": 4,
        "expert_parallel_degree": 4,
        "accelerators_per_rank": 1,
    }
    made = workload(tmp_path, parallelism, model="mixtral-8x7b", local_batch_size=1)
    layers, dim, per_token = 32, 4096, 2
    tokens = SEQUENCE * dim * 2 * per_token
    dense = sum(p.numel for p in parameters("mixtral-8x7b") if p.share == 1)
    exchanged = 8 * 4 * layers * MICROBATCHES * tokens * 3 / 4
    sharded = 2 * 3 * dense * (2 * MICROBATCHES * 2 + 4)
    assert sent_bytes(made, crossing=False) == pytest.approx(exchanged + sharded, rel=1e-3)


EXPERTS = {**MODEL, "experts": 8, "experts_per_token": 2}


def expert_workload(folder: Path, **parallelism: Any) -> Workload:
    given = {
        "data_parallel_replicate_degree": 2,
        "data_parallel_shard_degree": 4,
        "expert_parallel_degree": 4,
    }
    return workload(folder, {**given, **parallelism}, model=EXPERTS)


def test_uneven_routing_sends_as_many_tokens_and_the_counts(tmp_path: Path) -> None:
    even, skewed = expert_workload(tmp_path), expert_workload(tmp_path, routing_skew=0.5)
    exchanges = 8 * 4 * LAYERS * MICROBATCHES
    counts = exchanges * 3 * 8 * SCALE.size_scale  # of 8 bytes each, which no scale makes smaller
    assert sent_bytes(skewed) == pytest.approx(sent_bytes(even) + counts, rel=1e-3)


def test_padded_experts_get_as_much_as_the_one_that_gets_most(tmp_path: Path) -> None:
    padded = expert_workload(tmp_path, routing_skew=0.5, collectives={"expert_parallel": "padded"})
    expected = 0
    for own in padded.plan.ranks:
        for operation in own:
            if isinstance(operation, GroupCollective) and operation.counts:
                expected += 3 * (8 + max(operation.counts) * padded.itemsize)
    told = expert_workload(tmp_path, routing_skew=0.5)
    shared = sent_bytes(told) - SCALE.real_bytes(uneven_bytes(told))
    assert sent_bytes(padded) == pytest.approx(shared + SCALE.real_bytes(expected), rel=1e-3)
    assert sent_bytes(padded) > 1.1 * sent_bytes(told)
    with pytest.raises(ConfigError, match=r"expert_parallel: auto with routing_skew.*late_counts, padded"):
        expert_workload(tmp_path, routing_skew=0.5, collectives={"expert_parallel": "auto"})


def uneven_bytes(made: Workload) -> int:
    """Emulated bytes that go to experts, counts included, where receivers are told how many come."""
    total = 0
    for rank, own in enumerate(made.plan.ranks):
        for operation in own:
            if isinstance(operation, GroupCollective) and operation.counts:
                place = made.plan.groups[operation.group][1].index(rank)
                row = operation.rows()[place]
                total += sum(8 + count * made.itemsize for peer, count in enumerate(row) if peer != place)
    return total


def test_routing_is_as_uneven_as_asked_and_experts_compute_what_they_get(tmp_path: Path) -> None:
    made = expert_workload(tmp_path, routing_skew=0.5)
    ratios = []
    for rank in range(8):
        own = made.plan.ranks[rank]
        for place, operation in enumerate(own):
            if isinstance(operation, GroupCollective) and operation.counts and not operation.returns:
                mean = sum(operation.counts) / 4
                ratios += [count / mean for count in operation.counts]
                received = operation.counts[rank % 4] / mean
                experts = next(op for op in own[place:] if isinstance(op, Computing))
                assert experts.after == (place,)
                before = next(op for op in reversed(own[:place]) if isinstance(op, Computing))
                routed = 2 * 3 * 4096 * DIM
                dense = (2 * DIM + 2 * DIM // 2) * DIM + 8 * DIM
                ratio = experts.duration_s / before.duration_s
                assert ratio == pytest.approx(received * routed / dense, rel=0.01)
    assert len(ratios) == 8 * 4 * 2 * LAYERS * MICROBATCHES
    assert statistics.pstdev(ratios) == pytest.approx(0.5, rel=0.2)
    again = from_json(JobPlan, to_json(made.plan))
    assert again == made.plan


def test_uneven_routing_takes_longer(tmp_path: Path) -> None:
    even, skewed = expert_workload(tmp_path), expert_workload(tmp_path, routing_skew=0.8)
    assert even.training is not None
    assert skewed.training is not None
    assert dry_run(skewed.training).step_time_s > 1.1 * dry_run(even.training).step_time_s


def test_bytes_of_dimensions_have_their_class(tmp_path: Path) -> None:
    parallelism = {
        "data_parallel_replicate_degree": 2,
        "pipeline_parallel_degree": 4,
        "dscp": {"pipeline_parallel": 46, "data_parallel_replicate": 10},
    }
    made = workload(tmp_path, parallelism)
    found = {dscp: SCALE.real_bytes(sum(pairs.values())) for dscp, pairs in made.pairs("ring").items()}
    assert found[0] == 0
    assert found[46] == pytest.approx(2 * 3 * 2 * MICROBATCHES * ACTIVATION_BYTES, rel=1e-3)
    assert found[10] == pytest.approx(2 * 4 * numel(), rel=1e-2)
    again = from_json(JobPlan, to_json(made.plan))
    assert again == made.plan
    usual = workload(tmp_path, {**parallelism, "dscp": {}})  # as a file is written out
    assert set(usual.pairs("ring")) == {0}


# ---- replicas that pass a send token


def between_buildings(made: Workload) -> list[tuple[float, float]]:
    """When messages of the pipeline from the first building to the other leave, by their order."""
    assert made.training is not None
    # a sender whose socket takes nothing ahead waits until its message has left
    network = replace(made.training.network, send_buffer_bytes=0)
    spans = dry_run(replace(made.training, network=network)).spans
    return sorted(
        spans[rank][place]
        for rank, own in enumerate(made.plan.ranks)
        for place, op in enumerate(own)
        if isinstance(op, Message) and op.sends and op.kind == PIPELINE and made.buildings[rank] == 0
        if made.buildings[op.peer] == 1
    )


@pytest.mark.parametrize("mapping", ["consecutive", [0, 4, 1, 5, 2, 3, 6, 7]])
def test_replicas_take_turns_on_the_way_between_buildings(tmp_path: Path, mapping: Any) -> None:
    parallelism = {
        "data_parallel_replicate_degree": 2,
        "data_parallel_shard_degree": 2,
        "pipeline_parallel_degree": 2,
        "placement": "atlas",
        "mapping": mapping,
    }
    together = workload(tmp_path, parallelism)
    tokens = workload(tmp_path, parallelism, schedule={"wan_send_tokens": True})
    words = sum(op.kind == "send_token" for own in tokens.plan.ranks for op in own)
    assert 0 <= sent_bytes(tokens) - sent_bytes(together) <= words * 4 * SCALE.size_scale
    if mapping != "consecutive":  # in part beside each other, in part apart: it comes to its end all the same
        return
    messages = between_buildings(tokens)
    assert len(messages) == 4 * MICROBATCHES
    for earlier, later in pairwise(messages):
        assert later[0] >= earlier[1] - 1e-5  # ranks take a few microseconds for each message
    at_once = between_buildings(together)
    assert at_once[0][0] == at_once[3][0]
    assert at_once[3][1] - at_once[3][0] > 3 * (messages[0][1] - messages[0][0])


def test_what_is_inside_a_rank_is_not_sent(tmp_path: Path) -> None:
    parallelism = {
        "data_parallel_replicate_degree": 8,
        "tensor_parallel_degree": 8,
        "accelerators_per_rank": 8,
    }
    made = workload(tmp_path, parallelism)
    assert made.training is not None
    assert made.training.mesh.inside[TENSOR] == 8
    assert made.training.mesh.within_ranks == ["tensor_parallel 8 (all-reduces in every block)"]
    assert sent_bytes(made) == pytest.approx(2 * 7 * 4 * numel(), rel=1e-3)


def test_sequence_parallel_ranks_send_as_much_in_two_collectives(tmp_path: Path) -> None:
    parallelism = {"data_parallel_replicate_degree": 2, "tensor_parallel_degree": 4}
    one = workload(tmp_path, parallelism)
    two = workload(tmp_path, {**parallelism, "tensor_communication": "sequence_parallel"})
    assert sent_bytes(two) == pytest.approx(sent_bytes(one), rel=1e-3)
    kinds = {
        operation.collective for operation in two.plan.ranks[0] if isinstance(operation, GroupCollective)
    }
    assert kinds == {"reduce_scatter", "all_gather", "all_reduce"}


# ---- computing that is not as it should be


def test_a_straggler_holds_up_its_pipeline(tmp_path: Path) -> None:
    parallelism = {"pipeline_parallel_degree": 4, "data_parallel_replicate_degree": 2}
    usual = workload(tmp_path, parallelism)
    slow = workload(tmp_path, {**parallelism, "stragglers": [{"rank": 2, "slowdown": 2.0}]})
    assert usual.training is not None
    assert slow.training is not None
    longer = dry_run(slow.training).step_time_s / dry_run(usual.training).step_time_s
    assert 1.05 < longer < 2.0
    for rank, factor in ((1, 1.0), (2, 2.0)):
        took, longer = (
            sum(op.duration_s for op in made.plan.ranks[rank] if isinstance(op, Computing))
            for made in (usual, slow)
        )
        assert longer == pytest.approx(factor * took)


def test_jitter_has_its_size_and_is_the_same_in_every_run(tmp_path: Path) -> None:
    made = workload(tmp_path, {"data_parallel_shard_degree": 8, "compute_jitter": "5 %"})
    plan = made.plan
    places = [
        place for place, own in enumerate(plan.ranks[0]) if isinstance(own, Computing) and own.duration_s
    ]
    ratios = [
        jittered_s(plan, rank, place, step) / plan.ranks[rank][place].duration_s  # type: ignore[attr-defined]
        for rank in range(8)
        for place in places
        for step in range(3)
    ]
    assert statistics.stdev(ratios) == pytest.approx(0.05, rel=0.1)
    assert statistics.mean(ratios) == pytest.approx(1.0, abs=0.01)
    again = from_json(JobPlan, to_json(plan))
    assert again == plan
    assert jittered_s(again, 3, places[0], 1) == jittered_s(plan, 3, places[0], 1)
    assert jittered_s(plan, 3, places[0], 1) != jittered_s(plan, 3, places[0], 2)


# ---- meshes


def degrees(**given: int) -> dict[str, int]:
    return {**dict.fromkeys((*DIMENSIONS, EXPERT), 1), **given}


def test_the_outermost_dimension_is_the_one_of_distant_ranks() -> None:
    given = degrees(**{REPLICATE: 2, PIPELINE: 4})
    mesh = make_mesh(given, 8, 1)
    assert mesh.groups(REPLICATE) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    turned = make_mesh(given, 8, 1, (PIPELINE, REPLICATE, SHARD, CONTEXT, TENSOR))
    assert turned.groups(REPLICATE) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    moved = make_mesh(given, 8, 1, mapping=(0, 4, 1, 5, 2, 6, 3, 7))
    assert moved.groups(REPLICATE) == [(0, 2), (4, 6), (1, 3), (5, 7)]
    assert moved.rank(moved.coordinates[5]) == 5


def test_a_mapping_that_knows_buildings_lets_less_cross(tmp_path: Path) -> None:
    # stages outermost, so that with consecutive ranks all replicas are together; scattered they are not
    parallelism = {"data_parallel_shard_degree": 4, "pipeline_parallel_degree": 2, "placement": "sharded"}
    crossing = {
        mapping: sent_bytes(workload(tmp_path, {**parallelism, "mapping": mapping}), crossing=True)
        for mapping in ("consecutive", "scattered", "topology_aware")
    }
    assert crossing["topology_aware"] < 0.2 * crossing["consecutive"]
    assert crossing["topology_aware"] <= crossing["scattered"]


@given(st.integers(2, 5), st.integers(1, 3), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_places_that_change_over_never_let_more_cross(each: int, buildings: int, rng: Random) -> None:
    size = each * buildings
    where = [number % buildings for number in range(size)]
    pairs = {(a, b): rng.random() for a in range(size) for b in range(size) if a != b}
    ranks = minimize_crossing(pairs, where, [range(size)])
    assert sorted(ranks) == list(range(size))

    def crossing(mapping: Sequence[int]) -> float:
        return sum(count for (a, b), count in pairs.items() if where[mapping[a]] != where[mapping[b]])

    assert crossing(ranks) <= crossing(range(size)) + 1e-9


@given(st.integers(1, 6), st.integers(0, 10_000))
def test_the_shortest_way_is_the_shortest(count: int, seed: int) -> None:
    random = Random(seed)
    places = [str(number) for number in range(count)]
    delays_s = {pair: random.choice([1.0, 2.0, 7.0]) for pair in permutations(places, 2)}

    def long_s(way: Sequence[str]) -> float:
        return sum(delays_s[pair] for pair in pairwise(way))

    found = shortest_route(places, delays_s)
    assert sorted(found) == places
    assert long_s(found) == min(map(long_s, permutations(places)))


def test_stages_go_by_distance(tmp_path: Path) -> None:
    """Three buildings in a row, of which the file names the middle one last."""
    document = yaml.safe_load(Path("topologies/two-data-centers.yaml").read_text())
    (link,) = document["wan"]
    document["buildings"] = {name: {**document["buildings"]["east"], "hosts": 2} for name in ("a", "c", "b")}
    document["wan"] = [
        {**link, "a": "a", "b": "c", "delay": "30 ms"},
        {**link, "a": "a", "b": "b", "delay": "10 ms"},
        {**link, "a": "b", "b": "c", "delay": "10 ms"},
    ]
    took = {}
    for mapping in ("consecutive", "by_distance"):
        changes = {
            "topology": document,
            "ranks": 6,
            "workload.parallelism": {"pipeline_parallel_degree": 6, "mapping": mapping},
        }
        scenario = load_scenario(Path("scenarios/crosspipe.yaml")).changed(changes, "row")
        workload = workload_of(scenario, scenario.topology.resolve(), Scale())
        assert workload.training is not None
        took[mapping] = dry_run(workload.training).step_time_s
        if mapping == "by_distance":
            line = workload.training.mesh.groups(PIPELINE)[0]
            assert list(line) == [0, 1, 4, 5, 2, 3]
    assert took["by_distance"] < took["consecutive"]


@pytest.mark.parametrize(
    ("stages", "counts"), [(4, [8, 8, 8, 8]), (5, [7, 7, 7, 7, 4]), (6, [5, 6, 6, 6, 6, 3])]
)
def test_layers_that_do_not_divide_are_shared_out_by_time(stages: int, counts: list[int]) -> None:
    layers = split_layers("llama3-8b", stages)
    assert sum(layer.block for stage in layers for layer in stage) == 32
    work = [sum(layer.active for layer in stage) for stage in layers]
    one = next(layer.active for stage in layers for layer in stage if layer.block)
    if 32 % stages:
        assert max(work) - min(work) <= one
    assert [sum(layer.block for layer in stage) for stage in layers] == counts


def test_a_rank_takes_the_innermost_accelerators() -> None:
    mesh = make_mesh(degrees(**{SHARD: 16, TENSOR: 4}), 8, 8)
    assert mesh.outside == {REPLICATE: 1, PIPELINE: 1, SHARD: 8, CONTEXT: 1, TENSOR: 1}
    assert (mesh.inside[SHARD], mesh.inside[TENSOR]) == (2, 4)
    with pytest.raises(ParallelismError, match="expected one to divide the other"):
        make_mesh(degrees(**{SHARD: 3, REPLICATE: 4}), 6, 2)


@pytest.mark.parametrize(
    ("parallelism", "more", "said"),
    [
        ({"data_parallel_replicate_degree": 4}, {}, "data_parallel_replicate 4 = 4 accelerators, expected 8"),
        (
            {
                "data_parallel_shard_degree": 4,
                "data_parallel_replicate_degree": 12,
                "accelerators_per_rank": 6,
            },
            {},
            "got a rank has 6 accelerators, of which 6 remain for data_parallel_shard 4, expected one to divide",
        ),
        (
            {"pipeline_parallel_degree": 8},
            {},
            "4 layers on 8 stages, expected at least one layer for each stage",
        ),
        (
            {"pipeline_parallel_degree": 2, "data_parallel_replicate_degree": 4},
            {"schedule": {"name": "ZBVZeroBubble", "chunks": 3}},
            "workload.schedule: got ZBVZeroBubble: 3 chunks, expected 2",
        ),
        (
            {"data_parallel_shard_degree": 8, "expert_parallel_degree": 3},
            {},
            "a divisor of data_parallel_shard",
        ),
        ({"pipeline_parallel_degree": 8, "placement": "prodction"}, {}, "did you mean production"),
        (
            {"pipeline_parallel_degree": 8},
            {"schedule": {"file": "none.csv"}},
            "a CSV file with a line per rank",
        ),
        (
            {"data_parallel_replicate_degree": 8, "stragglers": [{"rank": 8, "slowdown": 1.5}]},
            {},
            "workload.parallelism.stragglers.0.rank: got 8, expected a rank from 0 to 7",
        ),
        (
            {"data_parallel_shard_degree": 8, "expert_parallel_degree": 4},
            {},
            "workload.parallelism.expert_parallel_degree: got 4, expected 1, as the model has no experts",
        ),
        (
            {"data_parallel_shard_degree": 8, "expert_parallel_degree": 8},
            {"model": {**EXPERTS, "experts": 12}},
            "workload.parallelism.expert_parallel_degree: got 8, expected a divisor of the model's experts (12)",
        ),
        (
            {"data_parallel_shard_degree": 8},
            {"model": {**EXPERTS, "experts_per_token": 9}},
            "experts_per_token: got 9, expected 1 to 8, as there are experts",
        ),
        (
            {"data_parallel_shard_degree": 8},
            {"schedule": {"wan_send_tokens": True, "receives": "in_order"}},
            "workload.schedule.wan_send_tokens: got true, expected receives: early",
        ),
        (
            {"data_parallel_shard_degree": 8, "routing_skew": -1},
            {"schedule": {"wan_send_tokens": "maybe"}},
            "routing_skew: got -1, expected a number from 0 to 10, such as 0.5",
        ),
        (
            {"data_parallel_shard_degree": 8, "dscp": {"pipeline": 46}},
            {},
            "parallelism.dscp: got a mapping, expected dimensions: ",
        ),
        (
            {"data_parallel_shard_degree": 8, "dscp": {"pipeline_parallel": 64}},
            {},
            "expected for pipeline_parallel a DSCP, a whole number from 0 to 63",
        ),
        (
            {"data_parallel_shard_degree": 8},
            {"schedule": {"wan_send_tokens": 2}},
            "got 2, expected true or false",
        ),
        (
            {"data_parallel_shard_degree": 8, "collectives": {"data_parallel_shard": "far_fist"}},
            {},
            "for data_parallel_shard FILE.py:NAME or an algorithm: ring, bidirectional_ring",
        ),
        (
            {"tensor_parallel_degree": 8, "collectives": {"tensor_parallel": "far_first"}},
            {},
            "collectives: got tensor_parallel: far_first with tensor_communication all_reduce, "
            "expected FILE.py:NAME or an algorithm: ring",
        ),
        (
            {"pipeline_parallel_degree": 4, "data_parallel_replicate_degree": 2},
            {"schedule": {"name": "GPipe", "memory_limit": "15 MiB"}},
            "got GPipe, which keeps 16 MiB alive on rank 0, expected at most memory_limit, 15 MiB",
        ),
    ],
)
def test_what_does_not_fit_is_one_clear_error(
    tmp_path: Path, parallelism: dict[str, Any], more: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        check_memory(workload(tmp_path, parallelism, **more))
    assert said in str(raised.value)


def test_a_schedule_of_ones_own_is_read_from_beside_the_scenario(tmp_path: Path) -> None:
    parallelism = {"data_parallel_replicate_degree": 4, "pipeline_parallel_degree": 2}
    (tmp_path / "mine.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    made = workload(tmp_path, parallelism, schedule={"file": "mine.csv", "microbatches": 2})
    assert made.training is not None
    assert made.training.schedule.name == "mine"
    (tmp_path / "mine.csv").write_text("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")
    endless = workload(tmp_path, parallelism, schedule={"file": "mine.csv", "microbatches": 2}).training
    assert endless is not None
    with pytest.raises(ConfigError, match=r"got mine, expected one that completes; this one never"):
        dry_run(endless)
    (tmp_path / "mine.csv").write_text("0F0,0B0\n")
    with pytest.raises(ConfigError, match=r"mine.csv: 1 lines, expected 2, one per rank"):
        workload(tmp_path, parallelism, schedule={"file": "mine.csv", "microbatches": 1})
    (tmp_path / "mine.csv").write_text("0F0,0B0\n1F0,1B0\n", "utf-16")
    with pytest.raises(ConfigError, match=r"mine.csv: .*expected a CSV file in UTF-8"):
        workload(tmp_path, parallelism, schedule={"file": "mine.csv", "microbatches": 1})


# ---- where the time goes


@pytest.mark.parametrize(
    "parallelism",
    [
        {"data_parallel_replicate_degree": 8},
        {"data_parallel_shard_degree": 4, "tensor_parallel_degree": 2},
        {"pipeline_parallel_degree": 4, "data_parallel_replicate_degree": 2, "placement": "atlas"},
        {"context_parallel_degree": 2, "pipeline_parallel_degree": 2, "tensor_parallel_degree": 2},
    ],
)
@pytest.mark.parametrize("receives", ["early", "in_order"])
def test_parts_of_a_step_add_up_and_its_critical_path_has_no_gaps(
    tmp_path: Path, parallelism: dict[str, Any], receives: str
) -> None:
    made = workload(tmp_path, parallelism, schedule={"receives": receives})
    assert made.training is not None
    spans = dry_run(made.training).spans
    split = break_down_step(made.plan, spans, made.buildings)
    whole = split.compute_s + split.bubble_s + sum(split.exposed_s.values())
    assert whole == pytest.approx(split.step_time_s, rel=1e-6)
    chain = find_critical_path(made.plan, spans, made.buildings)
    assert chain[0].start_s == pytest.approx(0.0, abs=1e-9)
    assert chain[-1].end_s == pytest.approx(split.step_time_s)
    for earlier, later in pairwise(chain):
        assert later.start_s == pytest.approx(earlier.end_s, abs=1e-9)

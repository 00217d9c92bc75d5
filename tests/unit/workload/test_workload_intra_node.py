"""What a rank's accelerators take to send each other: NCCL's formula, and where it stands in a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import testbed
from testbed.documents import from_json, to_json
from testbed.prediction.dry_run import dry_run
from testbed.spec.errors import ConfigError
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario
from testbed.spec.transformer import ModelSpec
from testbed.workload.intra_node import GroupSpread, IntraNodeTime, Tiers, model_intra_node
from testbed.workload.job.job import job_of
from testbed.workload.models import parameters
from testbed.workload.parallelism import CONTEXT, DIMENSIONS, EXPERT, REPLICATE, SHARD, TENSOR, make_mesh
from testbed.workload.plan import IntraRankTransfer, JobPlan
from testbed.workload.plan_volume import plan_traffic
from testbed.workload.stages import layers_of

UP, OUT = 450e9, 50e9
MODEL = {"dim": 1024, "n_layers": 2, "n_heads": 8, "n_kv_heads": 4, "ffn_dim": 4096, "vocab_size": 512}
TIERS = Tiers(8, UP, OUT, 3.4e-6, 9.6e-6, 8.4e-6)


def degrees(**own: int) -> dict[str, int]:
    return {**dict.fromkeys((*DIMENSIONS, EXPERT), 1), **own}


def test_a_ring_in_one_domain_is_at_the_pace_of_its_links() -> None:
    own = model_intra_node(make_mesh(degrees(**{TENSOR: 8}), 1, 8), TIERS)
    assert own.members == {TENSOR: GroupSpread(8, 8)}
    size = 134_217_728
    turn_s = 8.4e-6 + 7 * 3.4e-6 + size * 7 / 8 / UP
    assert own.collective_time(TENSOR, "all_gather", size) == IntraNodeTime(0.0, turn_s, turn_s)
    assert own.collective_time(TENSOR, "reduce_scatter", size) == IntraNodeTime(turn_s, 0.0, turn_s)
    # NCCL: 2 (n - 1) steps, one launch
    whole_s = 8.4e-6 + 14 * 3.4e-6 + 2 * size * 7 / 8 / UP
    assert own.collective_time(TENSOR, "all_reduce", size).alone_s == pytest.approx(whole_s)


def test_a_ring_over_domains_goes_out_by_all_cards_of_those_that_are_together() -> None:
    mesh = make_mesh(degrees(**{REPLICATE: 32, TENSOR: 4}), 1, 128)
    own = model_intra_node(mesh, TIERS)
    # replicas are four accelerators apart: two in a domain of eight, sixteen domains
    assert own.members[REPLICATE] == GroupSpread(32, 2)
    size = 1e9
    turn_s = 8.4e-6 + 16 * 3.4e-6 + 15 * 9.6e-6 + size * 31 / 32 / (2 * OUT)
    assert own.collective_time(REPLICATE, "all_gather", size).after_s == pytest.approx(turn_s)
    apart = model_intra_node(make_mesh(degrees(**{REPLICATE: 32, TENSOR: 8}), 1, 256), TIERS)
    assert apart.members[REPLICATE] == GroupSpread(32, 1)


def test_domains_may_be_shared_with_the_next_rank() -> None:
    # 500 accelerators are 62 nodes and a half: the other half is the next rank's, of the same group
    several = model_intra_node(make_mesh(degrees(**{REPLICATE: 250, TENSOR: 4}), 2, 500), TIERS)
    assert several.members[REPLICATE] == GroupSpread(125, 2)
    assert several.members[REPLICATE].domains == 63
    alone = model_intra_node(make_mesh(degrees(**{REPLICATE: 125, TENSOR: 4}), 1, 500), TIERS)
    assert alone.members[REPLICATE] == GroupSpread(125, 1)


def test_an_exchange_leaves_and_stays_at_the_same_time() -> None:
    own = model_intra_node(make_mesh(degrees(**{SHARD: 16, EXPERT: 16}), 1, 16), TIERS)
    size = 1e8
    expected_s = 8.4e-6 + 9.6e-6 + max(size * 7 / 16 / UP, size * 8 / 16 / OUT)
    assert own.collective_time(EXPERT, "all_to_all", size).alone_s == pytest.approx(expected_s)


def test_who_shares_a_sequence_shares_data() -> None:
    own = model_intra_node(make_mesh(degrees(**{SHARD: 4, CONTEXT: 2}), 1, 8), TIERS)
    assert own.members[SHARD] == GroupSpread(8, 8)
    assert own.shards == 8


def test_nothing_of_what_is_not_inside() -> None:
    own = model_intra_node(make_mesh(degrees(**{SHARD: 4, TENSOR: 8}), 4, 8), TIERS)
    assert own.collective_time(SHARD, "all_gather", 1e9).alone_s == 0.0
    assert own.collective_time(TENSOR, "all_reduce", 0.0).alone_s == 0.0


# ---- in a plan


def scenario(
    parallelism: dict[str, Any], within: dict[str, Any] | None, hosts: int = 2, **workload: Any
) -> Scenario:
    document: dict[str, Any] = {
        "name": "inside",
        "topology": {
            "name": "pair",
            "buildings": {name: {"hosts": hosts, "nic": {"rate": "3.2 Tbit/s"}} for name in ("east", "west")},
            "wan": [{"a": "east", "b": "west", "rate": "3.2 Tbit/s", "delay": "1 ms"}],
        },
        "workload": {
            "model": "llama3-8b",
            "accelerator": "h100",
            "sequence_length": 4096,
            "parallelism": {
                **parallelism,
                **({} if within is None else {"within_rank": within}),
            },
            "schedule": {"microbatches": 4},
        },
    }
    document["workload"] = {
        key: value for key, value in (document["workload"] | workload).items() if value is not None
    }
    return load_scenario(document)


def inside_s(own: Scenario) -> dict[str, float]:
    found: dict[str, float] = {}
    for op in job_of(own, Scale()).workload.plan.ranks[0]:
        if isinstance(op, IntraRankTransfer):
            found[op.kind] = found.get(op.kind, 0.0) + op.duration_s
    return found


def test_by_default_nothing_within_a_rank_takes_time() -> None:
    own = {"data_parallel_shard_degree": 4, "tensor_parallel_degree": 8, "accelerators_per_rank": 8}
    assert inside_s(scenario(own, None)) == {}


def test_partial_sums_of_each_layer_and_direction_take_their_time() -> None:
    own = {"data_parallel_shard_degree": 4, "tensor_parallel_degree": 8, "accelerators_per_rank": 8}
    size = 2 * 4096 * 4096
    sum_s = 8.4e-6 + 14 * 3.4e-6 + 2 * size * 7 / 8 / UP
    found = inside_s(scenario(own, {}))
    # two sums per block, forward and backward, of 32 blocks and 4 microbatches
    assert found == {TENSOR: pytest.approx(4 * 32 * 2 * 2 * sum_s)}


def test_links_of_ones_own_are_taken() -> None:
    own = {"data_parallel_shard_degree": 4, "tensor_parallel_degree": 8, "accelerators_per_rank": 8}
    quick = inside_s(scenario(own, {}))[TENSOR]
    slow = inside_s(scenario(own, {"scale_up_rate": "360 Gbit/s", "launch": "0.001 us"}))[TENSOR]
    assert slow > 5 * quick


def test_shards_within_a_rank_are_gathered_and_scattered_there_and_over_the_network() -> None:
    own = {"data_parallel_shard_degree": 32, "accelerators_per_rank": 8}
    found = inside_s(scenario(own, {}))
    parameters = 8_030_261_248
    # forward and backward of 4 microbatches, and gradients once, all but launches and hops
    moved = (2 * 4 * 2 + 4) * parameters * 7 / 8 / UP
    assert found.keys() == {SHARD}
    assert found[SHARD] == pytest.approx(moved, rel=0.1)
    assert found[SHARD] > moved


def test_experts_within_a_rank_are_not_gathered_there() -> None:
    """Each accelerator's experts are shared with one of each other rank: only what is no expert's goes within."""
    model = {**MODEL, "experts": 8, "experts_per_token": 2}
    own = {"data_parallel_shard_degree": 32, "expert_parallel_degree": 8, "accelerators_per_rank": 8}
    blocks, before, after = layers_of(ModelSpec.model_validate(model))
    layers = [*blocks, before, after]
    dense = sum(layer.parameters - layer.experts for layer in layers)
    experts = sum(layer.experts for layer in layers)
    exact = {"launch": "0.001 us", "scale_up_latency": "0.001 us"}
    found = inside_s(scenario(own, exact, model=model))
    assert found[SHARD] == pytest.approx((2 * 4 * 2 + 4) * dense * 7 / 8 / UP, rel=5e-3)
    # shared out over half as many, each has a neighbour in its rank with the same ones
    half = inside_s(scenario({**own, "expert_parallel_degree": 4}, exact, model=model))
    moved = dense * 7 / 8 + experts / 4 * 1 / 2
    assert half[SHARD] == pytest.approx((2 * 4 * 2 + 4) * moved / UP, rel=5e-3)


def test_each_rank_has_the_links_of_what_is_in_its_host() -> None:
    own = {"data_parallel_shard_degree": 4, "tensor_parallel_degree": 8, "accelerators_per_rank": 8}
    exact = {"launch": "0.001 us", "scale_up_latency": "0.001 us"}
    document = scenario(own, exact).to_data()
    document["topology"]["buildings"]["west"]["accelerator"] = "gb200"
    plan = job_of(load_scenario(document), Scale()).workload.plan
    took = [sum(op.duration_s for op in ranks if isinstance(op, IntraRankTransfer)) for ranks in plan.ranks]
    assert took[0] == took[1]
    assert took[2:] == pytest.approx([took[0] / 2] * 2, rel=1e-3)


def test_replicas_within_a_rank_add_up_before_and_after_the_network() -> None:
    own = {"data_parallel_replicate_degree": 32, "accelerators_per_rank": 8}
    found = inside_s(scenario(own, {}))
    assert found.keys() == {REPLICATE}
    assert found[REPLICATE] == pytest.approx(2 * 4 * 8_030_261_248 * 7 / 8 / UP, rel=0.1)


def test_a_rank_that_is_all_there_is_needs_no_network() -> None:
    own = {"data_parallel_replicate_degree": 2, "pipeline_parallel_degree": 2, "accelerators_per_rank": 1}
    assert inside_s(scenario(own, {})) == {}
    alone = {"pipeline_parallel_degree": 4, "data_parallel_shard_degree": 8, "accelerators_per_rank": 8}
    found = inside_s(scenario({**alone, "placement": "crosspipe"}, {}))
    # with a pipeline parameters are gathered once
    assert found[SHARD] == pytest.approx((2 + 4) * 8_030_261_248 / 4 * 7 / 8 / UP, rel=0.5)


def test_links_that_nobody_says_are_asked_for() -> None:
    own = {"data_parallel_shard_degree": 4, "tensor_parallel_degree": 8, "accelerators_per_rank": 8}
    with pytest.raises(
        ConfigError, match=r"within_rank\.scale_up: got nothing, expected it, or an accelerator"
    ):
        inside_s(scenario(own, {}, accelerator=None, peak_flops="400 Tflop/s"))


def test_a_pipeline_takes_longer_by_what_each_turn_waits_for() -> None:
    own = {"pipeline_parallel_degree": 2, "tensor_parallel_degree": 8, "accelerators_per_rank": 8}
    free = job_of(scenario(own, None, hosts=1), Scale()).workload
    full = job_of(scenario(own, {}, hosts=1), Scale()).workload
    assert free.training is not None
    assert full.training is not None
    longer_s = dry_run(full.training).step_time_s - dry_run(free.training).step_time_s
    # four microbatches through two stages: five turns, of which a rank does four
    assert longer_s == pytest.approx(inside_s(scenario(own, {}, hosts=1))[TENSOR] * 5 / 4, rel=0.02)


def test_the_formula_and_the_emulated_inside_agree() -> None:
    degrees_of = {"pipeline_parallel_degree": 2, "tensor_parallel_degree": 8}
    own = {**degrees_of, "accelerators_per_rank": 8}
    by_formula = job_of(scenario(own, {"launch": "0.001 us"}, hosts=1), Scale()).workload
    nodes = {"hosts": 8, "nic": {"rate": "3.6 Tbit/s"}}  # as quick as the accelerators' own links
    emulated = load_scenario(
        {
            **scenario(degrees_of, None, hosts=8).to_data(),
            "topology": {
                "name": "pair",
                "buildings": {"east": nodes, "west": nodes},
                "wan": [{"a": "east", "b": "west", "rate": "3.2 Tbit/s", "delay": "1 ms"}],
            },
            "transport": {"software_cost": {"per_message": "1.7 us", "per_gigabyte": "0.001 us"}},
        }
    )
    each = job_of(emulated, Scale()).workload
    assert by_formula.training is not None
    assert each.training is not None
    took_s = [dry_run(own.training).step_time_s for own in (by_formula, each)]  # type: ignore[arg-type]
    assert took_s[0] == pytest.approx(took_s[1], rel=0.05)


NODES, EACH = 2, 4


def on_nodes(parallelism: dict[str, Any], **workload: Any) -> Scenario:
    """Each accelerator a rank: a leaf is a node, one spine for each of its accelerators."""
    algorithms = ["ring" if "tensor_parallel_degree" in parallelism else "hierarchical"]
    document = scenario(parallelism, None, NODES * EACH, **workload).to_data()
    clos = {"leaves": NODES, "spines": EACH, "leaf": {"oversubscription": "1:9", "delay": "3.1 us"}}
    building = {"hosts": NODES * EACH, "nic": {"rate": "3.6 Tbit/s"}, "clos": clos}
    document["topology"]["buildings"] = {"east": building, "west": building}
    document["topology"]["wan"][0]["rate"] = "6.4 Tbit/s"
    cost = {"per_message": "1.7 us", "per_gigabyte": "0.001 us"}
    return load_scenario({**document, "transport": {"software_cost": cost}, "algorithms": algorithms})


def between(plan: JobPlan, of: Sequence[int]) -> int:
    return sum(count for (a, b), count in plan_traffic(plan, 4).items() if of[a] != of[b])


def test_a_hierarchy_may_be_one_of_leaves() -> None:
    own = {"data_parallel_replicate_degree": 2 * NODES * EACH}
    nodes = [rank // EACH for rank in range(2 * NODES * EACH)]
    found = {}
    for hierarchy in ("buildings", "leaves"):
        plan = job_of(on_nodes({**own, "hierarchy": hierarchy}, model=MODEL), Scale()).workload.plan
        plan = plan.with_algorithm("hierarchical")
        assert from_json(JobPlan, to_json(plan)) == plan
        found[hierarchy] = between(plan, nodes), between(plan, plan.buildings)
    array_bytes = 4 * sum(parameter.numel for parameter in parameters(ModelSpec.model_validate(MODEL)))
    # each node has the array once: over a ring of four nodes 2 (4 - 1) arrays go, between two buildings half of them
    assert found["leaves"][0] == pytest.approx(2 * 3 * array_bytes, rel=1e-3)
    assert found["leaves"][1] == pytest.approx(3 * array_bytes, rel=1e-3)
    # between two groups that are buildings: two arrays, the least there is, but rings within go over nodes, too
    assert found["buildings"][1] == pytest.approx(2 * array_bytes, rel=1e-3)


@pytest.mark.parametrize(
    ("degrees_of", "formula"),
    [
        ({"data_parallel_replicate_degree": 16}, {}),
        (
            {"data_parallel_shard_degree": 16, "expert_parallel_degree": 4},
            {"data_parallel_shard": "direct"},
        ),
        (
            {
                "data_parallel_replicate_degree": 2,
                "pipeline_parallel_degree": 2,
                "tensor_parallel_degree": 4,
            },
            {},
        ),
    ],
)
def test_nodes_by_formula_and_emulated_agree(degrees_of: dict[str, int], formula: dict[str, str]) -> None:
    model: dict[str, Any] = {**MODEL, "dim": 2048, "ffn_dim": 8192}
    if "expert_parallel_degree" in degrees_of:
        model |= {"experts": 4, "experts_per_token": 2}
    emulated = {"hierarchy": "leaves", "collectives": dict.fromkeys(formula, "hierarchical")}
    each = on_nodes({**degrees_of, **emulated}, model=model)
    document = scenario(
        {**degrees_of, "accelerators_per_rank": EACH, "collectives": formula}, {}, model=model
    ).to_data()
    document["topology"]["wan"][0]["rate"] = "6.4 Tbit/s"
    for building in document["topology"]["buildings"].values():
        building["nic"]["rate"] = "1.6 Tbit/s"
    software = {"per_message": "4.8 us", "per_gigabyte": "0.001 us"}
    document["workload"]["bucket_cap"] = f"{25 * degrees_of.get('tensor_parallel_degree', 1)} MiB"
    document |= {"transport": {"software_cost": software}, "algorithms": ["ring"]}
    by_formula = load_scenario(document)
    took_s = []
    for own in (by_formula, each):
        made = job_of(own, Scale()).workload.training
        assert made is not None
        took_s.append(dry_run(replace(made, plan=made.plan.with_algorithm(own.algorithms[0]))).step_time_s)
    assert took_s[0] == pytest.approx(took_s[1], rel=0.05)


def a_hundred_thousand_s(ranks: int, tensor: int) -> float:
    """A step of the scenario on so many ranks, each with its share of a hall's cards and of its copying."""
    share = ranks / 20
    changes: dict[str, Any] = {
        "workload.parallelism.accelerators_per_rank": 100_000 // ranks,
        "workload.parallelism.tensor_parallel_degree": tensor,
        "workload.parallelism.data_parallel_replicate_degree": 50_000 // tensor,
        "workload.parallelism.within_rank": {},
        "transport.software_cost.per_gigabyte": f"{0.44 * share:g} us",
    }
    for building in "abcde":
        changes[f"topology.buildings.{building}.hosts"] = ranks // 5
        changes[f"topology.buildings.{building}.nic.rate"] = f"{2000 / share:g} Tbit/s"
    made = job_of(testbed.load("hundred-thousand", changes), Scale()).workload.training
    assert made is not None
    return dry_run(made).step_time_s


@pytest.mark.parametrize(
    ("ranks", "tensor"),
    [
        (50, 8),
        pytest.param(250, 8, marks=pytest.mark.thorough),
        pytest.param(200, 4, marks=pytest.mark.thorough),  # of 500 accelerators, which 8 does not divide
    ],
)
def test_as_many_accelerators_take_as_long_on_more_ranks(ranks: int, tensor: int) -> None:
    assert a_hundred_thousand_s(ranks, tensor) == pytest.approx(a_hundred_thousand_s(20, tensor), rel=0.03)

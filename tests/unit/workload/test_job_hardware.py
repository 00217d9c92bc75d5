"""Buildings with unlike accelerators: who computes how long, and how layers and microbatches are shared out by that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.prediction.closed_form import Screener
from testbed.prediction.dry_run import dry_run
from testbed.prediction.search.evaluation import Configuration, Evaluation, Infeasible, evaluate
from testbed.prediction.step_flops import step_work
from testbed.spec.catalogue import accelerators
from testbed.spec.errors import ConfigError
from testbed.spec.hardware import Hardware
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario
from testbed.workload.job.job import Workload, job_of
from testbed.workload.parallelism import ParallelismError
from testbed.workload.plan import Computing, GroupCollective
from testbed.workload.stages import layer_counts

LAYERS, MICROBATCHES, HOSTS = 16, 12, 4
MODEL = {
    "dim": 1024,
    "n_layers": LAYERS,
    "n_heads": 8,
    "n_kv_heads": 4,
    "ffn_dim": 4096,
    "vocab_size": 512,
}
PIPELINE_ACROSS = {
    "pipeline_parallel_degree": 2,
    "data_parallel_shard_degree": 4,
    "placement": "crosspipe",
}
REPLICAS_ACROSS = {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 4}
H100, GB200 = (accelerators()[name] for name in ("h100", "gb200"))
FASTER = GB200["peak"]["bf16"] * GB200["utilisation"] / H100["peak"]["bf16"] / H100["utilisation"]


def scenario(
    folder: Path,
    parallelism: dict[str, Any] | None,
    schedule: dict[str, Any] | None = None,
    west: str | dict[str, Any] | None = "gb200",
    **workload: Any,
) -> Scenario:
    building: dict[str, Any] = {"hosts": HOSTS, "nic": {"rate": "3.2 Tbit/s"}}
    other = {**building, **(west if isinstance(west, dict) else {"accelerator": west} if west else {})}
    wan = {"a": "east", "b": "west", "rate": "3.2 Tbit/s", "delay": "1 ms"}
    described: dict[str, Any] = {"model": MODEL, "accelerator": "h100", "sequence_length": 32768, **workload}
    described = {key: value for key, value in described.items() if value is not None}
    if parallelism is not None:
        described["parallelism"] = parallelism
        described["schedule"] = {"microbatches": MICROBATCHES, **(schedule or {})}
    path = folder / "scenario.yaml"
    topology = {"name": "pair", "buildings": {"east": building, "west": other}, "wan": [wan]}
    path.write_text(yaml.safe_dump({"name": "unlike", "topology": topology, "workload": described}))
    return load_scenario(path)


def planned(own: Scenario) -> Workload:
    return job_of(own, Scale()).workload


def computing_s(made: Workload) -> list[float]:
    return [sum(op.duration_s for op in own if isinstance(op, Computing)) for own in made.plan.ranks]


def step_s(made: Workload) -> float:
    assert made.training is not None
    return dry_run(made.training).step_time_s


@pytest.mark.parametrize("parallelism", [REPLICAS_ACROSS, None])
def test_ranks_compute_as_quickly_as_what_is_in_their_building(
    tmp_path: Path, parallelism: dict[str, Any] | None
) -> None:
    alike = computing_s(planned(scenario(tmp_path, parallelism, west=None)))
    unlike = computing_s(planned(scenario(tmp_path, parallelism)))
    assert unlike[:HOSTS] == alike[:HOSTS]
    assert unlike[HOSTS:] == pytest.approx([one / FASTER for one in alike[HOSTS:]])


def test_a_utilisation_of_ones_own_holds_for_all_accelerators(tmp_path: Path) -> None:
    usual = computing_s(planned(scenario(tmp_path, REPLICAS_ACROSS)))
    halved = computing_s(planned(scenario(tmp_path, REPLICAS_ACROSS, flops_utilisation=0.2)))
    assert halved == pytest.approx([2 * one for one in usual])


def test_layers_go_to_stages_as_these_are_quick(tmp_path: Path) -> None:
    even = planned(scenario(tmp_path, PIPELINE_ACROSS))
    fair = planned(scenario(tmp_path, PIPELINE_ACROSS, {"layers_per_stage": "by_speed"}))
    assert even.training is not None
    assert fair.training is not None
    assert even.training.layers == (8, 8)
    # 2.53 times as quick: 4.5 of 16 would be even
    assert fair.training.layers in ((4, 12), (5, 11))
    took = computing_s(fair)
    assert max(took) / min(took) < 1.25
    assert step_s(fair) < step_s(even) / 1.5


def test_the_slowest_stage_is_as_quick_as_can_be() -> None:
    model, speeds = "llama3-8b", [1.0, 2.5, 1.0, 2.5]
    found = layer_counts(model, 4, speeds)

    def slowest(counts: tuple[int, ...]) -> float:
        # a block against what else the last stage has: the output layer, in blocks
        output = 128256 * 4096 / 218_112_000
        return max(
            (own + (output if stage == 3 else 0.0)) / speed
            for stage, (own, speed) in enumerate(zip(counts, speeds, strict=True))
        )

    assert sum(found) == 32
    for giver in range(4):
        for taker in range(4):
            if giver != taker and found[giver] > 1:
                other = list(found)
                other[giver], other[taker] = other[giver] - 1, other[taker] + 1
                assert slowest(tuple(other)) >= slowest(found) - 1e-9


def test_the_quickest_first_puts_their_building_at_the_head_of_the_pipeline(tmp_path: Path) -> None:
    fair = {"layers_per_stage": "by_speed"}
    turned = planned(scenario(tmp_path, {**PIPELINE_ACROSS, "mapping": "by_speed"}, fair))
    assert turned.training is not None
    assert turned.training.mesh.ranks[:HOSTS] == (4, 5, 6, 7)
    assert turned.training.layers[0] > turned.training.layers[1]


def test_replicas_have_microbatches_as_they_are_quick(tmp_path: Path) -> None:
    even = planned(scenario(tmp_path, REPLICAS_ACROSS))
    fair = planned(scenario(tmp_path, REPLICAS_ACROSS, {"microbatches_per_replica": "by_speed"}))

    def forwards(made: Workload, rank: int) -> int:
        names = {op.name.split()[0] for op in made.plan.ranks[rank] if isinstance(op, Computing)}
        return len({name for name in names if "F" in name})

    assert [forwards(even, rank) for rank in (0, 7)] == [MICROBATCHES, MICROBATCHES]
    slow, quick = forwards(fair, 0), forwards(fair, 7)
    assert slow + quick == 2 * MICROBATCHES
    assert quick / slow == pytest.approx(FASTER, rel=0.2)
    assert step_s(fair) < step_s(even) / 1.5

    def reduced(made: Workload) -> list[int]:
        found = (op for op in made.plan.ranks[0] if isinstance(op, GroupCollective))
        return sorted(op.numel for op in found if op.collective == "all_reduce")

    assert reduced(fair) == reduced(even)


def test_counts_of_ones_own_are_taken(tmp_path: Path) -> None:
    own = {"microbatches_per_replica": [7, 17]}
    made = planned(scenario(tmp_path, REPLICAS_ACROSS, own))
    even = computing_s(planned(scenario(tmp_path, REPLICAS_ACROSS)))
    assert computing_s(made)[0] == pytest.approx(even[0] * 7 / MICROBATCHES)
    layers = planned(scenario(tmp_path, PIPELINE_ACROSS, {"layers_per_stage": [6, 10]})).training
    assert layers is not None
    assert layers.layers == (6, 10)


def test_a_building_may_be_slow(tmp_path: Path) -> None:
    slow = {**REPLICAS_ACROSS, "stragglers": [{"building": "west", "slowdown": 1.5}]}
    usual = computing_s(planned(scenario(tmp_path, REPLICAS_ACROSS)))
    took = computing_s(planned(scenario(tmp_path, slow)))
    assert took == pytest.approx([*usual[:HOSTS], *(1.5 * one for one in usual[HOSTS:])])


@pytest.mark.parametrize(
    ("parallelism", "schedule", "said"),
    [
        (
            REPLICAS_ACROSS,
            {"microbatches_per_replica": [7, 16]},
            "workload.schedule.microbatches_per_replica: got 2 replicas with 23 microbatches, expected 2 with 24",
        ),
        (
            PIPELINE_ACROSS,
            {"layers_per_stage": [6, 11]},
            "workload.schedule: got 2 stages with 17 layers, expected 2 with the model's 16",
        ),
        (
            {**REPLICAS_ACROSS, "stragglers": [{"building": "north", "slowdown": 1.5}]},
            {},
            "stragglers.0.building: got north, expected a building with ranks: east, west",
        ),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(
    tmp_path: Path, parallelism: dict[str, Any], schedule: dict[str, Any], said: str
) -> None:
    own = scenario(tmp_path, parallelism, schedule)
    with pytest.raises(ConfigError) as caught:
        planned(own)
    assert said in str(caught.value)


# ---- hosts of one building that are not alike


def unlike(*entries: dict[str, Any], **building: Any) -> dict[str, Any]:
    return {**building, "unlike": list(entries)}


def test_hosts_of_a_building_may_differ(tmp_path: Path) -> None:
    west = unlike(
        {"hosts": [2], "accelerator": "h100"},
        {"hosts": "3-4", "nic": {"rate": "1.6 Tbit/s"}, "compute_dtype": "fp8", "memory": "64 GB"},
        accelerator="gb200",
        memory="100 GB",
    )
    own = scenario(tmp_path, REPLICAS_ACROSS, west=west)
    hosts = own.topology.resolve().hosts[HOSTS:]
    assert [host.hardware.accelerator for host in hosts] == ["gb200", "h100", "gb200", "gb200"]
    # another accelerator has its own memory
    assert [host.hardware.memory_bytes for host in hosts] == [100e9, None, 64e9, 64e9]
    assert [host.nic.rate_bps for host in hosts] == [3.2e12, 3.2e12, 1.6e12, 1.6e12]
    alike = computing_s(planned(scenario(tmp_path, REPLICAS_ACROSS, west=None)))[0]
    took = computing_s(planned(own))[HOSTS:]
    assert took == pytest.approx([alike / FASTER, alike, alike / FASTER / 2, alike / FASTER / 2])
    assert load_scenario(yaml.safe_load(own.to_yaml())) == own


def test_layers_and_microbatches_go_by_hosts(tmp_path: Path) -> None:
    """A stage, or a replica, is as quick as its slowest rank."""
    one_slow = unlike({"hosts": [4], "accelerator": "h100"}, accelerator="gb200")
    all_slow = unlike({"hosts": "1-4", "accelerator": "h100"}, accelerator="gb200")
    for west in (one_slow, all_slow):
        by_layers = planned(scenario(tmp_path, PIPELINE_ACROSS, {"layers_per_stage": "by_speed"}, west))
        by_replica = {"microbatches_per_replica": "by_speed"}
        by_microbatches = planned(scenario(tmp_path, REPLICAS_ACROSS, by_replica, west))
        assert by_layers.training is not None
        assert by_microbatches.training is not None
        assert by_layers.training.layers == (8, 8)
        assert by_microbatches.training.microbatches == (MICROBATCHES, MICROBATCHES)
    # stages of two hosts each: the slow ones may be at the end of one pipeline, and the quick ones of the other wait
    half = {**PIPELINE_ACROSS, "pipeline_parallel_degree": 4, "data_parallel_shard_degree": 2}
    west = unlike({"hosts": [3, 4], "accelerator": "h100"}, accelerator="gb200")
    found = planned(scenario(tmp_path, half, {"layers_per_stage": "by_speed"}, west)).training
    assert found is not None
    assert found.layers[2] > 1.9 * max(found.layers[0], found.layers[1], found.layers[3])


def test_a_slow_card_makes_its_leafs_uplinks_no_slower(tmp_path: Path) -> None:
    clos = {"leaves": 2, "spines": 2}
    own = scenario(
        tmp_path, REPLICAS_ACROSS, west=unlike({"hosts": [1], "nic": {"rate": "400 Gbit/s"}}, clos=clos)
    )
    tiers = own.topology.resolve().building("west").clos
    assert tiers is not None
    assert tiers.leaf_uplink.rate_bps == 3.2e12


def test_memory_of_hosts_bounds_a_search(tmp_path: Path) -> None:
    small = unlike({"hosts": [4], "memory": "1 MB"})
    own = scenario(tmp_path, REPLICAS_ACROSS, west=small)
    assert isinstance(evaluate(scenario(tmp_path, REPLICAS_ACROSS, west=None), Configuration({})), Evaluation)
    found = evaluate(own, Configuration({}))
    assert isinstance(found, Infeasible)
    assert (found.constraint, found.expected) == ("explore.memory", "at most 0.001 GB")


@pytest.mark.parametrize(
    ("west", "said"),
    [
        (
            unlike({"hosts": [5], "memory": "1 GB"}),
            "west.unlike.0.hosts: got 5, expected numbers from 1 to 4",
        ),
        (unlike({"hosts": [1]}), "got hosts alone, expected nic, accelerator, compute_dtype or memory"),
        (
            unlike({"hosts": [1, 2], "memory": "1 GB"}, {"hosts": "2-3", "accelerator": "h100"}),
            "west.unlike.1.hosts: got 2 again, expected each host in one entry",
        ),
        (
            unlike({"hosts": "3-1", "memory": "1 GB"}),
            "expected host numbers from 1, such as [1, 2] or 1-4",
        ),
        (
            unlike({"hosts": [1], "compute_dtype": "int4"}),
            "unlike.0.compute_dtype: got 'int4', expected a type: bf16",
        ),
    ],
)
def test_hosts_that_cannot_be_are_refused(tmp_path: Path, west: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scenario(tmp_path, REPLICAS_ACROSS, west=west)
    assert said in str(caught.value)


def test_a_type_of_its_own_needs_an_accelerator(tmp_path: Path) -> None:
    own = scenario(
        tmp_path, REPLICAS_ACROSS, west={"compute_dtype": "fp8"}, peak_flops="400 Tflop/s", accelerator=None
    )
    with pytest.raises(ConfigError, match="expected one, as west1 has a compute_dtype, fp8"):
        planned(own)


def test_words_that_are_none_are_refused(tmp_path: Path) -> None:
    for schedule, said in (
        ({"layers_per_stage": "fair"}, "expected even, by_speed, or a list with the number of each"),
        ({"microbatches_per_replica": "by_speed", "wan_send_tokens": True}, "microbatches_per_replica even"),
    ):
        with pytest.raises(ConfigError) as caught:
            scenario(tmp_path, REPLICAS_ACROSS, schedule)
        assert said in str(caught.value)
    with pytest.raises(ParallelismError):
        layer_counts("llama3-8b", 33)


def test_bounds_and_the_closed_form_know_it(tmp_path: Path) -> None:
    alike, unlike = scenario(tmp_path, REPLICAS_ACROSS, west=None), scenario(tmp_path, REPLICAS_ACROSS)
    bounds = [step_work(own) for own in (alike, unlike)]
    assert bounds[0] is not None
    assert bounds[1] is not None
    assert bounds[0].computing_s / bounds[1].computing_s == pytest.approx((1 + FASTER) / 2)
    screener = Screener(unlike)
    by_speed = {"workload.schedule.microbatches_per_replica": "by_speed"}
    even_s, fair_s = screener.step_s({}), screener.step_s(by_speed)
    assert even_s is not None
    assert fair_s is not None
    assert fair_s < even_s / 1.5
    assert fair_s > bounds[1].computing_s


@pytest.mark.parametrize("name", accelerators())
def test_hosts_of_the_workloads_own_accelerator_are_exactly_as_quick(name: str) -> None:
    folder = Path(__file__).parents[3] / "scenarios" / "explore"
    workload = load_scenario(folder / "dense-70b-region.yaml").workload.model_copy(
        update={"accelerator": name, "flops_utilisation": 0.47}
    )
    assert workload.flops_of(Hardware()) == workload.flops

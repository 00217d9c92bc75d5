"""Attention's scores in computing, as far as they count; which of sharded ranks' traffic goes first in backward."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from testbed.prediction.dry_run import dry_runs
from testbed.prediction.step_flops import step_work
from testbed.spec.scale import Scale
from testbed.workload.models import score_products
from testbed.workload.plan import Computing, GroupCollective
from testbed.workload.stages import Scores, layer_counts, layers_of
from tests.unit.workload.test_workload_pipeline_plan import (
    DIM,
    LAYERS,
    MICROBATCHES,
    SEQUENCE,
    numel,
    scenario,
    sent_bytes,
    workload,
)

MATRICES = numel() - 8192 * DIM - (2 * LAYERS + 1) * DIM  # what multiplies tokens: no look-up, no norms
SHARDS = {"data_parallel_shard_degree": 8}
FLOPS = 0.4 * 989e12


def computed(folder: Path, parallelism: dict[str, Any] | None, **more: Any) -> float:
    """Floating-point operations of all ranks in a step."""
    made = scenario(folder, parallelism or SHARDS, **more)
    if parallelism is None:
        data = made.to_data()
        data["workload"] = {
            key: value for key, value in data["workload"].items() if key not in ("parallelism", "schedule")
        }
        made = type(made).model_validate(data)
    (found,) = dry_runs(made, Scale()).values()
    operations = (one for own in found.workload.plan.ranks for one in own)
    return sum(one.duration_s for one in operations if isinstance(one, Computing)) * FLOPS


@pytest.mark.parametrize(
    ("counted", "factor"), [("left_out", 0), ("causal", 6), ("full", 12), ("recomputed", 14)]
)
@pytest.mark.parametrize(
    ("parallelism", "sequences"),
    [
        (SHARDS, 8),
        ({"tensor_parallel_degree": 4, "data_parallel_shard_degree": 2}, 2),
        ({"context_parallel_degree": 4, "data_parallel_replicate_degree": 2}, 2),
        ({"pipeline_parallel_degree": 2, "data_parallel_shard_degree": 4}, 4),
    ],
)
def test_scores_add_so_many_operations_per_layer_token_and_length(
    tmp_path: Path, counted: str, factor: int, parallelism: dict[str, int], sequences: int
) -> None:
    tokens = sequences * MICROBATCHES * SEQUENCE
    expected = (6 * MATRICES + factor * LAYERS * SEQUENCE * DIM) * tokens
    assert computed(tmp_path, parallelism, attention_scores=counted) == pytest.approx(expected, rel=1e-9)
    made = scenario(tmp_path, parallelism, attention_scores=counted)
    work = step_work(made)
    assert work is not None
    assert work.computing_s == pytest.approx(expected / 8 / FLOPS, rel=1e-9)


@pytest.mark.parametrize("name", ["1F1B", "ZBH1", "CrossUDSub"])
def test_scores_are_of_the_gradient_of_the_input(tmp_path: Path, name: str) -> None:
    parallelism = {"pipeline_parallel_degree": 4, "data_parallel_shard_degree": 2}
    seconds = {}
    for counted in ("left_out", "full"):
        schedule = {"name": name}
        made = workload(tmp_path, parallelism, schedule=schedule, attention_scores=counted)
        weights = [one for own in made.plan.ranks for one in own if one.kind == "backward_weight"]
        seconds[counted] = sum(one.duration_s for one in weights if isinstance(one, Computing))
    assert seconds["full"] == pytest.approx(seconds["left_out"], rel=1e-9)
    assert (seconds["full"] > 0) == (name != "1F1B")


def test_replicas_without_parallelism_count_them_too(tmp_path: Path) -> None:
    plain, full = (computed(tmp_path, None, attention_scores=one) for one in ("left_out", "full"))
    assert full - plain == pytest.approx(8 * SEQUENCE * 12 * LAYERS * SEQUENCE * DIM, rel=1e-9)


def test_keys_and_values_of_latent_attention_have_sizes_of_their_own() -> None:
    # 128 heads: queries and keys of 128 + 64, values of 128
    assert score_products("deepseek-v3") == 128 * (128 + 64 + 128)
    assert score_products("llama3-70b") == 2 * 8192


def test_layers_are_shared_out_with_their_scores() -> None:
    blocks, _, after = layers_of("llama3-8b")
    # the output layer is worth 2.4 blocks; beside scores of as much as a block it is worth 1.2
    alone, beside = (
        layer_counts("llama3-8b", 10, scores=scores)
        for scores in (Scores(), Scores(blocks[0].active, 2 * blocks[0].active))
    )
    assert 2.3 < after.active / blocks[0].active < 2.5
    assert (alone[-1], beside[-1]) == (1, 2)
    assert sum(alone) == sum(beside) == 32


# ---- what goes first


def order_of(folder: Path, **schedule: Any) -> list[str]:
    made = workload(folder, SHARDS, schedule=schedule)
    return [
        operation.name
        for operation in made.plan.ranks[0]
        if isinstance(operation, GroupCollective) and operation.name.startswith(f"0B{MICROBATCHES - 1} ")
    ]


def test_parameters_go_before_gradients_where_asked_for(tmp_path: Path) -> None:
    last = f"0B{MICROBATCHES - 1} layer"
    layers = range(LAYERS + 1, -1, -1)  # with the output's and the embedding's
    after, first = order_of(tmp_path), order_of(tmp_path, prefetch_first=True)
    assert sorted(after) == sorted(first)
    for here, there in pairwise(layers):
        parameters, gradients = f"{last} {there} parameters", f"{last} {here} gradients"
        assert after.index(parameters) > after.index(gradients)
        assert first.index(parameters) < first.index(gradients)
        # no sooner than asked for: one layer ahead
        further = f"{last} {here + 1} gradients"
        assert here == layers[0] or first.index(parameters) > first.index(further)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_what_goes_first_changes_no_bytes_and_hides_more(tmp_path: Path, prefetch: int) -> None:
    seconds, sizes = [], []
    for first in (False, True):
        schedule = {"prefetch": prefetch, "prefetch_first": first, "microbatches": 1}
        (found,) = dry_runs(scenario(tmp_path, SHARDS, schedule), Scale()).values()
        seconds.append(found.timeline.step_time_s)
        sizes.append(sent_bytes(workload(tmp_path, SHARDS, schedule=schedule)))
    assert sizes[0] == sizes[1]
    if prefetch:
        assert seconds[1] < 0.99 * seconds[0]
    else:
        assert seconds[1] == seconds[0]

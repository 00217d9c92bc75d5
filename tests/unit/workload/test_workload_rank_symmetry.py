"""Plans of ranks that do alike are those that each of them would have been given by itself."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import pytest

from testbed.caches import SizedCache
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario
from testbed.workload import pipeline_plan
from testbed.workload.job.job import job_of
from testbed.workload.plan import JobPlan

SCENARIO = {
    "name": "small",
    "topology": {
        "name": "pair",
        "mtu": 9000,
        "buildings": {
            "east": {"hosts": 4, "nic": {"rate": "40 Gbit/s"}, "region": "here"},
            "west": {"hosts": 4, "nic": {"rate": "40 Gbit/s"}, "region": "there"},
        },
        "wan": [{"a": "east", "b": "west", "rate": "40 Gbit/s", "delay": "2 ms", "queue": "64 MB"}],
    },
    "workload": {
        "model": {
            "dim": 256,
            "n_layers": 8,
            "n_heads": 8,
            "n_kv_heads": 8,
            "ffn_dim": 512,
            "vocab_size": 1024,
        },
        "accelerator": "h100",
        "sequence_length": 1024,
        "parallelism": {"data_parallel_replicate_degree": 8},
        "schedule": {"name": "ZBH1", "microbatches": 4},
        "bucket_cap": "1 MB",
    },
    "policy": "shortest",
}
DEGREES = (
    "pipeline_parallel",
    "data_parallel_replicate",
    "data_parallel_shard",
    "tensor_parallel",
    "context_parallel",
)
SHAPES = [shape for shape in itertools.product((1, 2, 4), repeat=5) if math.prod(shape) == 8]
PARALLELISM = "workload.parallelism"
MORE: dict[str, dict[str, object]] = {
    "plain": {},
    "in order": {"workload.schedule.receives": "in_order"},
    "tokens": {"workload.schedule.wan_send_tokens": True, "workload.parallelism.placement": "atlas"},
}


def planned(shape: tuple[int, ...], more: Mapping[str, object]) -> JobPlan:
    degrees = {f"{name}_degree": many for name, many in zip(DEGREES, shape, strict=True)}
    changes = {"workload.parallelism": degrees, **more}
    return job_of(load_scenario(SCENARIO).changed(changes, "a test"), Scale()).workload.plan


@pytest.mark.parametrize("more", MORE.values(), ids=MORE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ranks_that_do_alike_have_the_plans_of_their_own(
    shape: tuple[int, ...], more: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = planned(shape, more)
    monkeypatch.setattr(pipeline_plan, "_plans", SizedCache(0, lambda _: 1))
    monkeypatch.setattr(pipeline_plan, "symmetry_key", lambda *_: None)
    assert made == planned(shape, more)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_plan_that_is_remembered_is_the_one_that_would_be_made(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    placements = [{f"{PARALLELISM}.placement": name} for name in ("production", "atlas")]
    others = [{f"{PARALLELISM}.collectives.{name}": "bidirectional_ring"} for name in DEGREES[2:4]]
    asked: list[Mapping[str, object]] = [{}, *MORE.values(), *placements, *others]
    known = [planned(shape, changes) for changes in asked]
    for cache in ("_plans", "_patterns"):
        monkeypatch.setattr(pipeline_plan, cache, SizedCache(0, lambda _: 1))
    assert known == [planned(shape, changes) for changes in asked]


def test_what_makes_no_difference_makes_no_other_plan() -> None:
    pipeline, tensor = (8, 1, 1, 1, 1), {f"{PARALLELISM}.collectives.tensor_parallel": "bidirectional_ring"}
    first = planned(pipeline, {})
    assert planned(pipeline, tensor) is first  # nothing is tensor parallel
    assert (
        planned(pipeline, {"workload.schedule.wan_send_tokens": True}) is first
    )  # replicas, of which there is one

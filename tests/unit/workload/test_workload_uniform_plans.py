"""Buckets against what PyTorch makes of the same tensors, and plans of what all ranks do alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.spec.scale import UNSCALED, Scale
from testbed.spec.scenario import load_scenario
from testbed.spec.workload import WorkloadSpec
from testbed.workload.models import Parameter, parameters
from testbed.workload.plan import Computing, GroupCollective, RankPlan
from testbed.workload.plan_volume import plan_traffic
from testbed.workload.uniform_plans import gradient_buckets, plan_collectives, plan_data_parallel

MIB = 2**20
TINY = {"dim": 8, "n_layers": 1, "n_heads": 2, "n_kv_heads": 1, "ffn_dim": 16, "vocab_size": 32}


def training_step(spec: WorkloadSpec, scale: Scale = UNSCALED) -> RankPlan:
    """Of any of two ranks."""
    plan = plan_data_parallel(spec, (0, 1), scale)
    assert plan.ranks[0] == plan.ranks[1]
    return plan.ranks[0]


def test_an_uneven_all_to_all_announces_its_counts_unless_told_to_pad() -> None:
    sent = {}
    for algorithm, taken in (("auto", "late_counts"), ("padded", "padded")):
        entry = {"collective": "all_to_all_v", "size": "8 KiB", "algorithm": algorithm}
        plan = plan_collectives(WorkloadSpec.model_validate({"collectives": [entry]}), (0,) * 4)
        (operation,) = plan.ranks[0]
        assert isinstance(operation, GroupCollective)
        assert (operation.numel, operation.algorithm) == (2048, taken)
        assert max(map(max, operation.rows())) <= 512
        sent[taken] = plan_traffic(plan, 4)
    assert set(sent["padded"].values()) == {8 + 512 * 4}
    assert all(sent["late_counts"][ends] <= size for ends, size in sent["padded"].items())


def test_collectives_that_name_no_algorithm_take_the_variants() -> None:
    named = {"collective": "all_reduce", "size": "8 KiB", "algorithm": "ring"}
    spec = WorkloadSpec.model_validate({"collectives": [named]})
    plan = plan_collectives(spec, (0, 0, 1, 1))
    assert plan.with_algorithm("hierarchical") is plan
    buckets = plan_data_parallel(workload(model=TINY), (0, 0, 1, 1)).with_algorithm("hierarchical")
    assert {op.algorithm for op in buckets.ranks[3] if isinstance(op, GroupCollective)} == {"hierarchical"}
    assert buckets.ranks[0] is buckets.ranks[3]


def workload(**settings: object) -> WorkloadSpec:
    return WorkloadSpec.model_validate({"model": "llama3-8b", "peak_flops": "989 Tflop/s", **settings})


def bucket_numels(numels: list[int], cap_bytes: int, first_cap_bytes: int) -> list[list[int]]:
    """Element counts bucket by bucket, for tensors of bytes in the order in which backward finishes them."""
    tensors = [Parameter(str(number), (numel,), matmul=True) for number, numel in enumerate(numels)]
    buckets = gradient_buckets(tensors[::-1], 1, cap_bytes, first_cap_bytes)
    return [[parameter.numel for parameter in bucket.parameters] for bucket in buckets]


def test_buckets_are_those_of_pytorch() -> None:
    """torch 2.2.2: dist._compute_bucket_assignment_by_size with caps of 1 MiB gives [[0], [1, 2], [3, 4], [5]] here."""
    weight, bias = 1_048_576, 2048
    assert bucket_numels([weight, bias, weight, bias, weight, bias], MIB, MIB) == [
        [weight],
        [bias, weight],
        [bias, weight],
        [bias],
    ]


def test_a_bucket_closes_when_it_reaches_its_cap_not_when_it_would_pass_it() -> None:
    assert bucket_numels([3, 4, 4, 2, 9, 1, 1], cap_bytes=8, first_cap_bytes=3) == [
        [3],
        [4, 4],
        [2, 9],
        [1, 1],
    ]


@given(st.lists(st.integers(1, 50), min_size=1), st.integers(1, 100), st.integers(1, 100))
def test_every_gradient_is_in_one_bucket_in_order(numels: list[int], cap: int, first_cap: int) -> None:
    buckets = bucket_numels(numels, cap, first_cap)
    assert [numel for bucket in buckets for numel in bucket] == numels
    for position, bucket in enumerate(buckets):
        limit = cap if position else first_cap
        assert sum(bucket[:-1]) < limit
        assert sum(bucket) >= limit or position == len(buckets) - 1


def test_the_first_bucket_of_llama_is_its_output_layer_and_the_last_ends_with_its_embeddings() -> None:
    buckets = gradient_buckets(parameters("llama3-8b"), 4, 400 * MIB, MIB)
    assert buckets[0].name == "output.weight"
    assert buckets[1].name == "norm.weight .. layers.31.feed_forward.w2.weight"
    assert buckets[-1].parameters[-1].name == "tok_embeddings.weight"
    assert sum(bucket.numel for bucket in buckets) == 8_030_261_248


def test_a_step_computes_6_operations_per_parameter_and_token() -> None:
    spec = workload(sequence_length=4096, local_batch_size=2, flops_utilisation=0.5)
    program = training_step(spec)
    computes = [action for action in program if isinstance(action, Computing)]
    forward_s = 2 * 8_030_261_248 * 8192 / (989e12 * 0.5)
    assert computes[0].name == "forward"
    assert computes[0].duration_s == pytest.approx(forward_s)
    assert sum(compute.duration_s for compute in computes[1:]) == pytest.approx(2 * forward_s)


def test_a_step_reduces_each_bucket_as_soon_as_it_is_computed() -> None:
    program = training_step(workload(bucket_cap="400 MiB"))
    buckets = gradient_buckets(parameters("llama3-8b"), 4, 400 * MIB, MIB)
    assert program[0].__class__ is Computing
    assert [action.name for action in program[1::2] if isinstance(action, Computing)] == [
        f"backward {number}" for number in range(len(buckets))
    ]
    reduced = [action for action in program[2::2] if isinstance(action, GroupCollective)]
    assert [(action.name, action.numel) for action in reduced] == [
        (bucket.name, bucket.numel) for bucket in buckets
    ]
    assert [action.after for action in reduced] == [(place,) for place in range(1, len(program), 2)]
    assert len({action.stream for action in reduced}) == len(buckets)  # all go on side by side


def test_backward_time_follows_matrix_products_so_embeddings_take_none() -> None:
    spec = workload(model=TINY, bucket_cap="1 B", first_bucket_cap="1 B")
    program = training_step(spec)
    times = [action.duration_s for action in program if isinstance(action, Computing)][1:]
    names = [action.name for action in program if isinstance(action, GroupCollective)]
    taken = dict(zip(names, times, strict=True))
    assert taken["tok_embeddings.weight"] == taken["norm.weight"] == taken["layers.0.ffn_norm.weight"] == 0
    assert taken["output.weight"] == pytest.approx(2 * taken["layers.0.feed_forward.w1.weight"])


def test_the_size_scale_divides_elements_and_leaves_times() -> None:
    real, scaled = (training_step(workload(), Scale(scale)) for scale in (1.0, 4000.0))
    assert [action for action in real if isinstance(action, Computing)] == [
        action for action in scaled if isinstance(action, Computing)
    ]
    for large, small in zip(real, scaled, strict=True):
        if isinstance(large, GroupCollective) and isinstance(small, GroupCollective):
            assert small.numel == max(1, round(large.numel / 4000))


def test_something_is_left_to_reduce_at_any_scale() -> None:
    program = training_step(workload(model=TINY), Scale(1e12))
    assert {action.numel for action in program if isinstance(action, GroupCollective)} == {1}


def test_wider_gradients_fill_buckets_sooner() -> None:
    narrow, wide = (training_step(workload(gradient_dtype=dtype)) for dtype in ("float32", "float64"))
    assert len(wide) > len(narrow)


def test_quickstart_is_a_step_of_about_a_second() -> None:
    scenario = load_scenario(Path(__file__).parents[3] / "scenarios" / "quickstart.yaml")
    program = training_step(scenario.workload, Scale(4000.0))
    assert 0.5 < sum(action.duration_s for action in program if isinstance(action, Computing)) < 2
    assert len(program) < 200

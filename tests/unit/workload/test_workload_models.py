"""Parameters of published models, against what their publishers say."""

from __future__ import annotations

import pytest

from testbed.spec.catalogue import accelerators, models
from testbed.spec.transformer import MODELS, ModelSpec
from testbed.spec.value_types import COMPUTE_DTYPES
from testbed.spec.workload import WorkloadSpec
from testbed.workload.models import parameters


@pytest.mark.parametrize("model", MODELS)
def test_sizes_are_those_that_the_publishers_say(model: str) -> None:
    found, entry = parameters(model), models()[model]
    numel, active = sum(p.numel for p in found), sum(p.active for p in found)
    published = entry["parameters"]
    # a whole number is exact, one with an exponent is rounded to a thousandth of it or so
    assert numel == (published if isinstance(published, int) else pytest.approx(published, rel=1e-3))
    assert active == pytest.approx(entry.get("active", numel), rel=0.02)
    assert entry["source"]


def test_names_are_unique() -> None:
    for model in MODELS:
        names = [parameter.name for parameter in parameters(model)]
        assert len(names) == len(set(names)), model


def test_experts_work_on_their_part_of_the_tokens() -> None:
    shares = {p.share for p in parameters("mixtral-8x7b") if ".experts." in p.name}
    assert shares == {2 / 8}
    assert {p.share for p in parameters("mixtral-8x7b") if ".experts." not in p.name} == {1.0}
    routed = [p for p in parameters("deepseek-v3") if p.share < 1]
    assert {p.share for p in routed} == {8 / 256}
    assert len(routed) == 58 * 256 * 3


def test_gpt2_multiplies_tokens_by_its_embeddings_a_second_time() -> None:
    found = {p.name: p for p in parameters("gpt2-124m")}
    assert found["wte.weight"].matmul
    assert not found["wpe.weight"].matmul
    assert found["h.0.attn.c_attn.weight"].shape == (768, 2304)
    assert found["h.11.mlp.c_proj.weight"].shape == (3072, 768)


@pytest.mark.parametrize("name", accelerators())
def test_accelerators_have_what_programs_need(name: str) -> None:
    entry = accelerators()[name]
    assert set(entry["peak"]) == set(COMPUTE_DTYPES)
    assert all(1e14 < float(peak) < 1e16 for peak in entry["peak"].values())
    assert 1e10 < float(entry["memory"]) < 1e12
    assert 0 < float(entry["utilisation"]) < 1
    assert entry["source"]


def test_speed_is_the_accelerator_s_unless_told() -> None:
    h100 = WorkloadSpec(model="llama3-8b", accelerator="h100")
    assert h100.flops == pytest.approx(0.4 * 989e12)
    eighth = WorkloadSpec(model="llama3-8b", accelerator="h100", compute_dtype="fp8", flops_utilisation=0.5)
    assert eighth.flops == pytest.approx(0.5 * 1979e12)
    assert WorkloadSpec.model_validate(
        {"model": "llama3-8b", "peak_flops": "1 Pflop/s"}
    ).flops == pytest.approx(0.4e15)


def test_llama3_8b_layer_by_layer() -> None:
    found = parameters("llama3-8b")
    assert len(found) == 3 + 32 * 9
    assert [(parameter.name, parameter.shape) for parameter in found[:10]] == [
        ("tok_embeddings.weight", (128256, 4096)),
        ("layers.0.attention.wq.weight", (4096, 4096)),
        ("layers.0.attention.wk.weight", (1024, 4096)),
        ("layers.0.attention.wv.weight", (1024, 4096)),
        ("layers.0.attention.wo.weight", (4096, 4096)),
        ("layers.0.feed_forward.w1.weight", (14336, 4096)),
        ("layers.0.feed_forward.w2.weight", (4096, 14336)),
        ("layers.0.feed_forward.w3.weight", (14336, 4096)),
        ("layers.0.attention_norm.weight", (4096,)),
        ("layers.0.ffn_norm.weight", (4096,)),
    ]
    assert [parameter.name for parameter in found[-3:]] == [
        "layers.31.ffn_norm.weight",
        "norm.weight",
        "output.weight",
    ]


def test_only_matrices_that_multiply_tokens_count_as_such() -> None:
    others = {parameter.name.split(".")[-2] for parameter in parameters("llama3-8b") if not parameter.matmul}
    assert others == {"tok_embeddings", "attention_norm", "ffn_norm", "norm"}


def test_a_model_given_by_its_dimensions() -> None:
    tiny = ModelSpec(dim=8, n_layers=2, n_heads=4, n_kv_heads=2, ffn_dim=16, vocab_size=32)
    attention, feed_forward, norms = 8 * 8 * 2 + 4 * 8 * 2, 3 * 8 * 16, 2 * 8
    assert sum(p.numel for p in parameters(tiny)) == 2 * 32 * 8 + 2 * (attention + feed_forward + norms) + 8

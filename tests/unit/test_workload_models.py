"""Parameters of published models, against what their publishers say."""

from __future__ import annotations

import pytest

from testbed.config import ModelSpec
from testbed.config.workload import MODELS
from testbed.workload import parameters
from testbed.workload.models import ARCHITECTURES


@pytest.mark.parametrize(("model", "numel"), [("llama3-8b", 8_030_261_248), ("llama3-70b", 70_553_706_496)])
def test_published_sizes(model: str, numel: int) -> None:
    assert sum(parameter.numel for parameter in parameters(model)) == numel


def test_every_model_that_files_may_name_is_known() -> None:
    assert set(ARCHITECTURES) == set(MODELS)


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

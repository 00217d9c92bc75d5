"""Parameters of published transformer models, computed from their published architecture (`data/models.yaml`).

Names and order of registration are those of the publishers' own code: Meta's `llama/model.py` (torchtitan uses the same
names), OpenAI's and Hugging Face's GPT-2, Mixtral and DeepSeek-V3 of Hugging Face's transformers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.spec.catalogue import models

if TYPE_CHECKING:  # counting parameters does not require the file models
    from testbed.spec.transformer import ModelSpec


@dataclass(frozen=True)
class Architecture:
    """The dimensions of a decoder-only transformer; a dimension that is not in `ModelSpec` is 0 if the model lacks it.

    Attributes:
        positions: Learned positions.
        experts: Routed experts of a layer.
        experts_per_token: Routed experts that a token uses.
        shared_experts: Experts that every token uses in addition.
        expert_ffn_dim: Hidden width of an expert; 0 for `ffn_dim`.
        dense_layers: Number of layers before the first one with experts.
        q_rank: Rank of the queries in multi-head latent attention; `kv_rank`, `head_dim`, `rope_dim` and `value_dim`
            also belong to it.
    """

    dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    ffn_dim: int
    vocab_size: int
    positions: int = 0
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    expert_ffn_dim: int = 0
    dense_layers: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    head_dim: int = 0
    rope_dim: int = 0
    value_dim: int = 0


@dataclass(frozen=True)
class Parameter:
    """A trained tensor.

    Attributes:
        name: Name in the publishers' code.
        shape: Shape of the tensor.
        matmul: Whether tokens are multiplied by it, which is not so for look-up tables, biases and norms.
        share: Share of all tokens that use it; below 1 for experts.
    """

    name: str
    shape: tuple[int, ...]
    matmul: bool
    share: float = 1.0

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def active(self) -> float:
        """The number of elements that a token uses, on average."""
        return self.numel * self.share


def parameters(model: str | Architecture | ModelSpec) -> tuple[Parameter, ...]:
    """Return all parameters in order of registration; raise KeyError for an unknown model."""
    if isinstance(model, str):
        entry = models()[model]
        family, model = entry["family"], Architecture(**entry["dimensions"])
    else:
        family = "mixtral" if model.experts else "llama"
    return tuple(_FAMILIES[family](model))


def dimensions(model: str | ModelSpec) -> Architecture | ModelSpec:
    """Return the dimensions of a model; look up published models by name, and raise KeyError for unknown names."""
    return Architecture(**models()[model]["dimensions"]) if isinstance(model, str) else model


def key_value_dim(model: str | ModelSpec) -> int:
    """Return the number of values of a token's key and value in one layer."""
    spec = dimensions(model)
    if isinstance(spec, Architecture) and spec.kv_rank:
        return spec.kv_rank + spec.rope_dim
    return 2 * spec.dim // spec.n_heads * spec.n_kv_heads


def score_products(model: str | ModelSpec) -> int:
    """Return the multiplications of a token with one key and its value, over all heads of a layer."""
    spec = dimensions(model)
    if isinstance(spec, Architecture) and spec.kv_rank:
        return spec.n_heads * (spec.head_dim + spec.rope_dim + spec.value_dim)
    return 2 * spec.dim


def experts_per_token(model: str | ModelSpec) -> int:
    """Return the number of routed experts that a token uses; 0 if there are none."""
    return dimensions(model).experts_per_token


def _matrix(name: str, *shape: int, share: float = 1.0) -> Parameter:
    return Parameter(f"{name}.weight", shape, matmul=True, share=share)


def _vector(name: str, *shape: int) -> Parameter:
    return Parameter(name, shape, matmul=False)


def _norm(prefix: str, dim: int) -> Iterator[Parameter]:
    yield _vector(f"{prefix}.weight", dim)
    yield _vector(f"{prefix}.bias", dim)


def _affine(prefix: str, into: int, out: int) -> Iterator[Parameter]:
    """Yield a matrix in GPT-2's layout (inputs first), and its bias."""
    yield _matrix(prefix, into, out)
    yield _vector(f"{prefix}.bias", out)


def _attention(
    prefix: str, spec: Architecture | ModelSpec, names: tuple[str, str, str, str]
) -> Iterator[Parameter]:
    """Yield the matrices of queries, keys and values (which several heads may share) and of the output."""
    kv_dim = spec.dim // spec.n_heads * spec.n_kv_heads
    for name, wide in zip(names, (spec.dim, kv_dim, kv_dim, spec.dim), strict=True):
        yield _matrix(f"{prefix}.{name}", wide, spec.dim)


def _llama(spec: Architecture | ModelSpec) -> Iterator[Parameter]:
    dim, ffn = spec.dim, spec.ffn_dim
    yield _vector("tok_embeddings.weight", spec.vocab_size, dim)
    for number in range(spec.n_layers):
        layer = f"layers.{number}"
        yield from _attention(f"{layer}.attention", spec, ("wq", "wk", "wv", "wo"))
        yield _matrix(f"{layer}.feed_forward.w1", ffn, dim)
        yield _matrix(f"{layer}.feed_forward.w2", dim, ffn)
        yield _matrix(f"{layer}.feed_forward.w3", ffn, dim)
        yield _vector(f"{layer}.attention_norm.weight", dim)
        yield _vector(f"{layer}.ffn_norm.weight", dim)
    yield _vector("norm.weight", dim)
    yield _matrix("output", spec.vocab_size, dim)


def _gpt2(spec: Architecture) -> Iterator[Parameter]:
    dim, ffn = spec.dim, spec.ffn_dim
    # the output layer reuses the embeddings, so that tokens are multiplied by them
    yield _matrix("wte", spec.vocab_size, dim)
    yield _vector("wpe.weight", spec.positions, dim)
    for number in range(spec.n_layers):
        layer = f"h.{number}"
        yield from _norm(f"{layer}.ln_1", dim)
        yield from _affine(f"{layer}.attn.c_attn", dim, 3 * dim)
        yield from _affine(f"{layer}.attn.c_proj", dim, dim)
        yield from _norm(f"{layer}.ln_2", dim)
        yield from _affine(f"{layer}.mlp.c_fc", dim, ffn)
        yield from _affine(f"{layer}.mlp.c_proj", ffn, dim)
    yield from _norm("ln_f", dim)


def _experts(
    prefix: str, spec: Architecture | ModelSpec, width: int, names: tuple[str, str, str]
) -> Iterator[Parameter]:
    """Yield a layer's routed experts; `names` are the matrices into, out of and parallel to the hidden layer."""
    share = spec.experts_per_token / spec.experts
    into, out, gate = names
    for number in range(spec.experts):
        yield _matrix(f"{prefix}.experts.{number}.{into}", width, spec.dim, share=share)
        yield _matrix(f"{prefix}.experts.{number}.{out}", spec.dim, width, share=share)
        yield _matrix(f"{prefix}.experts.{number}.{gate}", width, spec.dim, share=share)


def _mixtral(spec: Architecture | ModelSpec) -> Iterator[Parameter]:
    dim = spec.dim
    yield _vector("embed_tokens.weight", spec.vocab_size, dim)
    for number in range(spec.n_layers):
        layer = f"layers.{number}"
        yield from _attention(f"{layer}.self_attn", spec, ("q_proj", "k_proj", "v_proj", "o_proj"))
        yield _matrix(f"{layer}.block_sparse_moe.gate", spec.experts, dim)
        yield from _experts(f"{layer}.block_sparse_moe", spec, spec.ffn_dim, ("w1", "w2", "w3"))
        yield _vector(f"{layer}.input_layernorm.weight", dim)
        yield _vector(f"{layer}.post_attention_layernorm.weight", dim)
    yield _vector("norm.weight", dim)
    yield _matrix("lm_head", spec.vocab_size, dim)


def _deepseek(spec: Architecture) -> Iterator[Parameter]:
    dim, heads = spec.dim, spec.n_heads
    names = ("gate_proj", "down_proj", "up_proj")
    yield _vector("embed_tokens.weight", spec.vocab_size, dim)
    for number in range(spec.n_layers):
        attention, mlp = f"layers.{number}.self_attn", f"layers.{number}.mlp"
        yield _matrix(f"{attention}.q_a_proj", spec.q_rank, dim)
        yield _vector(f"{attention}.q_a_layernorm.weight", spec.q_rank)
        yield _matrix(f"{attention}.q_b_proj", heads * (spec.head_dim + spec.rope_dim), spec.q_rank)
        yield _matrix(f"{attention}.kv_a_proj_with_mqa", spec.kv_rank + spec.rope_dim, dim)
        yield _vector(f"{attention}.kv_a_layernorm.weight", spec.kv_rank)
        yield _matrix(f"{attention}.kv_b_proj", heads * (spec.head_dim + spec.value_dim), spec.kv_rank)
        yield _matrix(f"{attention}.o_proj", dim, heads * spec.value_dim)
        width = spec.ffn_dim
        if number >= spec.dense_layers:
            yield from _experts(mlp, spec, spec.expert_ffn_dim, names)
            yield _matrix(f"{mlp}.gate", spec.experts, dim)
            mlp, width = f"{mlp}.shared_experts", spec.shared_experts * spec.expert_ffn_dim
        for name in names:
            yield _matrix(f"{mlp}.{name}", *((dim, width) if name == "down_proj" else (width, dim)))
        yield _vector(f"layers.{number}.input_layernorm.weight", dim)
        yield _vector(f"layers.{number}.post_attention_layernorm.weight", dim)
    yield _vector("norm.weight", dim)
    yield _matrix("lm_head", spec.vocab_size, dim)


_FAMILIES: Mapping[str, Callable[..., Iterator[Parameter]]] = {
    "llama": _llama,
    "gpt2": _gpt2,
    "mixtral": _mixtral,
    "deepseek": _deepseek,
}

"""Parameters of published transformer models, computed from their published architecture (`data/models.yaml`).

Names and order of registration are those of the publishers' own code: Meta's `llama/model.py` (whose names torchtitan
keeps), OpenAI's and Hugging Face's GPT-2, Mixtral and DeepSeek-V3 of Hugging Face's transformers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.spec.catalogue import models

if TYPE_CHECKING:  # the names only: counting needs none of what checks files
    from testbed.spec.transformer import ModelSpec


@dataclass(frozen=True)
class Architecture:
    """A decoder-only transformer by its dimensions; those that a `ModelSpec` lacks are 0 where there is none.

    positions: learned ones. experts: routed ones in a layer, of which `experts_per_token` work on a token, beside
    `shared_experts`; expert_ffn_dim: their width, 0 for `ffn_dim`; dense_layers: layers before the first with experts.
    q_rank, kv_rank, head_dim, rope_dim, value_dim: of multi-head latent attention.
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

    matmul: whether it multiplies tokens, as all but look-ups, biases and norms do. share: part of all tokens that it
    works on; below 1 for experts.
    """

    name: str
    shape: tuple[int, ...]
    matmul: bool
    share: float = 1.0

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def active(self) -> float:
        """Elements that work on a token, on average."""
        return self.numel * self.share


def parameters(model: str | Architecture | ModelSpec) -> tuple[Parameter, ...]:
    """All parameters in the order of registration. KeyError for a model that is not known."""
    if isinstance(model, str):
        entry = models()[model]
        family, model = entry["family"], Architecture(**entry["dimensions"])
    else:
        family = "mixtral" if model.experts else "llama"
    return tuple(_FAMILIES[family](model))


def dimensions(model: str | ModelSpec) -> Architecture | ModelSpec:
    """Of a published model by name; others are dimensions already. KeyError for a model that is not known."""
    return Architecture(**models()[model]["dimensions"]) if isinstance(model, str) else model


def key_value_dim(model: str | ModelSpec) -> int:
    """Values that a token's keys and values have together in one layer."""
    spec = dimensions(model)
    if isinstance(spec, Architecture) and spec.kv_rank:
        return spec.kv_rank + spec.rope_dim
    return 2 * spec.dim // spec.n_heads * spec.n_kv_heads


def score_products(model: str | ModelSpec) -> int:
    """Multiplications of a token with one key and its value, of all heads of a layer together."""
    spec = dimensions(model)
    if isinstance(spec, Architecture) and spec.kv_rank:
        return spec.n_heads * (spec.head_dim + spec.rope_dim + spec.value_dim)
    return 2 * spec.dim


def experts_per_token(model: str | ModelSpec) -> int:
    """Routed experts that work on a token, 0 where there are none."""
    return dimensions(model).experts_per_token


def _matrix(name: str, *shape: int, share: float = 1.0) -> Parameter:
    return Parameter(f"{name}.weight", shape, matmul=True, share=share)


def _vector(name: str, *shape: int) -> Parameter:
    return Parameter(name, shape, matmul=False)


def _norm(prefix: str, dim: int) -> Iterator[Parameter]:
    yield _vector(f"{prefix}.weight", dim)
    yield _vector(f"{prefix}.bias", dim)


def _affine(prefix: str, into: int, out: int) -> Iterator[Parameter]:
    """A matrix as GPT-2 keeps it (inputs first), and its bias."""
    yield _matrix(prefix, into, out)
    yield _vector(f"{prefix}.bias", out)


def _attention(
    prefix: str, spec: Architecture | ModelSpec, names: tuple[str, str, str, str]
) -> Iterator[Parameter]:
    """Queries, keys, values (of which several heads share one) and output."""
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
    # the output layer is the embeddings once more, so they multiply tokens as well
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
    """The routed experts of a layer: `names` of the matrices into, out of and beside the hidden layer."""
    share = spec.experts_per_token / spec.experts
    into, out, beside = names
    for number in range(spec.experts):
        yield _matrix(f"{prefix}.experts.{number}.{into}", width, spec.dim, share=share)
        yield _matrix(f"{prefix}.experts.{number}.{out}", spec.dim, width, share=share)
        yield _matrix(f"{prefix}.experts.{number}.{beside}", width, spec.dim, share=share)


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

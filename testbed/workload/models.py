"""Parameters of published transformer models, computed from their published architecture (`data/models.yaml`).

Names and order of registration are those of the publishers' own code: Meta's `llama/model.py` (whose names torchtitan
keeps), OpenAI's and Hugging Face's GPT-2, Mixtral and DeepSeek-V3 of Hugging Face's transformers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.catalogue import models

if TYPE_CHECKING:  # ranks import this room, and the files' models would take half of their memory
    from testbed.config import ModelSpec


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
    family = "llama"
    if isinstance(model, str):
        entry = models()[model]
        family, model = entry["family"], Architecture(**entry["dimensions"])
    return tuple(_FAMILIES[family](model))


def _matrix(name: str, *shape: int, share: float = 1.0) -> Parameter:
    return Parameter(f"{name}.weight", shape, matmul=True, share=share)


def _vector(name: str, *shape: int) -> Parameter:
    return Parameter(name, shape, matmul=False)


def _llama(spec: Architecture | ModelSpec) -> Iterator[Parameter]:
    dim, ffn = spec.dim, spec.ffn_dim
    kv_dim = dim // spec.n_heads * spec.n_kv_heads
    yield _vector("tok_embeddings.weight", spec.vocab_size, dim)
    for number in range(spec.n_layers):
        layer = f"layers.{number}"
        yield _matrix(f"{layer}.attention.wq", dim, dim)
        yield _matrix(f"{layer}.attention.wk", kv_dim, dim)
        yield _matrix(f"{layer}.attention.wv", kv_dim, dim)
        yield _matrix(f"{layer}.attention.wo", dim, dim)
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
        for name, wide in (
            ("ln_1", 0),
            ("attn.c_attn", 3 * dim),
            ("attn.c_proj", dim),
            ("ln_2", 0),
            ("mlp.c_fc", ffn),
            ("mlp.c_proj", -dim),
        ):
            place = f"h.{number}.{name}"
            if not wide:
                yield _vector(f"{place}.weight", dim)
                yield _vector(f"{place}.bias", dim)
                continue
            yield _matrix(place, dim if wide > 0 else ffn, abs(wide))
            yield _vector(f"{place}.bias", abs(wide))
    yield _vector("ln_f.weight", dim)
    yield _vector("ln_f.bias", dim)


def _experts(place: str, spec: Architecture, width: int, names: tuple[str, str, str]) -> Iterator[Parameter]:
    """The routed experts of a layer: `names` of the matrices into, out of and beside the hidden layer."""
    share = spec.experts_per_token / spec.experts
    into, out, beside = names
    for number in range(spec.experts):
        yield _matrix(f"{place}.experts.{number}.{into}", width, spec.dim, share=share)
        yield _matrix(f"{place}.experts.{number}.{out}", spec.dim, width, share=share)
        yield _matrix(f"{place}.experts.{number}.{beside}", width, spec.dim, share=share)


def _mixtral(spec: Architecture) -> Iterator[Parameter]:
    dim = spec.dim
    kv_dim = dim // spec.n_heads * spec.n_kv_heads
    yield _vector("embed_tokens.weight", spec.vocab_size, dim)
    for number in range(spec.n_layers):
        layer = f"layers.{number}"
        for name, wide in (("q_proj", dim), ("k_proj", kv_dim), ("v_proj", kv_dim), ("o_proj", dim)):
            yield _matrix(f"{layer}.self_attn.{name}", wide, dim)
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

"""Parameters of published transformer models, computed from their published architecture.

Source of the layers, their names and the order in which they are registered: Meta's `llama/model.py`
(github.com/meta-llama/llama3, class Transformer), whose names torchtitan keeps (torchtitan/models/llama3). Source of
the dimensions: "The Llama 3 Herd of Models", table 3 (arXiv:2407.21783), and the models' `params.json`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # ranks import this room, and the files' models would take half of their memory
    from testbed.config import ModelSpec


@dataclass(frozen=True)
class Architecture:
    """A decoder-only transformer of the Llama 3 kind; the same dimensions as a scenario's `ModelSpec`."""

    dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    ffn_dim: int
    vocab_size: int


ARCHITECTURES = {
    "llama3-8b": Architecture(
        dim=4096, n_layers=32, n_heads=32, n_kv_heads=8, ffn_dim=14336, vocab_size=128256
    ),
    "llama3-70b": Architecture(
        dim=8192, n_layers=80, n_heads=64, n_kv_heads=8, ffn_dim=28672, vocab_size=128256
    ),
}


@dataclass(frozen=True)
class Parameter:
    """A trained tensor. `matmul`: whether it multiplies every token, as all but look-ups and norms do."""

    name: str
    shape: tuple[int, ...]
    matmul: bool

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def parameters(model: str | Architecture | ModelSpec) -> tuple[Parameter, ...]:
    """All parameters in the order of registration. KeyError for a model that is not known."""
    spec = ARCHITECTURES[model] if isinstance(model, str) else model
    dim, ffn = spec.dim, spec.ffn_dim
    kv_dim = dim // spec.n_heads * spec.n_kv_heads
    found = [Parameter("tok_embeddings.weight", (spec.vocab_size, dim), matmul=False)]
    for layer in range(spec.n_layers):
        for name, shape in (
            ("attention.wq", (dim, dim)),
            ("attention.wk", (kv_dim, dim)),
            ("attention.wv", (kv_dim, dim)),
            ("attention.wo", (dim, dim)),
            ("feed_forward.w1", (ffn, dim)),
            ("feed_forward.w2", (dim, ffn)),
            ("feed_forward.w3", (ffn, dim)),
        ):
            found.append(Parameter(f"layers.{layer}.{name}.weight", shape, matmul=True))
        for name in ("attention_norm", "ffn_norm"):
            found.append(Parameter(f"layers.{layer}.{name}.weight", (dim,), matmul=False))
    found.append(Parameter("norm.weight", (dim,), matmul=False))
    found.append(Parameter("output.weight", (spec.vocab_size, dim), matmul=True))
    return tuple(found)

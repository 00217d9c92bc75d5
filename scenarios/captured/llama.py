"""A decoder-only transformer of the Llama 3 kind, plain PyTorch: what the scripts beside it train."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Sizes:
    """Of a model. experts: of each feed-forward layer, none in dense models."""

    dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    ffn_dim: int
    vocab_size: int
    experts: int = 0
    experts_per_token: int = 2


MODELS = {
    "tiny": Sizes(256, 4, 8, 4, 768, 1024),
    "8b": Sizes(4096, 32, 32, 8, 14336, 128256),
    "70b": Sizes(8192, 80, 64, 8, 28672, 128256),
    "tiny-experts": Sizes(256, 4, 8, 4, 512, 1024, experts=8),
    "mixtral": Sizes(4096, 32, 32, 8, 14336, 32000, experts=8),
}


class RMSNorm(nn.Module):
    """Root mean square normalisation."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.size(-1),), self.weight)


class Attention(nn.Module):
    """Causal, of grouped queries. Heads are counted by what is there: a part of them under tensor parallelism."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.head_dim = sizes.dim // sizes.n_heads
        self.wq = nn.Linear(sizes.dim, sizes.dim, bias=False)
        self.wk = nn.Linear(sizes.dim, self.head_dim * sizes.n_kv_heads, bias=False)
        self.wv = nn.Linear(sizes.dim, self.head_dim * sizes.n_kv_heads, bias=False)
        self.wo = nn.Linear(sizes.dim, sizes.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            made.view(batch, length, -1, self.head_dim).transpose(1, 2)
            for made in (self.wq(x), self.wk(x), self.wv(x))
        )
        shared = q.size(1) // k.size(1)
        k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """Attention, then a feed-forward layer, each around a residual."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention = Attention(sizes)
        self.feed_forward = FeedForward(sizes.dim, sizes.ffn_dim)
        self.attention_norm = RMSNorm(sizes.dim)
        self.ffn_norm = RMSNorm(sizes.dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """Layers `first` to `last` of a model: all of them, or a pipeline stage's."""

    def __init__(self, sizes: Sizes, first: int = 0, last: int | None = None) -> None:
        super().__init__()
        last = sizes.n_layers if last is None else last
        ends = last == sizes.n_layers
        self.tok_embeddings = nn.Embedding(sizes.vocab_size, sizes.dim) if first == 0 else None
        self.layers = nn.ModuleDict({str(number): Block(sizes) for number in range(first, last)})
        self.norm = RMSNorm(sizes.dim) if ends else None
        self.output = nn.Linear(sizes.dim, sizes.vocab_size, bias=False) if ends else None

    def forward(self, x: Tensor) -> Tensor:
        if self.tok_embeddings is not None:
            x = self.tok_embeddings(x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.output is None or self.norm is None else self.output(self.norm(x))


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """Cross entropy of the next tokens."""
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())

"""What a card takes, and keeps, for requests: a roofline of its arithmetic and its memory. Real seconds and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from testbed.errors import BadInput
from testbed.spec.catalogue import accelerators
from testbed.spec.serving import GenerationSpec, InferenceSpec, RecommendationSpec
from testbed.workload.models import dimensions, experts_per_token, key_value_dim, parameters

INDEX_BYTES, LENGTH_BYTES, FEATURE_BYTES, SCORE_BYTES, TOKEN_BYTES = 4, 4, 4, 4, 4


class ServingProblem(BadInput, ValueError):
    """What does not fit; where: a key of workload.inference."""

    def __init__(self, where: str, got: str, expected: str) -> None:
        super().__init__(where=where, got=got, expected=expected)


@dataclass(frozen=True)
class Card:
    """What computes: flops and bandwidth as serving reaches them, launch_s beside them for each batch."""

    flops: float
    bandwidth: float  # bytes/s
    memory_bytes: float
    launch_s: float
    power_w: float
    hourly_usd: float

    def takes_s(self, flop: float, size_bytes: float) -> float:
        """The longer of computing and reading, and the launch."""
        return self.launch_s + max(flop / self.flops, size_bytes / self.bandwidth)


def card_of(spec: InferenceSpec) -> Card:
    """From the accelerators' table, and what a scenario says in its place."""
    entry = accelerators()[spec.accelerator]
    utilisation = spec.flops_utilisation or float(entry["utilisation"])
    peak = spec.peak_flops or float(entry["peak"][spec.precision])
    return Card(
        flops=peak * utilisation,
        bandwidth=float(entry["memory_bandwidth"]) * spec.memory_utilisation,
        memory_bytes=spec.card_memory_bytes or float(entry["memory"]),
        launch_s=spec.launch_s,
        power_w=float(entry["power"]),
        hourly_usd=float(entry["hourly"]),
    )


@dataclass(frozen=True)
class RecommendationCosts:
    """Of a recommendation model. itemsize: of weights and rows. partial: only used indices are sent."""

    spec: RecommendationSpec
    itemsize: int
    partial: bool

    def indices_bytes(self, requests: int, tables: int) -> int:
        """Which rows are meant, of so many tables; of each with its length where only the used part is sent."""
        entries = self.spec.pooling if self.partial else self.spec.room
        each = entries * INDEX_BYTES + (LENGTH_BYTES if self.partial else 0)
        return requests * self.spec.samples * tables * each

    def features_bytes(self, requests: int) -> int:
        """Dense features."""
        return requests * self.spec.samples * self.spec.features * FEATURE_BYTES

    def pooled_bytes(self, requests: int, tables: int) -> int:
        """A pooled vector for each table and sample."""
        return requests * self.spec.samples * tables * self.spec.dim * self.itemsize

    def scores_bytes(self, requests: int) -> int:
        """The answer."""
        return requests * self.spec.samples * SCORE_BYTES

    def lookup_bytes(self, requests: int, tables: int) -> float:
        """Read from memory."""
        rows = requests * self.spec.samples * tables * self.spec.pooling
        return float(rows * self.spec.dim * self.itemsize)

    def dense_flop(self, requests: int) -> float:
        """Of the layers that multiply."""
        return requests * self.spec.samples * self.spec.dense_flops

    def weights_bytes(self, tables: int, share: float = 1.0) -> float:
        """Of so many tables, and a share of the dense part."""
        rows = tables * self.spec.rows * self.spec.dim
        return (rows + share * self.spec.dense_parameters) * self.itemsize


@dataclass(frozen=True)
class GenerationCosts:
    """Of a transformer. Attention's own products over the context are left out: 2 flop per active weight and token."""

    spec: GenerationSpec
    itemsize: int

    @cached_property
    def layers(self) -> int:
        """Blocks."""
        return dimensions(self.spec.model).n_layers

    @cached_property
    def weights(self) -> float:
        """All of them."""
        return float(sum(_elements(one.shape) for one in parameters(self.spec.model)))

    @cached_property
    def active(self) -> float:
        """Weights that work on a token."""
        found = parameters(self.spec.model)
        return sum(_elements(one.shape) * one.share for one in found if one.matmul)

    @cached_property
    def expert_weights(self) -> float:
        """Those of the experts alone."""
        return float(sum(_elements(one.shape) for one in parameters(self.spec.model) if one.share < 1))

    @cached_property
    def active_expert_weights(self) -> float:
        """Experts' weights that work on a token."""
        found = parameters(self.spec.model)
        return sum(_elements(one.shape) * one.share for one in found if one.share < 1)

    @cached_property
    def experts_per_token(self) -> int:
        """That work on a token in a layer."""
        return experts_per_token(self.spec.model)

    def cache_bytes(self, tokens: int) -> float:
        """Keys and values of so many tokens, all layers."""
        return float(tokens * self.layers * key_value_dim(self.spec.model) * self.itemsize)

    def activation_bytes(self, tokens: int) -> int:
        """Of the residual stream."""
        return tokens * dimensions(self.spec.model).dim * self.itemsize

    def touched(self, tokens: int) -> float:
        """Weights that a pass over so many tokens reads: of experts those that any of them goes to, on average."""
        experts = getattr(dimensions(self.spec.model), "experts", 0)
        if not experts:
            return self.weights
        each = experts_per_token(self.spec.model) / experts
        return self.weights - self.expert_weights * (1 - each) ** tokens

    def read_bytes(self, tokens: int, context_tokens: int = 0) -> float:
        """From memory, by a pass over so many tokens, with what was kept of the context."""
        return self.touched(tokens) * self.itemsize + self.cache_bytes(context_tokens)


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count

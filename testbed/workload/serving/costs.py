"""Time and memory of an accelerator card for requests: a roofline of arithmetic and memory, in real figures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from testbed.errors import BadInput
from testbed.spec.catalogue import accelerators
from testbed.spec.serving import GenerationSpec, InferenceSpec, RecommendationSpec
from testbed.workload.models import dimensions, experts_per_token, key_value_dim, parameters
from testbed.workload.stages import Layer, layer_of

INDEX_BYTES, LENGTH_BYTES, FEATURE_BYTES, SCORE_BYTES, TOKEN_BYTES = 4, 4, 4, 4, 4


class ServingProblem(BadInput, ValueError):
    """The error for settings that do not fit together; `where` is a key of `workload.inference`."""

    def __init__(self, where: str, got: str, expected: str) -> None:
        super().__init__(where=where, got=got, expected=expected)


@dataclass(frozen=True)
class Card:
    """An accelerator card, with the flops and bandwidth that serving achieves.

    Attributes:
        flops: Flop/s.
        bandwidth: Bytes/s of memory.
        memory_bytes: Size of its memory.
        launch_s: Fixed time per batch.
        power_w: Power in watts.
        hourly_usd: Price in US dollars per hour.
    """

    flops: float
    bandwidth: float  # bytes/s
    memory_bytes: float
    launch_s: float
    power_w: float
    hourly_usd: float

    def takes_s(self, flop: float, size_bytes: float) -> float:
        """Return the launch time plus the longer of the compute and the memory time."""
        return self.launch_s + max(flop / self.flops, size_bytes / self.bandwidth)


def card_of(spec: InferenceSpec) -> Card:
    """Return the card of a scenario: the catalogue's accelerator with the scenario's overrides."""
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
    """Costs of a recommendation model.

    Attributes:
        spec: The model.
        itemsize: Bytes of a weight, and of a value in a row.
        partial: Whether only the used indices are sent.
    """

    spec: RecommendationSpec
    itemsize: int
    partial: bool

    def indices_bytes(self, requests: int, tables: int) -> int:
        """Return the bytes of indices into this many tables; partial ones include their length."""
        entries = self.spec.pooling if self.partial else self.spec.room
        each = entries * INDEX_BYTES + (LENGTH_BYTES if self.partial else 0)
        return requests * self.spec.samples * tables * each

    def features_bytes(self, requests: int) -> int:
        """Return the bytes of dense features."""
        return requests * self.spec.samples * self.spec.features * FEATURE_BYTES

    def pooled_bytes(self, requests: int, tables: int) -> int:
        """Return the bytes of pooled vectors, one for each table and sample."""
        return requests * self.spec.samples * tables * self.spec.dim * self.itemsize

    def scores_bytes(self, requests: int) -> int:
        """Return the bytes of the answer."""
        return requests * self.spec.samples * SCORE_BYTES

    def lookup_bytes(self, requests: int, tables: int) -> float:
        """Return the bytes that look-ups read from memory."""
        rows = requests * self.spec.samples * tables * self.spec.pooling
        return float(rows * self.spec.dim * self.itemsize)

    def dense_flop(self, requests: int) -> float:
        """Return the floating-point operations of the dense layers."""
        return requests * self.spec.samples * self.spec.dense_flops

    def weights_bytes(self, tables: int, share: float = 1.0) -> float:
        """Return the bytes of this many tables and a share of the dense part."""
        rows = tables * self.spec.rows * self.spec.dim
        return (rows + share * self.spec.dense_parameters) * self.itemsize


@dataclass(frozen=True)
class GenerationCosts:
    """Costs of a transformer: 2 flop per active weight and token.

    Attention's products over the context are left out.
    """

    spec: GenerationSpec
    itemsize: int

    @cached_property
    def weights(self) -> Layer:
        """The numbers of all weights, of weights that a token uses, and of expert weights in each of these."""
        return layer_of(parameters(self.spec.model))

    @property
    def layers(self) -> int:
        """The number of blocks."""
        return dimensions(self.spec.model).n_layers

    def cache_bytes(self, tokens: int) -> float:
        """Return the KV-cache size of this many tokens in bytes, over all layers."""
        return float(tokens * self.layers * key_value_dim(self.spec.model) * self.itemsize)

    def activation_bytes(self, tokens: int) -> int:
        """Return the bytes of the residual stream."""
        return tokens * dimensions(self.spec.model).dim * self.itemsize

    def touched(self, tokens: int) -> float:
        """Return the weights that a pass over this many tokens reads.

        For experts, these are on average the weights of the experts that any of the tokens uses.
        """
        experts = getattr(dimensions(self.spec.model), "experts", 0)
        if not experts:
            return self.weights.parameters
        each = experts_per_token(self.spec.model) / experts
        return self.weights.parameters - self.weights.experts * (1 - each) ** tokens

    def read_bytes(self, tokens: int, context_tokens: int = 0) -> float:
        """Return the bytes that a pass over this many tokens reads from memory, including the cache of its context."""
        return self.touched(tokens) * self.itemsize + self.cache_bytes(context_tokens)

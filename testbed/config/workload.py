"""What ranks do in a step, as a scenario says it: a model to train, or collectives and messages by themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import Field

from testbed.config.forms import (
    Count,
    Duration,
    DurationOrNone,
    FlopRateOrNone,
    Share,
    Size,
    choice,
    pattern,
    whole,
)
from testbed.config.loading import did_you_mean, show
from testbed.config.model import Finding, Form, Strict, inlined_schema

MODELS = ("llama3-8b", "llama3-70b")
ALGORITHMS = (
    "ring",
    "bidirectional_ring",
    "halving_doubling",
    "double_tree",
    "hierarchical",
    "hierarchical_tree",
    "auto",
)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
GATHERING = (
    *("auto", "ring", "bidirectional_ring", "near_first", "far_first", "bruck", "direct", "hierarchical"),
)
ALGORITHMS_OF = {
    "all_reduce": ALGORITHMS,
    "all_gather": GATHERING,
    "reduce_scatter": GATHERING,
    "all_to_all": ("auto", "direct", "pairwise", "hierarchical"),
}
DTYPES = ("float32", "float64")


class ModelSpec(Strict):
    """A decoder-only transformer of the Llama 3 kind, by its dimensions."""

    dim: Count = Field(description="Width of the residual stream.")
    n_layers: Count = Field(description="Transformer blocks.")
    n_heads: Count = Field(description="Query heads; must divide `dim`.")
    n_kv_heads: Count = Field(description="Key and value heads; must divide `n_heads`.")
    ffn_dim: Count = Field(description="Width of the feed-forward layer.")
    vocab_size: Count = Field(description="Tokens in the vocabulary.")

    def checks(self) -> Iterator[Finding]:
        """Heads have whole sizes and share keys evenly."""
        if self.dim % self.n_heads:
            yield Finding(("n_heads",), str(self.n_heads), f"a divisor of dim ({self.dim})")
        if self.n_heads % self.n_kv_heads:
            yield Finding(("n_kv_heads",), str(self.n_kv_heads), f"a divisor of n_heads ({self.n_heads})")


def _parse_model(value: object) -> str | ModelSpec:
    if isinstance(value, (Mapping, ModelSpec)):
        return ModelSpec.model_validate(value)
    if value not in MODELS:
        raise ValueError(
            f"a model ({did_you_mean(value, MODELS)}) or its dimensions ({', '.join(ModelSpec.file_keys())})"
        )
    return str(value)


_MODEL = Form(
    _parse_model,
    {"anyOf": [{"enum": list(MODELS)}, inlined_schema(ModelSpec)]},
    lambda value: value.to_data() if isinstance(value, ModelSpec) else value,
)


class CollectiveSpec(Strict):
    """One collective over all ranks."""

    collective: Annotated[str, choice("a collective", COLLECTIVES)] = Field(description="Which one.")
    size_bytes: Size = Field(
        alias="size", description="Of a rank's larger array: what it gathers, has to scatter, or to exchange."
    )
    algorithm: Annotated[str, pattern(r"[a-z_]+", "the name of an algorithm, such as auto or ring")] = Field(
        default="auto", description="As `testbed bench` takes them; auto: by size and buildings."
    )
    dscp: Annotated[int, whole(0, 63)] = Field(default=0, description="DSCP of its packets.")


class ExchangeSpec(Strict):
    """Small messages that a pipeline of two stages sends, there and back, between the first and the last building."""

    messages: Count = Field(description="How many microbatches, one after the other.")
    size_bytes: Size = Field(alias="size", description="Of an activation, and of its gradient.")
    compute_s: Duration = Field(
        default=0.0, alias="compute", description="Computing of the second stage between the two."
    )
    dscp: Annotated[int, whole(0, 63)] = Field(default=0, description="DSCP of the packets.")


class WorkloadSpec(Strict):
    """A step: data-parallel training of a model, or collectives and messages by themselves.

    Collectives are all started at the beginning, in their order; messages go on meanwhile.
    """

    model: Annotated[str | ModelSpec | None, _MODEL] = Field(
        default=None, description="A published model, or dimensions."
    )
    collectives: tuple[CollectiveSpec, ...] | None = Field(
        default=None, description="What is done in place of training a model."
    )
    exchange: ExchangeSpec | None = Field(
        default=None, description="Messages of a pipeline, beside `collectives`."
    )
    compute_s: DurationOrNone = Field(
        default=None,
        alias="compute",
        description="Computing before `collectives` start, where there is no model.",
    )
    gradient_dtype: Annotated[str, choice("a type", DTYPES)] = Field(
        default="float32", description="Element type of what is reduced or moved."
    )
    bucket_cap_bytes: Size = Field(
        default=25 * 1024**2,
        alias="bucket_cap",
        description="Gradients are reduced in buckets; one is closed when it reaches this size.",
    )
    first_bucket_cap_bytes: Size = Field(
        default=1024**2,
        alias="first_bucket_cap",
        description="Cap of the first bucket, smaller so that communication starts early.",
    )
    sequence_length: Count = Field(default=8192, description="Tokens in one sequence.")
    local_batch_size: Count = Field(default=1, description="Sequences per rank and step.")
    peak_flops: FlopRateOrNone = Field(
        default=None, description="Peak computing speed of one rank's accelerator; a model needs it."
    )
    flops_utilisation: Share = Field(default=0.4, description="Share of the peak that training reaches.")

    def checks(self) -> Iterator[Finding]:
        """There is something to do, once."""
        if self.model is not None and self.peak_flops is None:
            yield Finding(("peak_flops",), "nothing", "the peak computing speed of one rank's accelerator")
        if self.model is not None and (self.collectives or self.exchange or self.compute_s):
            yield Finding(("model",), "a model beside collectives, exchange or compute", "one of both")
        if self.model is None and not self.collectives and self.exchange is None:
            yield Finding(("model",), "nothing", "a model, or collectives, or exchange")
        for position, entry in enumerate(self.collectives or ()):
            known = ALGORITHMS_OF[entry.collective]
            if entry.algorithm not in known:
                expected = f"an algorithm: {did_you_mean(entry.algorithm, known)}"
                yield Finding(("collectives", position, "algorithm"), show(entry.algorithm), expected)

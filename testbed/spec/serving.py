"""Serving requests on inference nodes, as a scenario says it: who asks how often, which model, on which cards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from testbed.spec.base_model import Finding, StrictModel
from testbed.spec.catalogue import models
from testbed.spec.value_types import (
    ACCELERATOR,
    Count,
    CountOrNone,
    CountOrZero,
    Duration,
    Flag,
    FlopRateOrNone,
    Share,
    ShareOrNone,
    SizeOrNone,
    Timeout,
    choice,
    number,
)

CARD = "l4"
POISSON, BURSTS, EVEN, TRACE = ARRIVALS = ("poisson", "bursts", "even", "trace")
REPLICATE, SPARSE_SHARDED, PIPELINE = PARTITIONS = ("replicate", "sparse_sharded", "pipeline")
HOST, PEER_TO_PEER = GATHERS = ("host", "peer_to_peer")
PRECISIONS = {"bf16": 2, "fp8": 1}
TURNS, RANDOM, TWO_CHOICES, LEAST_OUTSTANDING = DISPATCHES = (
    "turns",
    "random",
    "two_choices",
    "least_outstanding",
)


class BatchingSpec(StrictModel):
    """Requests that go to the cards together: a batch is closed at so many, or so long after its first arrived."""

    size: Count = Field(default=1, description="Requests in a batch, at most.")
    wait_s: Duration = Field(
        default=0.0, alias="wait", description="How long the first of a batch waits for others, at most."
    )

    def checks(self) -> Iterator[Finding]:
        """Batches have time to fill."""
        if self.size > 1 and not self.wait_s:
            yield Finding(("wait",), "0 ms", f"some time in which {self.size} requests may come")


class RecommendationSpec(StrictModel):
    """A recommendation model: embedding tables that a request looks entries up in, and layers that multiply."""

    tables: CountOrZero = Field(default=96, description="Embedding tables.")
    rows: Count = Field(default=500_000, description="Of each table.")
    dim: Count = Field(default=128, description="Elements of a row.")
    pooling: Count = Field(default=4, description="Rows of each table that a sample looks up and adds up.")
    pooling_most: CountOrNone = Field(
        default=None,
        description="Rows that the tensor of a table's indices has room for; default: four times `pooling`.",
    )
    samples: Count = Field(default=16, description="Samples of a request: what is ranked.")
    features: CountOrZero = Field(default=256, description="Dense features of a sample, 4 bytes each.")
    dense_flops: Annotated[float, number(0, 1e15, 2e8)] = Field(
        default=2e8, description="Operations of the dense part for a sample, flop."
    )
    dense_parameters: CountOrZero = Field(default=5_000_000, description="Weights of the dense part.")

    def checks(self) -> Iterator[Finding]:
        """There is room for what is looked up."""
        if self.pooling_most is not None and self.pooling_most < self.pooling:
            yield Finding(("pooling_most",), str(self.pooling_most), f"at least pooling ({self.pooling})")

    @property
    def room(self) -> int:
        """Entries of a table's part in a sample's tensor of indices."""
        return self.pooling_most or 4 * self.pooling


class GenerationSpec(StrictModel):
    """A transformer that reads a prompt (prefill) and writes tokens, one after the other (decode)."""

    model: Annotated[str, choice("a model", tuple(models()))] = Field(
        default="llama3-8b", description="A published model."
    )
    prompt_tokens: Count = Field(default=512, description="Of each request.")
    output_tokens: Count = Field(default=16, description="Of each answer, the first included.")
    decode: tuple[str, ...] | None = Field(
        default=None,
        description="Hosts of the nodes that decode, such as [west1], where they are others than those that prefill: "
        "the cache of keys and values then crosses the network.",
    )
    experts: tuple[str, ...] | None = Field(
        default=None,
        description="Hosts of the nodes that keep the experts, where they are others than those that keep all else: "
        "activations go there and back in every layer.",
    )

    def checks(self) -> Iterator[Finding]:
        """What is apart is there, and one thing is."""
        if self.experts is not None and self.decode is not None:
            yield Finding(("experts",), "experts and decode apart", "one of both")
        if self.experts is not None and not models()[self.model]["dimensions"].get("experts"):
            yield Finding(
                ("experts",), f"experts of {self.model}, which has none", "a model that has experts"
            )


class RetrySpec(StrictModel):
    """What is done about an answer that does not come: its batch goes to somebody else, and the first answer counts.

    Whoever owes one for so long is avoided until it answers after all.
    """

    after_s: Timeout = Field(alias="after", description="How long an answer is waited for.")
    most: Count = Field(
        default=2, description="How often a batch is sent again, at most; then its requests are lost."
    )


class InferenceSpec(StrictModel):
    """Requests that arrive whether or not others are answered, and what answers them."""

    arrivals: Annotated[str, choice("arrivals", ARRIVALS)] = Field(
        default=POISSON,
        description="poisson: independent of each other; bursts: `burst` at once, the bursts like that; even: at equal "
        "distances; trace: as the file `trace` has them.",
    )
    rate_per_s: Annotated[float, number(1e-3, 1e9, 1000)] = Field(
        default=1000.0, alias="rate", description="Requests per second, on average."
    )
    requests: Count = Field(default=2000, description="How many arrive in a step.")
    not_counted: CountOrZero = Field(
        default=0, description="Of those the first, which find empty queues and are left out of figures."
    )
    burst: Count = Field(default=8, description="Requests of a burst.")
    trace: str | None = Field(
        default=None, description="A file with a time of arrival in seconds on each line, in order."
    )
    entry: str | None = Field(
        default=None,
        description="Host where requests arrive and answers go; default: each arrives at the host of its node.",
    )
    serve: tuple[str, ...] | None = Field(
        default=None, description="Hosts of the nodes that serve, such as [east1]; default: all nodes."
    )
    recommendation: RecommendationSpec | None = Field(
        default=None, description="What answers; this or `generation`."
    )
    generation: GenerationSpec | None = Field(
        default=None, description="What answers; this or `recommendation`."
    )
    partition: Annotated[str, choice("a partition", PARTITIONS)] = Field(
        default=REPLICATE,
        description="replicate: each card has all of the model, batches take turns; sparse_sharded: tables are spread "
        "over a node's cards, one of them, in turn, does a batch's dense part; pipeline: each card has a part of "
        "tables and layers, and batches go through all.",
    )
    gather: Annotated[str, choice("a way", GATHERS)] = Field(
        default=PEER_TO_PEER,
        description="What cards have for other cards goes to them directly, or by the host: over its link twice.",
    )
    partial_tensors: Flag = Field(
        default=True,
        description="Whether only the used part of a tensor of indices is sent, with its lengths, not all its room.",
    )
    precision: Annotated[str, choice("a precision", tuple(PRECISIONS))] = Field(
        default="bf16", description="Of weights, rows and activations."
    )
    batching: BatchingSpec = Field(default=BatchingSpec(), description="Requests that go together.")
    accelerator: Annotated[str, ACCELERATOR] = Field(
        default=CARD, description="What a card is: its peak, memory, bandwidth, power."
    )
    card_memory_bytes: SizeOrNone = Field(
        default=None, alias="card_memory", description="Of a card; default: the accelerator's."
    )
    peak_flops: FlopRateOrNone = Field(default=None, description="Of a card; default: the accelerator's.")
    flops_utilisation: ShareOrNone = Field(
        default=None, description="Share of the peak that serving reaches; default: the accelerator's."
    )
    memory_utilisation: Share = Field(
        default=0.5, description="Share of the memory's bandwidth that look-ups and weights reach; ours."
    )
    launch_s: Duration = Field(
        default=20e-6, alias="launch", description="What a card takes for a batch beside that; ours."
    )
    dispatch: Annotated[str, choice("a way", DISPATCHES)] = Field(
        default=TURNS,
        description="Who gets a batch, a card that has all of the model or else a node. turns: one after the other; "
        "random: any; least_outstanding: who owes the fewest answers, as far as is known where requests arrive; "
        "two_choices: the better one of two drawn at random. All but `turns` decide when the batch goes.",
    )
    retry: RetrySpec | None = Field(
        default=None,
        description="What is done about answers that do not come; without, they are waited for. With it, all of "
        "`dispatch` decide when a batch goes.",
    )
    objective_s: Timeout = Field(
        default=0.01,
        alias="slo",
        description="Service level objective: in what time `slo_share` are answered.",
    )
    objective_share: Share = Field(
        default=0.99, alias="slo_share", description="Of requests that have to be answered in time."
    )

    def checks(self) -> Iterator[Finding]:
        """There is one model, which can be spread like that, and requests that count."""
        if (self.recommendation is None) == (self.generation is None):
            got = "nothing" if self.generation is None else "recommendation and generation"
            yield Finding(("recommendation",), got, "one of recommendation and generation")
        if self.generation is not None and self.partition == SPARSE_SHARDED:
            yield Finding(("partition",), self.partition, f"{REPLICATE} or {PIPELINE} with generation")
        if self.generation is not None and self.generation.experts and self.partition != REPLICATE:
            yield Finding(("partition",), self.partition, f"{REPLICATE} with experts apart")
        if (self.arrivals == TRACE) != (self.trace is not None):
            yield Finding(
                ("trace",), self.trace or "nothing", f"a file with arrivals: {TRACE}, and only then"
            )
        if self.not_counted >= self.requests:
            yield Finding(("not_counted",), str(self.not_counted), f"less than requests ({self.requests})")

        if self.on_arrival and self.generation and (self.generation.decode or self.generation.experts):
            got = "retry" if self.dispatch == TURNS else self.dispatch
            yield Finding(("dispatch",), got, f"{TURNS} and no retry where decode or experts are apart")

    @property
    def on_arrival(self) -> bool:
        """Whether who serves is decided when a batch goes, not before."""
        return self.dispatch != TURNS or self.retry is not None

    @property
    def itemsize(self) -> int:
        """Bytes of a weight, an element of a row, an activation."""
        return PRECISIONS[self.precision]

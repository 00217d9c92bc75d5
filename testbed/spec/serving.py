"""Serving requests on inference nodes: arrivals, model, batching, and the cards that serve."""

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
    """Requests batched for the cards. A batch closes when it is full, or some time after its first request arrived."""

    size: Count = 1
    """Maximum number of requests in a batch."""
    wait_s: Duration = 0.0
    """Maximum time that the first request of a batch waits for others."""

    def checks(self) -> Iterator[Finding]:
        """Check that batches have time to fill."""
        if self.size > 1 and not self.wait_s:
            yield Finding(("wait",), "0 ms", f"some time in which {self.size} requests may come")


class RecommendationSpec(StrictModel):
    """A recommendation model: embedding tables in which requests look up rows, and dense layers."""

    tables: CountOrZero = 96
    """Embedding tables."""
    rows: Count = 500_000
    """Rows of each table."""
    dim: Count = 128
    """Elements per row."""
    pooling: Count = 4
    """Rows of each table that a sample looks up and sums."""
    pooling_most: CountOrNone = None
    """Capacity of the index tensor, in rows per table; default: four times `pooling`."""
    samples: Count = 16
    """Samples per request: the candidates to rank."""
    features: CountOrZero = 256
    """Dense features per sample, 4 bytes each."""
    dense_flops: Annotated[float, number(0, 1e15, 2e8)] = 2e8
    """Operations of the dense part per sample, flop."""
    dense_parameters: CountOrZero = 5_000_000
    """Weights of the dense part."""

    def checks(self) -> Iterator[Finding]:
        """Check that the index tensor has room for the look-ups."""
        if self.pooling_most is not None and self.pooling_most < self.pooling:
            yield Finding(("pooling_most",), str(self.pooling_most), f"at least pooling ({self.pooling})")

    @property
    def room(self) -> int:
        """Capacity of a table's part of a sample's index tensor."""
        return self.pooling_most or 4 * self.pooling


class GenerationSpec(StrictModel):
    """A transformer that reads a prompt (prefill) and generates tokens one at a time (decode)."""

    model: Annotated[str, choice("a model", tuple(models()))] = "llama3-8b"
    """A published model."""
    prompt_tokens: Count = 512
    """Tokens in each prompt."""
    output_tokens: Count = 16
    """Tokens in each answer, including the first."""
    decode: tuple[str, ...] | None = None
    """Hosts of the nodes that decode, such as [west1], if separate from those that prefill: the KV cache then crosses
    the network.
    """
    experts: tuple[str, ...] | None = None
    """Hosts of the nodes that hold the experts, if separate from those that hold the rest: activations then cross the
    network twice per layer.
    """

    def checks(self) -> Iterator[Finding]:
        """Check that only one part is disaggregated, and that the model has it."""
        if self.experts is not None and self.decode is not None:
            yield Finding(("experts",), "experts with decode", "only one of the two")
        if self.experts is not None and not models()[self.model]["dimensions"].get("experts"):
            yield Finding(("experts",), f"experts with {self.model}, which has none", "a model with experts")


class RetrySpec(StrictModel):
    """Retries of unanswered batches: a batch is sent to another card or node, and the first answer counts.

    A card or node that has owed an answer for `after` gets no new batches until it answers.
    """

    after_s: Timeout
    """How long to wait for an answer before retrying."""
    most: Count = 2
    """Maximum number of retries of a batch; after that its requests are lost."""


class InferenceSpec(StrictModel):
    """Open-loop requests, which arrive whether or not others are answered, and the nodes that serve them."""

    arrivals: Annotated[str, choice("arrivals", ARRIVALS)] = POISSON
    """poisson: independent arrivals. bursts: `burst` requests at once, bursts being independent. even: equal intervals.
    trace: times from the file `trace`.
    """
    rate_per_s: Annotated[float, number(1e-3, 1e9, 1000)] = Field(default=1000.0, alias="rate")
    """Requests per second, on average."""
    requests: Count = 2000
    """Number of requests in a step."""
    not_counted: CountOrZero = 0
    """Number of requests at the start to exclude from results, because they find empty queues."""
    burst: Count = 8
    """Requests per burst."""
    trace: str | None = None
    """A file with one arrival time in seconds per line, in order."""
    entry: str | None = None
    """Host where requests arrive and answers leave; default: the host of the node that serves the request."""
    serve: tuple[str, ...] | None = None
    """Hosts of the nodes that serve, such as [east1]; default: all nodes."""
    recommendation: RecommendationSpec | None = None
    """A recommendation model to serve; either this or `generation`."""
    generation: GenerationSpec | None = None
    """A language model to serve; either this or `recommendation`."""
    partition: Annotated[str, choice("a partition", PARTITIONS)] = REPLICATE
    """replicate: each card holds the whole model and serves whole batches. sparse_sharded: tables are spread over a
    node's cards, which take turns with the dense part of a batch. pipeline: each card holds a part of the tables and
    layers, and batches pass through all.
    """
    gather: Annotated[str, choice("a mode", GATHERS)] = PEER_TO_PEER
    """How cards send to other cards. peer_to_peer: directly. host: through the host, over its link twice."""
    partial_tensors: Flag = True
    """Send only the used part of an index tensor, with its lengths, rather than its whole capacity."""
    precision: Annotated[str, choice("a precision", tuple(PRECISIONS))] = "bf16"
    """Data type of weights, rows and activations."""
    batching: BatchingSpec = BatchingSpec()
    """How requests are batched."""
    accelerator: Annotated[str, ACCELERATOR] = CARD
    """Type of card. It determines peak, memory, bandwidth and power."""
    card_memory_bytes: SizeOrNone = None
    """Memory of a card; default: the accelerator's."""
    peak_flops: FlopRateOrNone = None
    """Peak compute speed of a card; default: the accelerator's."""
    flops_utilisation: ShareOrNone = None
    """Share of peak compute that serving reaches; default: the accelerator's."""
    memory_utilisation: Share = 0.5
    """Share of memory bandwidth that look-ups and weights reach. The default is our estimate."""
    launch_s: Duration = 20e-6
    """Fixed time of a card per batch, in addition to compute and memory. The default is our estimate."""
    dispatch: Annotated[str, choice("a dispatch policy", DISPATCHES)] = TURNS
    """Which server gets a batch: a card that holds the whole model, or else a node. turns: round robin. random: a
    random one. least_outstanding: the one that owes the fewest answers, as known where requests arrive. two_choices:
    the better of two random ones. All but `turns` choose at the moment the batch is sent.
    """
    retry: RetrySpec | None = None
    """Retries of unanswered batches; default: wait for the answer. With retries, every `dispatch` chooses at the moment
    a batch is sent.
    """
    objective_s: Timeout = Field(default=0.01, alias="slo")
    """Service level objective: the time within which `slo_share` of requests are answered."""
    objective_share: Share = Field(default=0.99, alias="slo_share")
    """Share of requests to answer within `slo`."""

    def checks(self) -> Iterator[Finding]:
        """Check that there is one model, that the partition fits it, and that some requests count."""
        if (self.recommendation is None) == (self.generation is None):
            got = "nothing" if self.generation is None else "recommendation and generation"
            yield Finding(("recommendation",), got, "one of recommendation and generation")
        if self.generation is not None and self.partition == SPARSE_SHARDED:
            yield Finding(("partition",), self.partition, f"{REPLICATE} or {PIPELINE} with generation")
        if self.generation is not None and self.generation.experts and self.partition != REPLICATE:
            yield Finding(("partition",), self.partition, f"{REPLICATE} with experts on other nodes")
        if (self.arrivals == TRACE) != (self.trace is not None):
            yield Finding(
                ("trace",), self.trace or "nothing", f"a file with arrivals: {TRACE}, and only then"
            )
        if self.not_counted >= self.requests:
            yield Finding(("not_counted",), str(self.not_counted), f"less than requests ({self.requests})")

        if self.on_arrival and self.generation and (self.generation.decode or self.generation.experts):
            got = "retry" if self.dispatch == TURNS else self.dispatch
            yield Finding(("dispatch",), got, f"{TURNS} and no retry with decode or experts")

    @property
    def on_arrival(self) -> bool:
        """Whether the server of a batch is chosen when the batch is sent, not in advance."""
        return self.dispatch != TURNS or self.retry is not None

    @property
    def itemsize(self) -> int:
        """Bytes per weight, row element or activation."""
        return PRECISIONS[self.precision]

"""What `summary.json` says of served requests and decoded tokens."""

from __future__ import annotations

from pydantic import Field

from testbed.measure.results.base_model import ResultModel


class Latencies(ResultModel):
    """Of all requests that count, seconds; shares by nearest rank."""

    mean: float
    p50: float
    p99: float
    p999: float
    max: float


class RequestParts(ResultModel):
    """Where a request's time went, seconds: until its batch was closed, for busy cards, on links, in cards."""

    batching_s: float
    queue_s: float
    transfer_s: float
    compute_s: float


class ServedLink(ResultModel):
    """One direction of a card's or host's lanes, of a node's network card, or between two buildings; per step."""

    name: str
    rate_bps: float
    bytes_expected: int = Field(description="Payload, by the plan.")
    bytes_observed: int = Field(description="As ranks sent it.")
    utilisation: float = Field(description="Of the rate, by payload, over the step.")


class ServedOutage(ResultModel):
    """A node, or a card, that owed an answer for too long. Latencies by when requests arrived; None of no request.

    during: from as long before it was noticed as answers are waited for, until then.
    """

    name: str
    noticed_s: float = Field(
        description="When the first answer had been owed for too long, from the step's start."
    )
    back_s: float | None = Field(description="When it answered after all.")
    before: Latencies | None
    during: Latencies | None
    after: Latencies | None


class Serving(ResultModel):
    """Requests of all measured steps, which arrived whether or not others were answered.

    Latency counts from the arrival that was drawn.
    """

    requests: int = Field(description="That count.")
    offered_per_s: float = Field(description="As they arrived.")
    answered_per_s: float = Field(description="From the first arrival to the last answer.")
    latency: Latencies
    first_token: Latencies | None = Field(default=None, description="From arrival to the first token.")
    per_token: Latencies | None = Field(
        default=None, description="From one token to the next, of each request."
    )
    predicted: Latencies | None = Field(description="The latency by the model, where it says something.")
    objective_s: float
    objective_share: float
    within: float = Field(description="Share of requests that were answered within the objective.")
    lost: int = Field(default=0, description="Requests that nobody answered.")
    sent_again: int = Field(
        default=0, description="Requests that were sent once more, or more often, as no answer came."
    )
    outages: tuple[ServedOutage, ...] = Field(
        default=(), description="In the order in which they were noticed."
    )
    mean_parts: RequestParts
    p99_parts: RequestParts = Field(description="Of the request at the 99th percentile.")
    cdf_s: tuple[float, ...] = Field(description="Latencies at 0, 1, ... 99 %, then at 99.5, 99.9 and 100 %.")
    busiest_card: float = Field(description="Share of the step that it computed.")
    links: tuple[ServedLink, ...]
    capacity_per_s: float = Field(
        description="Requests per second at which the busiest card or link has work all the time."
    )
    limited_by: str = Field(description="Which one that is.")
    energy_j: float = Field(
        description="Of a request that was answered: all cards at their data sheet's power all the time."
    )
    cost_usd: float = Field(
        description="Of a million requests that were answered: all cards by the hour, in US dollars."
    )


class TokenTimes(ResultModel):
    """From one token's last combine to the next one's, on the last rank; seconds, shares by nearest rank."""

    mean: float
    p50: float
    p99: float
    max: float


class TokenParts(ResultModel):
    """Where a token's time went, seconds, in the mean over tokens and ranks.

    gathered_s: counts and experts' numbers gathered by all. read_s: counts read by the host. posted_s: buffers that are
    not chained. dispatch_s, combine_s: rows there and back, with what is told before them. put_s: of these two, a
    rank's rows at its card's rate.
    """

    compute_s: float
    gathered_s: float
    read_s: float
    posted_s: float
    dispatch_s: float
    combine_s: float
    put_s: float


class DecodedSteps(ResultModel):
    """Each token of a shard's steps, seconds; predicted_s: one step's by the model, where it says something."""

    times_s: tuple[float, ...]
    predicted_s: tuple[float, ...] | None
    parts: TokenParts
    cached: bool


class Decoding(ResultModel):
    """Tokens of all measured steps; each rank decodes as many sequences as the scenario's `batch`."""

    tokens: int = Field(description="That count.")
    token_s: TokenTimes
    predicted: TokenTimes | None = Field(description="By the model, where it says something.")
    parts: TokenParts
    cached: bool = Field(description="Whether nothing but rows travelled: see workload option `handles`.")

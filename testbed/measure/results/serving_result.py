"""Typed models of the figures of served requests and decoded tokens in `summary.json`."""

from __future__ import annotations

from pydantic import Field

from testbed.measure.result_model import ResultModel


class Latencies(ResultModel):
    """Latency distribution of all counted requests, in seconds; percentiles use the nearest rank."""

    mean: float
    p50: float
    p99: float
    p999: float
    max: float


class RequestParts(ResultModel):
    """A request's time by activity, in seconds."""

    batching_s: float = Field(description="Waiting for its batch to be closed.")
    queue_s: float = Field(description="Waiting for busy accelerators.")
    transfer_s: float = Field(description="On links.")
    compute_s: float = Field(description="On accelerators.")


class ServedLink(ResultModel):
    """One direction of an accelerator's or host's lanes, of a node's NIC, or between two buildings, per step."""

    name: str
    rate_bps: float
    bytes_expected: int = Field(description="Payload according to the plan.")
    bytes_observed: int = Field(description="Payload that ranks sent.")
    utilisation: float = Field(description="Payload as a share of the rate, over the step.")


class ServedOutage(ResultModel):
    """A node or accelerator that did not answer within the timeout.

    Latencies are grouped by the requests' arrival time; null if none arrived in a period.
    """

    name: str
    noticed_s: float = Field(description="When the first answer timed out, from the step's start.")
    back_s: float | None = Field(description="When it answered again.")
    before: Latencies | None
    during: Latencies | None = Field(description="From one timeout before `noticed_s` until `noticed_s`.")
    after: Latencies | None


class Serving(ResultModel):
    """Served requests of all measured steps.

    Arrivals are open-loop: they do not wait for answers. Latency counts from the randomly drawn arrival time.
    """

    requests: int = Field(description="Requests that are counted.")
    offered_per_s: float = Field(description="Arrival rate.")
    answered_per_s: float = Field(description="Answer rate, from the first arrival to the last answer.")
    latency: Latencies
    first_token: Latencies | None = Field(
        default=None, description="Time to first token, from the request's arrival."
    )
    per_token: Latencies | None = Field(default=None, description="Time between the tokens of a request.")
    predicted: Latencies | None = Field(
        description="Latency by the model; null where it makes no prediction."
    )
    objective_s: float
    objective_share: float
    within: float = Field(description="Share of requests answered within the objective.")
    lost: int = Field(default=0, description="Requests that were never answered.")
    sent_again: int = Field(default=0, description="Requests that were resent at least once after a timeout.")
    outages: tuple[ServedOutage, ...] = Field(default=(), description="In the order of `noticed_s`.")
    mean_parts: RequestParts
    p99_parts: RequestParts = Field(description="Parts of the request at the 99th percentile.")
    cdf_s: tuple[float, ...] = Field(description="Latencies at 0, 1, ... 99 %, then at 99.5, 99.9 and 100 %.")
    busiest_card: float = Field(description="Share of the step for which the busiest accelerator computed.")
    links: tuple[ServedLink, ...]
    capacity_per_s: float = Field(
        description="Requests per second at which the busiest accelerator or link is saturated."
    )
    limited_by: str = Field(description="The accelerator or link that saturates first.")
    energy_j: float = Field(
        description="Energy per answered request, with all accelerators at their data-sheet power all the time."
    )
    cost_usd: float = Field(
        description="Cost in US dollars per million answered requests, with all accelerators paid by the hour."
    )


class TokenTimes(ResultModel):
    """Time per token, in seconds: from the previous token's last combine to its own, on the last rank to finish.

    Percentiles use the nearest rank.
    """

    mean: float
    p50: float
    p99: float
    max: float


class TokenParts(ResultModel):
    """A token's time by activity, in seconds: mean over tokens and ranks."""

    compute_s: float
    gathered_s: float = Field(description="All-gather of row counts and expert indices.")
    read_s: float = Field(description="Host reads of the counts.")
    posted_s: float = Field(description="Posting of buffers that are not chained.")
    dispatch_s: float = Field(description="Rows to the experts, with the metadata sent before them.")
    combine_s: float = Field(description="Rows back from the experts, with the metadata sent before them.")
    put_s: float = Field(
        description="Part of `dispatch_s` and `combine_s`: a rank's rows at the rate of its NIC."
    )


class DecodedSteps(ResultModel):
    """Token times of a shard's steps, in seconds; `predicted_s` has the model's times for one step, if any."""

    times_s: tuple[float, ...]
    predicted_s: tuple[float, ...] | None
    parts: TokenParts
    cached: bool


class Decoding(ResultModel):
    """Decoded tokens of all measured steps; each rank decodes the scenario's `batch` of sequences."""

    tokens: int = Field(description="Tokens that are counted.")
    token_s: TokenTimes
    predicted: TokenTimes | None = Field(description="By the model; null where it makes no prediction.")
    parts: TokenParts
    cached: bool = Field(description="Whether only rows were sent: see workload option `handles`.")

"""What `summary.json` says of requests that were served."""

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

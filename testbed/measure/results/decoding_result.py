"""What `summary.json` says of tokens that were decoded."""

from __future__ import annotations

from pydantic import Field

from testbed.measure.results.base_model import ResultModel


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

"""Figures of served requests and decoded tokens, measured and predicted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from testbed.measure.results.serving_result import DecodedSteps, TokenParts, TokenTimes
from testbed.measure.results.shards import ShardVariant
from testbed.measure.results.summary import StepResult, undisturbed_steps
from testbed.measure.results.training_summary import step_spans
from testbed.prediction.dry_run import DryRun
from testbed.prediction.request_metrics import (
    latencies,
    request_times,
    served_step,
    serving_figures,
)
from testbed.prediction.timeline import Timeline
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.workload.job.job import Job
from testbed.workload.job.kinds.decode import CACHED
from testbed.workload.plan import JobPlan


def shard_latencies(
    job: Job,
    algorithm: str,
    steps: Sequence[StepResult],
    samples: Sequence[Mapping[str, Any]],
    predicted: Timeline | None,
) -> dict[str, Any]:
    """Return a shard's records of individual requests or tokens for one variant; empty if steps have neither."""
    serving = job.workload.serving
    if serving is None:
        decoded = decoded_steps(job, steps, samples, predicted)
        return {} if decoded is None else {"decoded": decoded}
    latencies_s = None
    if predicted is not None:
        known = job.as_executed(predicted.carried).workload.serving
        assert known is not None
        latencies_s = tuple(one.latency_s for one in request_times(known, predicted.spans, job.scale))
    spans = (step_spans(samples, step, serving.plan) for step in steps)
    served = [
        served_step(job, algorithm, own, step.sent_bytes, latencies_s)
        for own, step in zip(spans, steps, strict=True)
    ]
    return {"served": served}


def variant_latencies(scenario: Scenario, shards: Sequence[ShardVariant]) -> dict[str, Any]:
    """Return a variant's figures of requests or tokens over the measured steps of all its shards."""
    inference, served = scenario.workload.inference, [step for one in shards for step in one.served]
    decoded = [one.decoded for one in shards if one.decoded is not None]
    return {
        "serving": serving_figures(inference, served) if served and inference is not None else None,
        "decoding": decoding_figures(decoded) if decoded else None,
    }


def predicted_latencies(found: DryRun, scale: Scale) -> dict[str, Any]:
    """Return the predicted latencies of individual requests or tokens, in real seconds; empty if steps have neither."""
    workload, spans = found.workload, found.timeline.spans
    if workload.serving is not None:
        times = request_times(workload.serving, spans, scale)
        return {"latency": latencies([one.latency_s for one in times])}
    if tokens := find_token_ends(workload.plan):
        return {"token": quantiles([scale.real_s(own) for own in token_times(tokens, spans)])}
    return {}


Spans = Sequence[Sequence[tuple[float, float]]]
_TOKEN = re.compile(r"of token (\d+), layer \d+")
_PARTS = {
    "compute": "compute_s",
    "metadata": "gathered_s",
    "synchronisation": "read_s",
    "posting": "posted_s",
    "dispatch": "dispatch_s",
    "combine": "combine_s",
}


def decoded_steps(
    job: Job, steps: Sequence[StepResult], samples: Sequence[Mapping[str, Any]], predicted: Timeline | None
) -> DecodedSteps | None:
    """Return the token times of all undisturbed steps, or None if the job decodes no tokens."""
    plan = job.workload.plan
    tokens = find_token_ends(plan)
    if not tokens:
        return None
    whole = [step_spans(samples, step, plan) for step in undisturbed_steps(steps)]
    real_s = job.scale.real_s
    times = [real_s(seconds) for spans in whole for seconds in token_times(tokens, spans)]
    predicted_s = None
    if predicted is not None:
        predicted_s = tuple(real_s(seconds) for seconds in token_times(tokens, predicted.spans))
    rank_tokens = len(times) * len(plan.ranks)
    parts = dict.fromkeys(_PARTS.values(), 0.0)
    for spans in whole:
        for operations, own in zip(plan.ranks, spans, strict=True):
            for operation, (begin_s, end_s) in zip(operations, own, strict=True):
                parts[_PARTS[operation.kind]] += real_s(end_s - begin_s) / rank_tokens
    sent = [sum(step.sent_bytes.values()) for step in undisturbed_steps(steps)]
    slowest_bps = min(host.nic.rate_bps for host in job.hosts)
    parts["put_s"] = real_s(sum(sent) * 8 / slowest_bps / rank_tokens)
    return DecodedSteps(
        times_s=tuple(times),
        predicted_s=predicted_s,
        parts=TokenParts(**parts),
        cached=(job.scenario.workload.options or {}).get("handles") == CACHED,
    )


def decoding_figures(shards: Sequence[DecodedSteps]) -> dict[str, Any]:
    """Return the fields of `Decoding` for all tokens of a variant."""
    times = [seconds for one in shards for seconds in one.times_s]
    predicted = [seconds for one in shards for seconds in one.predicted_s or ()]
    parts = {
        name: sum(getattr(one.parts, name) * len(one.times_s) for one in shards) / len(times)
        for name in TokenParts.model_fields
    }
    return {
        "tokens": len(times),
        "token_s": quantiles(times),
        "predicted": quantiles(predicted) if predicted else None,
        "parts": parts,
        "cached": shards[0].cached,
    }


def find_token_ends(plan: JobPlan) -> Mapping[int, int]:
    """Return the index of each token's last operation, the same on all ranks; empty if the plan decodes no tokens."""
    found: dict[int, int] = {}
    for index, operation in enumerate(plan.ranks[0]):
        match = _TOKEN.search(operation.name)
        if match and operation.kind == "combine":
            found[int(match[1])] = index
    return found


def token_times(tokens: Mapping[int, int], spans: Spans) -> list[float]:
    """Return the time of each token of one step.

    A token's time runs from the end of the previous token (or the start of the step) until the last rank has received
    its rows back.
    """
    ends = [max(rank[index][1] for rank in spans) for _, index in sorted(tokens.items())]
    return [end - before for before, end in pairwise([0.0, *ends])]


def quantiles(times: Sequence[float]) -> dict[str, float]:
    """Return the fields of `TokenTimes`."""
    return {name: value for name, value in latencies(times).items() if name in TokenTimes.model_fields}

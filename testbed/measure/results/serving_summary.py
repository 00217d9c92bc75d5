"""Computes the figures of served requests and decoded tokens, measured and predicted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from testbed.measure.results.serving_result import DecodedSteps, TokenParts
from testbed.measure.results.shards import ShardVariant
from testbed.measure.results.summary import StepResult, undisturbed
from testbed.measure.results.training_summary import spans_of
from testbed.prediction.dry_run import DryRun
from testbed.prediction.request_metrics import (
    ServedStep,
    at_share,
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
    """Return what a shard says of single requests, or tokens, of one variant; nothing where a step has neither."""
    if job.workload.serving is not None:
        return {"served": served_steps(job, algorithm, steps, samples, predicted)}
    decoded = decoded_steps(job, steps, samples, predicted)
    return {} if decoded is None else {"decoded": decoded}


def variant_latencies(scenario: Scenario, shards: Sequence[ShardVariant]) -> dict[str, Any]:
    """Return a variant's figures of requests, or tokens, over the measured steps of all its shards."""
    inference, served = scenario.workload.inference, [step for one in shards for step in one.served]
    decoded = [one.decoded for one in shards if one.decoded is not None]
    return {
        "serving": serving_figures(inference, served) if served and inference is not None else None,
        "decoding": decoding_figures(decoded) if decoded else None,
    }


def predicted_latencies(found: DryRun, scale: Scale) -> dict[str, Any]:
    """What the model says of single requests, or tokens, real seconds; nothing where a step has neither."""
    workload, spans = found.workload, found.timeline.spans
    if workload.serving is not None:
        times = request_times(workload.serving, spans, scale)
        return {"latency": latencies([one.latency_s for one in times])}
    if tokens := tokens_of(workload.plan):
        return {"token": quantiles([scale.real_s(own) for own in token_times(tokens, spans)])}
    return {}


def served_steps(
    job: Job,
    algorithm: str,
    steps: Sequence[StepResult],
    samples: Sequence[Mapping[str, Any]],
    predicted: Timeline | None,
) -> list[ServedStep]:
    """Return what each measured step came to, of a job that serves requests."""
    serving = job.workload.serving
    assert serving is not None
    said = None
    if predicted is not None:
        known = job.as_executed(predicted.carried).workload.serving
        assert known is not None
        said = tuple(one.latency_s for one in request_times(known, predicted.spans, job.scale))
    return [
        served_step(job, algorithm, spans_of(samples, step, serving.plan), step.sent_bytes, said)
        for step in steps
    ]


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
    """Return what measured steps decoded; None of a job that decodes nothing."""
    plan = job.workload.plan
    tokens = tokens_of(plan)
    if not tokens:
        return None
    whole = [spans_of(samples, step, plan) for step in undisturbed(steps)]
    real_s = job.scale.real_s
    times = [real_s(seconds) for spans in whole for seconds in token_times(tokens, spans)]
    said = None if predicted is None else [real_s(own) for own in token_times(tokens, predicted.spans)]
    each = len(times) * len(plan.ranks)
    parts = dict.fromkeys(_PARTS.values(), 0.0)
    for spans in whole:
        for operations, own in zip(plan.ranks, spans, strict=True):
            for operation, (begin_s, end_s) in zip(operations, own, strict=True):
                parts[_PARTS[operation.kind]] += real_s(end_s - begin_s) / each
    sent = [sum(step.sent_bytes.values()) for step in undisturbed(steps)]
    slowest_bps = min(host.nic.rate_bps for host in job.hosts)
    parts["put_s"] = real_s(sum(sent) * 8 / slowest_bps / each)
    return DecodedSteps(
        times_s=tuple(times),
        predicted_s=None if said is None else tuple(said),
        parts=TokenParts(**parts),
        cached=(job.scenario.workload.options or {}).get("handles") == CACHED,
    )


def decoding_figures(shards: Sequence[DecodedSteps]) -> dict[str, Any]:
    """Return the figures of all tokens of a variant, as results' `Decoding` has them."""
    times = [seconds for one in shards for seconds in one.times_s]
    said = [seconds for one in shards for seconds in one.predicted_s or ()]
    parts = {
        name: sum(getattr(one.parts, name) * len(one.times_s) for one in shards) / len(times)
        for name in TokenParts.model_fields
    }
    return {
        "tokens": len(times),
        "token_s": quantiles(times),
        "predicted": quantiles(said) if said else None,
        "parts": parts,
        "cached": shards[0].cached,
    }


def tokens_of(plan: JobPlan) -> Mapping[int, int]:
    """Of the operations that all ranks have alike: the last one of each token's; empty where there are none."""
    found: dict[int, int] = {}
    for index, operation in enumerate(plan.ranks[0]):
        match = _TOKEN.search(operation.name)
        if match and operation.kind == "combine":
            found[int(match[1])] = index
    return found


def token_times(tokens: Mapping[int, int], spans: Spans) -> list[float]:
    """Of one step, each token's: from the one before, or the step's begin, until the last rank has its rows back."""
    ends = [max(rank[index][1] for rank in spans) for _, index in sorted(tokens.items())]
    return [end - before for before, end in pairwise([0.0, *ends])]


def quantiles(times: Sequence[float]) -> dict[str, float]:
    """As results' `TokenTimes` has them."""
    ordered = sorted(times)
    shares = {"p50": at_share(ordered, 0.5), "p99": at_share(ordered, 0.99), "max": ordered[-1]}
    return {"mean": sum(ordered) / len(ordered), **shares}

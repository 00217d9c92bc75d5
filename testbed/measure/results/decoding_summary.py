"""What a summary says of decoding: tokens' times, where they went, and what the model says of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from testbed.measure.results.decoding_result import DecodedSteps, TokenParts
from testbed.measure.results.summary import StepResult, undisturbed
from testbed.measure.results.training_summary import spans_of
from testbed.prediction.latency import at_share
from testbed.prediction.timeline import Timeline
from testbed.workload.job.job import Job
from testbed.workload.job.kinds.decode import CACHED
from testbed.workload.plan import JobPlan

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

"""What a summary says of requests and tokens: figures of measured steps, and the model's latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from testbed.measure.results.decoding_summary import (
    decoded_steps,
    decoding_figures,
    quantiles,
    token_times,
    tokens_of,
)
from testbed.measure.results.shards import ShardVariant
from testbed.measure.results.summary import StepResult
from testbed.measure.results.training_summary import spans_of
from testbed.prediction.dry_run import DryRun
from testbed.prediction.latency import request_times
from testbed.prediction.request_metrics import ServedStep, latencies, served_step, serving_figures
from testbed.prediction.timeline import Timeline
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.workload.job.job import Job


def answers_summary(
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


def answers_of(scenario: Scenario, shards: Sequence[ShardVariant]) -> dict[str, Any]:
    """Return a variant's figures of requests, or tokens, over the measured steps of all its shards."""
    inference, served = scenario.workload.inference, [step for one in shards for step in one.served]
    decoded = [one.decoded for one in shards if one.decoded is not None]
    return {
        "serving": serving_figures(inference, served) if served and inference is not None else None,
        "decoding": decoding_figures(decoded) if decoded else None,
    }


def answers_predicted(found: DryRun, scale: Scale) -> dict[str, Any]:
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
        known = job.as_carried(predicted.carried).workload.serving
        assert known is not None
        said = tuple(one.latency_s for one in request_times(known, predicted.spans, job.scale))
    return [
        served_step(job, algorithm, spans_of(samples, step, serving.plan), step.sent_bytes, said)
        for step in steps
    ]

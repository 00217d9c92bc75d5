"""What a summary says of requests and tokens: figures of measured steps, and the model's latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from testbed.job.job import Job
from testbed.model import Timeline
from testbed.model.dry_run import DryRun
from testbed.model.latency import request_times
from testbed.model.requests import latencies, serving_figures
from testbed.results.decoding_summary import decoding_summary, quantiles, token_times, tokens_of
from testbed.results.summary import StepResult, middle_step
from testbed.results.training_summary import spans_of
from testbed.scale import Scale


def answers_summary(
    job: Job,
    algorithm: str,
    steps: Sequence[StepResult],
    samples: Sequence[Mapping[str, Any]],
    predicted: Timeline | None,
) -> dict[str, Any]:
    """Of single requests, or tokens, in a variant's entry; nothing where a step has neither."""
    if job.workload.serving is not None:
        return {"serving": serving_summary(job, algorithm, steps, samples, predicted)}
    decoding = decoding_summary(job, steps, samples, predicted)
    return {} if decoding is None else {"decoding": decoding}


def answers_predicted(found: DryRun, scale: Scale) -> dict[str, Any]:
    """What the model says of single requests, or tokens, real seconds; nothing where a step has neither."""
    workload, spans = found.workload, found.timeline.spans
    if workload.serving is not None:
        times = request_times(workload.serving, spans, scale)
        return {"latency": latencies([one.latency_s for one in times])}
    if tokens := tokens_of(workload.plan):
        return {"token": quantiles([scale.real_s(own) for own in token_times(tokens, spans)])}
    return {}


def serving_summary(
    job: Job,
    algorithm: str,
    steps: Sequence[StepResult],
    samples: Sequence[Mapping[str, Any]],
    predicted: Timeline | None,
) -> dict[str, Any]:
    """As results' `Serving` has it, of the step of median duration; of a job that serves requests."""
    serving = job.workload.serving
    assert serving is not None
    step = middle_step(steps)
    spans = spans_of(samples, step, serving.plan)
    said = None
    if predicted is not None:
        known = job.as_carried(predicted.carried).workload.serving
        assert known is not None
        said = request_times(known, predicted.spans, job.scale)
    return {
        **serving_figures(job, algorithm, spans, step.sent_bytes),
        "predicted": said and latencies([one.latency_s for one in said]),
    }

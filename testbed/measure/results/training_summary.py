"""Training figures of `summary.json`: a step's time split, predicted and measured, and bytes by tier."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from testbed.comm.collectives import between_groups
from testbed.measure.results.summary import StepResult, compare_prediction, middle_step, undisturbed_steps
from testbed.prediction.dry_run import DryRun
from testbed.prediction.timeline import (
    Spans,
    TimeBreakdown,
    Timeline,
    break_down_step,
    find_critical_path,
    peak_activation_bytes,
)
from testbed.spec.scale import Scale
from testbed.workload.job.endpoint_resolution import Pairs, sum_pairs
from testbed.workload.job.job import Workload
from testbed.workload.job.training import Training
from testbed.workload.plan import JobPlan
from testbed.workload.schedules import SearchResult

TIER_TEXTS = {"wan": "between buildings", "building": "inside buildings", "rank": "within ranks"}
"""Description of each tier in which ranks wait for communication."""


def step_spans(
    samples: Sequence[Mapping[str, Any]], step: StepResult, plan: JobPlan
) -> list[list[tuple[float, float]]]:
    """Return the start and end of each rank's operations in one step, in emulated seconds from the step's start."""
    found = [[(0.0, 0.0)] * len(own) for own in plan.ranks]
    for sample in samples:
        if sample["step"] == step.index and sample["operation"] != "step":
            span = sample["start_s"] - step.start_s, sample["end_s"] - step.start_s
            found[sample["rank"]][sample["index"]] = span
    return found


def training_summary(
    workload: Workload,
    algorithm: str,
    steps: Sequence[StepResult],
    samples: Sequence[Mapping[str, Any]],
    predicted: Timeline | None,
    scale: Scale,
) -> dict[str, Any]:
    """Return the fields of `Training` for one variant, in real units; times are those of the median step.

    `predicted` is None if the model does not cover the scenario.
    """
    median = middle_step(steps)
    spans = step_spans(samples, median, workload.plan)
    prediction = None
    if predicted is not None:
        measured_s = scale.real_s(statistics.median(step.step_time_s for step in steps))
        prediction = {
            **compare_prediction(scale.real_s(predicted.step_time_s), measured_s),
            **_split(
                break_down_step(predicted.plan or workload.plan, predicted.spans, workload.buildings), scale
            ),
        }
    return {
        **_schedule(workload.training, spans),
        "predicted": prediction,
        "measured": _split(break_down_step(workload.plan, spans, workload.buildings), scale),
        "critical_path": _critical_path(workload.plan, spans, workload.buildings, scale),
        "bytes": _bytes(workload, algorithm, steps, scale),
        "median_step": median.index,
    }


def _schedule(training: Training | None, spans: Spans) -> dict[str, Any]:
    """Return the fields that only steps with `parallelism` have: schedule, mesh, activation memory."""
    if training is None:
        return {}
    searched = training.schedule.searched
    return {
        "schedule": training.schedule.name,
        **({} if searched is None else {"searched": _search(searched)}),
        "microbatches": training.schedule.microbatches,
        "stages": len(training.stages),
        "training_steps": training.training_steps,
        "mesh": {name: count for name, count in training.mesh.outside.items() if count > 1},
        "layers_per_stage": _if_different(training.layers),
        "microbatches_per_replica": _if_different(training.microbatches),
        "not_emulated": training.mesh.within_ranks,
        "peak_activation_bytes": [round(peak) for peak in peak_activation_bytes(training.plan, spans)],
    }


def _if_different(counts: Sequence[int]) -> list[int]:
    return list(counts) if len(set(counts)) > 1 else []


def _search(found: SearchResult) -> dict[str, Any]:
    """Return a schedule search's result: times of the pipeline alone, without later work, in real seconds."""
    bounds_s = {str(chunks): bound_s for chunks, bound_s in found.bounds_s.items()}
    return {"step_s": found.step_s, "bounds_s": bounds_s, "known": dict(found.known)}


def _split(split: TimeBreakdown, scale: Scale) -> dict[str, Any]:
    return {
        "compute_s": scale.real_s(split.compute_s),
        "bubble_s": scale.real_s(split.bubble_s),
        "exposed": [
            {"kind": kind, "tier": tier, "seconds": scale.real_s(seconds)}
            for (kind, tier), seconds in split.exposed_s.items()
        ],
    }


def _critical_path(
    plan: JobPlan, spans: Spans, buildings: Sequence[int], scale: Scale
) -> list[dict[str, Any]]:
    """Return the critical path's time and number of operations by kind of operation, longest first."""
    found: dict[str, list[float]] = {}
    for link in find_critical_path(plan, spans, buildings):
        found.setdefault(link.kind, []).append(link.end_s - link.start_s)
    return [
        {"kind": kind, "seconds": scale.real_s(sum(times)), "links": len(times)}
        for kind, times in sorted(found.items(), key=lambda entry: -sum(entry[1]))
    ]


def _bytes(
    workload: Workload, algorithm: str, steps: Sequence[StepResult], scale: Scale
) -> dict[str, dict[str, int]]:
    """Return payload bytes per step by tier: as planned, and as sent (median)."""
    expected = _planned_bytes(workload, algorithm, scale)
    observed = [
        bytes_by_tier(step.sent_bytes, workload.buildings, scale) for step in undisturbed_steps(steps)
    ]
    return {
        tier: {"expected": count, "observed": round(statistics.median(one[tier] for one in observed))}
        for tier, count in expected.items()
    }


def bytes_by_tier(pairs: Pairs, buildings: Sequence[int], scale: Scale) -> dict[str, int]:
    """Return real bytes inside buildings and between them, from emulated bytes by pair of ranks."""
    crossing = between_groups(pairs, buildings)
    inside = sum(pairs.values()) - crossing
    return {"building": round(scale.real_bytes(inside)), "wan": round(scale.real_bytes(crossing))}


def _planned_bytes(workload: Workload, algorithm: str, scale: Scale) -> dict[str, int]:
    return bytes_by_tier(sum_pairs(workload.pairs(algorithm).values()), workload.buildings, scale)


def summarise_prediction(found: DryRun, scale: Scale) -> dict[str, Any]:
    """Return the predicted figures of a step, in real units. Activation memory is set only for `parallelism`."""
    workload, spans = found.workload, found.timeline.spans
    return {
        **_schedule(workload.training, spans),
        "step_time_s": scale.real_s(found.timeline.step_time_s),
        **_split(break_down_step(workload.plan, spans, workload.buildings), scale),
        "bytes": _planned_bytes(workload, found.algorithm, scale),
    }


def describe_time_split(split: Mapping[str, Any], waiting: str = "pipeline bubbles") -> str:
    """Describe in one sentence how a step's time is spent, largest share first; `waiting` names the bubble."""
    parts = {waiting: split["bubble_s"], "computing": split["compute_s"]}
    for entry in split["exposed"]:
        where = TIER_TEXTS[entry["tier"]]
        parts[f"{entry['kind']} {where}"] = entry["seconds"]
    total_s = sum(parts.values())
    shares = [(seconds / total_s, name) for name, seconds in parts.items() if seconds >= 0.01 * total_s]
    return (
        ", ".join(f"{name} {share:.0%}" for share, name in sorted(shares, reverse=True))
        + " of the ranks' time"
    )

"""What a summary says of a step's plan: predicted and measured, what its time went to, who sent what."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from testbed.comm.collectives import between_groups
from testbed.measure.results.summary import StepResult, held_against, middle_step, undisturbed
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
from testbed.workload.job.job import Workload
from testbed.workload.job.traffic_matrix import Pairs, sum_pairs
from testbed.workload.job.training import Training
from testbed.workload.plan import JobPlan
from testbed.workload.schedules import SearchResult

WHERE = {"wan": "between buildings", "building": "inside buildings", "rank": "within ranks"}
"""What ranks waited for, by its tier, in words."""


def spans_of(
    samples: Sequence[Mapping[str, Any]], step: StepResult, plan: JobPlan
) -> list[list[tuple[float, float]]]:
    """When each operation of each rank began and ended in one step, in emulated seconds from its start."""
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
    """Of one variant, which has this algorithm, in real units; times of the step of median duration.

    predicted: None where the model says nothing of such a scenario.
    """
    median = middle_step(steps)
    spans = spans_of(samples, median, workload.plan)
    said = None
    if predicted is not None:
        measured_s = scale.real_s(statistics.median(step.step_time_s for step in steps))
        said = {
            **held_against(scale.real_s(predicted.step_time_s), measured_s),
            **_split(
                break_down_step(predicted.plan or workload.plan, predicted.spans, workload.buildings), scale
            ),
        }
    return {
        **_scheduled(workload.training, spans),
        "predicted": said,
        "measured": _split(break_down_step(workload.plan, spans, workload.buildings), scale),
        "critical_path": _by_kind(workload.plan, spans, workload.buildings, scale),
        "bytes": _tiers(workload, algorithm, steps, scale),
        "median_step": median.index,
    }


def _scheduled(training: Training | None, spans: Spans) -> dict[str, Any]:
    """What a step with `parallelism` has beyond others: a schedule, a mesh, activations that it keeps."""
    if training is None:
        return {}
    searched = training.schedule.searched
    return {
        "schedule": training.schedule.name,
        **({} if searched is None else {"searched": _searched(searched)}),
        "microbatches": training.schedule.microbatches,
        "stages": len(training.stages),
        "training_steps": training.training_steps,
        "mesh": {name: count for name, count in training.mesh.outside.items() if count > 1},
        "layers_per_stage": _unlike(training.layers),
        "microbatches_per_replica": _unlike(training.microbatches),
        "not_emulated": training.mesh.within_ranks,
        "peak_activation_bytes": [round(peak) for peak in peak_activation_bytes(training.plan, spans)],
    }


def _unlike(counts: Sequence[int]) -> list[int]:
    return list(counts) if len(set(counts)) > 1 else []


def _searched(found: SearchResult) -> dict[str, Any]:
    """What a search says of its schedule: of the pipeline alone, without what comes after it, in real time."""
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


def _by_kind(plan: JobPlan, spans: Spans, buildings: Sequence[int], scale: Scale) -> list[dict[str, Any]]:
    """Seconds of the critical path by kind, and in how many links of it."""
    found: dict[str, list[float]] = {}
    for link in find_critical_path(plan, spans, buildings):
        found.setdefault(link.kind, []).append(link.end_s - link.start_s)
    return [
        {"kind": kind, "seconds": scale.real_s(sum(times)), "links": len(times)}
        for kind, times in sorted(found.items(), key=lambda entry: -sum(entry[1]))
    ]


def _tiers(
    workload: Workload, algorithm: str, steps: Sequence[StepResult], scale: Scale
) -> dict[str, dict[str, int]]:
    """Payload bytes per step inside buildings and between them: by the plan, and as sent (median)."""
    expected = _planned(workload, algorithm, scale)
    observed = [by_tier(step.sent_bytes, workload.buildings, scale) for step in undisturbed(steps)]
    return {
        tier: {"expected": count, "observed": round(statistics.median(one[tier] for one in observed))}
        for tier, count in expected.items()
    }


def by_tier(pairs: Pairs, buildings: Sequence[int], scale: Scale) -> dict[str, int]:
    """Real bytes inside buildings and between them, of emulated ones."""
    crossing = between_groups(pairs, buildings)
    inside = sum(pairs.values()) - crossing
    return {"building": round(scale.real_bytes(inside)), "wan": round(scale.real_bytes(crossing))}


def _planned(workload: Workload, algorithm: str, scale: Scale) -> dict[str, int]:
    """Real bytes of a step by tier, as the plan has them."""
    return by_tier(sum_pairs(workload.pairs(algorithm).values()), workload.buildings, scale)


def prediction(found: DryRun, scale: Scale) -> dict[str, Any]:
    """What the model says of a step, in real units; bytes by tier. Only a step with `parallelism` has memory."""
    workload, spans = found.workload, found.timeline.spans
    return {
        **_scheduled(workload.training, spans),
        "step_time_s": scale.real_s(found.timeline.step_time_s),
        **_split(break_down_step(workload.plan, spans, workload.buildings), scale),
        "bytes": _planned(workload, found.algorithm, scale),
    }


def limited_words(split: Mapping[str, Any], waiting: str = "pipeline bubbles") -> str:
    """One sentence on what a step spends its time on, the most first; waiting: what its bubble is called."""
    parts = {waiting: split["bubble_s"], "computing": split["compute_s"]}
    for entry in split["exposed"]:
        where = WHERE[entry["tier"]]
        parts[f"{entry['kind']} {where}"] = entry["seconds"]
    total_s = sum(parts.values())
    shares = [(seconds / total_s, name) for name, seconds in parts.items() if seconds >= 0.01 * total_s]
    return (
        ", ".join(f"{name} {share:.0%}" for share, name in sorted(shares, reverse=True))
        + " of the ranks' time"
    )

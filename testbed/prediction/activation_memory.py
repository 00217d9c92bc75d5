"""How much of activations is alive at once, from when computing began and ended."""

from __future__ import annotations

from functools import partial

from testbed.prediction.time_breakdown import Spans
from testbed.workload.plan import Computing, JobPlan
from testbed.workload.plan_patterns import Pattern


def peak_alive(plan: JobPlan, spans: Spans) -> list[float]:
    """By rank, in real bytes."""
    found = []
    for keeping, own in zip(_keeping(plan), spans, strict=True):
        changes = []
        for index, operation in keeping:
            begun_s, end_s = own[index]
            changes += [(end_s, -operation.gives), (begun_s, operation.holds)]
        alive = peak = 0.0
        for _, change in sorted(changes):
            alive += change
            peak = max(peak, alive)
        found.append(peak)
    return found


def _keeping(plan: JobPlan) -> list[list[tuple[int, Computing]]]:
    """By rank, computing that begins or ceases to keep anything, with its indices."""
    return [own.remembered("keeping", partial(_kept, own)) for own in plan.alike.patterns]


def _kept(pattern: Pattern) -> list[tuple[int, Computing]]:
    return [
        (index, operation)
        for index, operation in enumerate(pattern.operations)
        if isinstance(operation, Computing) and (operation.holds or operation.gives)
    ]

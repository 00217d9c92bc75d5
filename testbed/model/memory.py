"""How much of activations is alive at once, from when computing began and ended."""

from __future__ import annotations

from testbed.model.split import Spans
from testbed.workload.plan import Computing, JobPlan


def peak_alive(plan: JobPlan, spans: Spans) -> list[float]:
    """By rank, in real bytes."""
    found = []
    for operations, own in zip(plan.ranks, spans, strict=True):
        changes = []
        for operation, (begun_s, end_s) in zip(operations, own, strict=True):
            if isinstance(operation, Computing) and (operation.holds or operation.gives):
                changes += [(end_s, -operation.gives), (begun_s, operation.holds)]
        alive = peak = 0.0
        for _, change in sorted(changes):
            alive += change
            peak = max(peak, alive)
        found.append(peak)
    return found

"""How much of activations is alive at once, from when computing began and ended."""

from __future__ import annotations

from testbed.model.split import Spans
from testbed.workload.plan import Computing, JobPlan


def peak_alive(plan: JobPlan, spans: Spans) -> list[float]:
    """By rank, in real bytes."""
    found = []
    for keeping, own in zip(plan.remembered("keeping", lambda: _keeping(plan)), spans, strict=True):
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
    found: dict[int, list[tuple[int, Computing]]] = {}
    for rank in plan.like or range(len(plan.ranks)):
        if rank not in found:
            found[rank] = [
                (index, operation)
                for index, operation in enumerate(plan.ranks[rank])
                if isinstance(operation, Computing) and (operation.holds or operation.gives)
            ]
    return [found[rank] for rank in plan.like or range(len(plan.ranks))]

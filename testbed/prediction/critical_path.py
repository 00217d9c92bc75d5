"""The chain of operations that a step's time is made of: each began when the one before it was over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.prediction.time_breakdown import Moves, Spans
from testbed.workload.dependency_tracker import waits
from testbed.workload.plan import JobPlan


@dataclass(frozen=True)
class Link:
    """One operation of the chain, on the rank that ends it: what it is, and from when to when it held up the step."""

    rank: int
    index: int
    name: str
    kind: str
    start_s: float
    end_s: float


def critical_path(plan: JobPlan, spans: Spans, buildings: Sequence[int]) -> list[Link]:
    """From the step's start to its end; found backwards, from what ended last to whatever it waited for longest."""
    moves = Moves(plan, spans, buildings)
    needs = [waits(operations) for operations in plan.ranks]
    rank, index = max(
        ((rank, index) for rank, own in enumerate(spans) for index in range(len(own))),
        key=lambda at: spans[at[0]][at[1]][1],
    )
    chain: list[Link] = []
    seen: set[tuple[int, int]] = set()
    while (rank, index) not in seen:
        seen.add((rank, index))
        source, origin = moves.origin(rank, index)
        operation = plan.ranks[rank][index]
        end_s = spans[rank][index][1]
        own_before, origin_before = needs[rank][index], needs[source][origin]
        # a receive that was posted late waited for its own rank, any other for the one who sent
        latest = [(rank, number) for number in own_before] if plan.holds_receivers else []
        latest += [(source, number) for number in origin_before]
        begun_s = max((spans[at][number][1] for at, number in latest), default=0.0)
        chain.append(Link(rank, index, operation.name, operation.kind, min(begun_s, end_s), end_s))
        if not latest:
            break
        rank, index = max(latest, key=lambda at: spans[at[0]][at[1]][1])
    return chain[::-1]

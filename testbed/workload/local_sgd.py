"""Consecutive training steps, and the exchanges between replicas that separate them: local SGD and its successors.

In DiLoCo (arXiv:2311.08105), the change of the weights is averaged over replicas once in several steps. In Streaming
DiLoCo (arXiv:2501.18512), it is averaged in parts, one at a time, overlapped with steps and with fewer bits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from testbed.workload.dependency_tracker import waits
from testbed.workload.plan import Computing, GroupCollective, Message, Operation, Pause, RankPlan

WHOLE_BITS = 32
SUMMABLE_BITS = (WHOLE_BITS, 16)  # widths of types that an all-reduce can sum: float32, bfloat16


class Turn(NamedTuple):
    """The exchange of one part.

    Attributes:
        part: Number of the part.
        begins: Number of steps that are over when it starts.
        due: Number of the step that waits for it.
    """

    part: int
    begins: int
    due: int


@dataclass(frozen=True)
class OuterSchedule:
    """The schedule by which parts of the weight changes are exchanged.

    Attributes:
        period: Steps from one part's exchange to the next one's.
        parts: Number of parts.
        overlap: Steps that run while a part is exchanged, at most `period`.
        bits: Bits per value in the exchange.
    """

    period: int
    parts: int = 1
    overlap: int = 0
    bits: int = WHOLE_BITS

    def turns(self, steps: int) -> list[Turn]:
        """Return the turns of a repeating number of steps, which is a multiple of the period.

        With overlap, the first turn begins with the first step, so that no turn extends beyond the last step.
        """
        lead = 0 if self.overlap else self.period
        begins = range(lead, steps + lead, self.period)
        return [Turn(number % self.parts, at, at + self.overlap) for number, at in enumerate(begins)]

    @property
    def is_summable(self) -> bool:
        """Whether the network sums values in transit (all-reduce); if not, every member gathers all others' values."""
        return self.bits in SUMMABLE_BITS

    def collective(self, whole_bytes: float, members: int) -> tuple[str, float]:
        """Return the collective of one part, and the bytes of a member's larger array.

        Args:
            whole_bytes: Bytes of all parameters of a member at 32 bits each.
            members: Number of replicas.
        """
        own = whole_bytes / self.parts * self.bits / WHOLE_BITS
        return ("all_reduce", own) if self.is_summable else ("all_gather", own * members)


def repeat_steps(
    plans: Sequence[RankPlan],
    steps: int,
    outer: OuterSchedule | None = None,
    exchanges: Sequence[GroupCollective | None] = (),
) -> list[RankPlan]:
    """Return all ranks' plans of a step, repeated.

    Args:
        plans: Every rank's plan of one step.
        steps: Number of repetitions.
        outer: Schedule of exchanges between replicas.
        exchanges: Every rank's exchange, started at the turns of `outer`.
    """
    if steps == 1 and outer is None:
        return list(plans)
    turns = outer.turns(steps) if outer else []
    tags = 1 + max((one.tag for plan in plans for one in plan if isinstance(one, Message)), default=0)
    found = []
    for rank, plan in enumerate(plans):
        exchange = exchanges[rank] if exchanges else None
        found.append(_repeat_plan(plan, steps, tags, turns, exchange))
    return found


def _repeat_plan(
    plan: RankPlan, steps: int, tags: int, turns: Sequence[Turn], exchange: GroupCollective | None
) -> RankPlan:
    """Repeat one rank's plan; a step starts once the previous one is over, since an optimizer runs between them.

    `tags` is the number of message tags of a step, which is the same for all ranks.
    """
    first, last = _ends(plan)
    found: list[Operation] = []
    before: tuple[int, ...] = ()
    due: dict[int, tuple[int, ...]] = defaultdict(tuple)
    for step in range(steps + 1):
        for turn in turns if exchange is not None else ():
            if turn.begins == step:
                assert exchange is not None
                due[turn.due] += (len(found),)
                found.append(replace(exchange, name=f"{exchange.name} {turn.part}", after=before))
        if step == steps:
            break
        start, before = len(found), before + due[step]
        for index, operation in enumerate(plan):
            after = tuple(start + earlier for earlier in operation.after)
            name = f"{operation.name}, step {step}" if steps > 1 else operation.name
            changed = replace(operation, name=name, after=(*before, *after) if index in first else after)
            if isinstance(changed, Message):
                changed = replace(changed, tag=changed.tag + step * tags)
            found.append(changed)
        before = tuple(start + index for index in last)
    return tuple(found)


def _ends(plan: RankPlan) -> tuple[set[int], list[int]]:
    """Return the operations that start a step (no dependencies) and the ones that end it (no dependents).

    To attribute waiting time correctly, the first ones include the first computation, so that all waiting before it
    counts for the previous step. The last ones include all communication on which only later operations of the same
    stream depend.
    """
    before, awaited = waits(plan), {earlier for operation in plan for earlier in operation.after}
    in_turn = {earlier for own in before for earlier in own}
    first = {index for index, own in enumerate(before) if not own}
    first |= {next((index for index, one in enumerate(plan) if isinstance(one, Computing)), 0)}
    last = [
        index
        for index, operation in enumerate(plan)
        if index not in (in_turn if isinstance(operation, Computing | Pause) else awaited)
    ]
    return first, last

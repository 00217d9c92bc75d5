"""Training steps in a row, and what replicas exchange between them now and then: local SGD and what came of it.

DiLoCo (arXiv:2311.08105): once in so many steps what the weights have changed is averaged over replicas. Streaming
DiLoCo (arXiv:2501.18512): in parts that take turns, while steps go on, and in few bits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from testbed.workload.dependency_tracker import waits
from testbed.workload.plan import Computing, GroupCollective, Message, Operation, Pause, RankPlan

WHOLE_BITS = 32
SUMMABLE_BITS = (WHOLE_BITS, 16)  # bits of types that can be added up on their way: float32, bfloat16


class Turn(NamedTuple):
    """A part's exchange: begins once so many steps are over, and is waited for before the step of number `due`."""

    part: int
    begins: int
    due: int


@dataclass(frozen=True)
class OuterSchedule:
    """period: steps from one part's exchange to the next one's. overlap: steps that go on meanwhile, up to as many."""

    period: int
    parts: int = 1
    overlap: int = 0
    bits: int = WHOLE_BITS

    def turns(self, steps: int) -> list[Turn]:
        """Of so many steps, a multiple of the period, as they repeat.

        What goes on beside steps begins with the first, so that no turn goes beyond the last.
        """
        lead = 0 if self.overlap else self.period
        begins = range(lead, steps + lead, self.period)
        return [Turn(number % self.parts, at, at + self.overlap) for number, at in enumerate(begins)]

    @property
    def added_up(self) -> bool:
        """Whether sums are what travels; else everybody gets everybody's."""
        return self.bits in SUMMABLE_BITS

    def collective(self, whole_bytes: float, members: int) -> tuple[str, float]:
        """The collective of a part, and the bytes of a member's larger array.

        whole_bytes: of all the parameters of a member, in 32 bits each.
        """
        own = whole_bytes / self.parts * self.bits / WHOLE_BITS
        return ("all_reduce", own) if self.added_up else ("all_gather", own * members)


def repeat_steps(
    plans: Sequence[RankPlan],
    steps: int,
    outer: OuterSchedule | None = None,
    exchanges: Sequence[GroupCollective | None] = (),
) -> list[RankPlan]:
    """All ranks' plans of a step so many times. exchanges: of each rank, at its turns by `outer`."""
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
    """One rank's: a step begins once all of the one before is over, as an optimizer is between them.

    tags: of a step's messages, for all ranks alike.
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
    """Operations that begin a step, or end it: those that wait for none, and those that none waits for.

    Beside these, so that it is plain what time goes to: the first computing, as all waiting before it is for the step
    before; and all communication that only what comes after it on its stream waits for.
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

"""Ranks that do alike: of one of them the plan is made, as a pattern that all of them go by.

Replicas at one place of the pipeline differ in whom they send to and with whom they do collectives, and in nothing
else; unless they take turns at a link, experts get unlike shares, or keys and values go round a ring.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from testbed.workload.operations import GroupCollective, Message, RankPlan
from testbed.workload.options import Group, Options
from testbed.workload.parallelism import CONTEXT, EXPERT, TENSOR
from testbed.workload.patterns import Chain, Move, Pattern, moved


def move_of(groups: Mapping[str, Group], line: Sequence[int]) -> Move:
    """Of a rank in these groups, and in this line of a pipeline's ranks."""
    return Move(tuple(own.number for own in groups.values()), tuple(line))


def pattern_of(plan: RankPlan, chains: Sequence[Chain], move: Move) -> Pattern:
    """From one rank's plan, and what would make that of it again."""
    places = [{number: place for place, number in enumerate(numbers)} for numbers in move]
    operations = list(plan)
    for place, operation in enumerate(plan):
        if isinstance(operation, GroupCollective | Message):
            operations[place] = moved(operation, *places)
    return Pattern(tuple(operations), chains)


def likeness(rank: int, groups: Mapping[str, Group], options: Options) -> Hashable | None:
    """Equal for ranks that do alike if they are at one place of the pipeline; None for those that are like no other."""
    turns = any(sender == rank for sender, _ in options.send_tokens)
    uneven = options.routing_skew and EXPERT in groups
    blocks = options.blocks is not None and TENSOR in groups
    if turns or uneven or blocks or CONTEXT in groups:
        return None
    sizes = tuple((name, len(own.members)) for name, own in groups.items())
    within = repr(options.within[rank]) if options.within else None
    return sizes, options.slowdowns.get(rank, 1.0), within

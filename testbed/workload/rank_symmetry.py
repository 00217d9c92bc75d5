"""Ranks that do alike: of one of them the plan is made, as a pattern that all of them go by.

Replicas at one place of the pipeline differ in whom they send to and with whom they do collectives, and in nothing
else; unless experts get unlike shares, or keys and values go round a ring.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from testbed.workload.options import Group, Options
from testbed.workload.parallelism import CONTEXT, EXPERT, TENSOR
from testbed.workload.plan_patterns import Move


def move_of(groups: Mapping[str, Group], line: Sequence[int]) -> Move:
    """Of a rank in these groups, and in this line of a pipeline's ranks."""
    return Move(tuple(own.number for own in groups.values()), tuple(line))


def in_places(groups: Mapping[str, Group]) -> dict[str, Group]:
    """A rank's groups as a pattern has them: numbered by their places here."""
    return {name: Group(place, own.members) for place, (name, own) in enumerate(groups.items())}


def likeness(rank: int, groups: Mapping[str, Group], options: Options) -> Hashable | None:
    """Equal for ranks that do alike if they are at one place of the pipeline, but for turns that they take (`turns`).

    None for those that are like no other.
    """
    uneven = options.routing_skew and EXPERT in groups
    blocks = options.blocks is not None and TENSOR in groups
    if uneven or blocks or CONTEXT in groups:
        return None
    sizes = tuple((name, len(own.members)) for name, own in groups.items())
    within = repr(options.within[rank]) if options.within else None
    return sizes, options.slowdowns.get(rank, 1.0), within

"""Ranks that do alike: from the plan of one of them those of the others, which takes a tenth of making them anew.

Replicas at one place of the pipeline differ in whom they send to and with whom they do collectives, and in nothing
else; unless they take turns at a link, experts get unlike shares, or keys and values go round a ring.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property

from testbed.workload.layers import Group, Options
from testbed.workload.parallelism import CONTEXT, EXPERT, TENSOR
from testbed.workload.plan import GroupCollective, Message, Operation, RankPlan, altered


@dataclass(frozen=True)
class Made:
    """One rank's plan, and what its replicas do after some steps. line: the ranks of its pipeline."""

    groups: Mapping[str, Group]
    line: tuple[int, ...]
    plan: RankPlan
    exchange: GroupCollective | None

    def moved(self, groups: Mapping[str, Group], line: tuple[int, ...]) -> Made:
        """The same of a rank in these groups and this line."""
        numbers = {own.number: groups[name].number for name, own in self.groups.items()}
        ranks = dict(zip(self.line, line, strict=True))
        if all(one == other for same in (numbers, ranks) for one, other in same.items()):
            return self
        plan = list(self.plan)
        for index in self._shared:
            plan[index] = _moved(plan[index], numbers, ranks)
        exchange = self.exchange and altered(self.exchange, group=numbers[self.exchange.group])
        return Made(groups, line, tuple(plan), exchange)

    @cached_property
    def _shared(self) -> list[int]:
        """Indices of what other ranks take part in."""
        kinds = GroupCollective, Message
        return [index for index, operation in enumerate(self.plan) if isinstance(operation, kinds)]


def _moved(operation: Operation, numbers: Mapping[int, int], ranks: Mapping[int, int]) -> Operation:
    if isinstance(operation, GroupCollective):
        return altered(operation, group=numbers[operation.group])
    assert isinstance(operation, Message)
    peer = ranks[operation.peer]
    stream, _, _ = operation.stream.rpartition(" ")
    return altered(operation, peer=peer, stream=f"{stream} {peer}")


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

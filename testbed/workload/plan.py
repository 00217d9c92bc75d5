"""What each rank of a job does in a step: operations on streams, with their dependencies.

As on an accelerator, operations of one stream run in order and streams run concurrently. A stream that is a queue runs
its operations in the order in which they become ready. Ranks on a network and the simulation execute the same plan:
`dependency_tracker` decides for both which operation may start when.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from testbed.comm.collectives.algorithm_selection import TuningTable
from testbed.workload.operations import (
    COMPUTE,
    COMPUTING,
    EVERYBODY,
    GATHERED,
    QUEUE,
    REDUCED,
    Block,
    Computing,
    GroupCollective,
    IntraRankTransfer,
    Message,
    Operation,
    Pause,
    RankPlan,
    replace_fields,
)
from testbed.workload.plan_patterns import SymmetricPlans

__all__ = [
    "COMPUTE",
    "COMPUTING",
    "EVERYBODY",
    "GATHERED",
    "QUEUE",
    "REDUCED",
    "Block",
    "Computing",
    "GroupCollective",
    "IntraRankTransfer",
    "JobPlan",
    "Message",
    "Operation",
    "Pause",
    "RankPlan",
    "jittered_s",
    "replace_fields",
]

Known = TypeVar("Known")


@dataclass(frozen=True)
class JobPlan:
    """The plans of all ranks of a job.

    Attributes:
        ranks: One plan per rank; `SymmetricPlans` where ranks are known to do the same.
        groups: Name and members of each group of ranks that run collectives together.
        holds_receivers: Whether a message leaves only once its receive is posted.
        jitter: Standard deviation of compute time, as a share of it.
        seed: Seed of the jitter.
        dscps: DSCP of what operations send, by their kind, where not 0.
        buildings: Building of each rank; () for a single building.
        tuning: Table that picks the algorithm of collectives with algorithm "auto".
        near: Locality domain of each rank for hierarchical algorithms (`parallelism.hierarchy`); () for buildings.
    """

    ranks: Sequence[RankPlan] = ()
    groups: tuple[tuple[str, tuple[int, ...]], ...] = ()
    holds_receivers: bool = False
    jitter: float = 0.0
    seed: int = 0
    dscps: Mapping[str, int] = field(default_factory=dict)
    buildings: tuple[int, ...] = ()
    tuning: TuningTable = field(default_factory=TuningTable)
    near: tuple[int, ...] = ()
    _known: dict[Hashable, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def cached(self, key: Hashable, make: Callable[[], Known]) -> Known:
        """Return the value cached under `key`; call `make` on the first request."""
        if key not in self._known:
            self._known[key] = make()
        found: Known = self._known[key]
        return found

    def with_placement(
        self, buildings: tuple[int, ...], tuning: TuningTable, near: tuple[int, ...]
    ) -> JobPlan:
        """Return the plan with this placement and tuning table; the same object on every call."""
        if (buildings, tuning, near) == (self.buildings, self.tuning, self.near):
            return self
        key = "placement", buildings, tuning, near
        return self.cached(key, lambda: replace(self, buildings=buildings, tuning=tuning, near=near))

    def with_algorithm(self, algorithm: str) -> JobPlan:
        """Return the plan with this algorithm in collectives that name none; the same object on every call."""
        patterns = [pattern.with_algorithm(algorithm) for pattern in self.symmetric.patterns]
        if all(map(operator.is_, patterns, self.symmetric.patterns)):
            return self
        ranks = SymmetricPlans(patterns, self.symmetric.relocations)
        return self.cached(("algorithm", algorithm), lambda: replace(self, ranks=ranks))

    @cached_property
    def symmetric(self) -> SymmetricPlans:
        """The plans of all ranks as patterns that ranks share."""
        return self.ranks if isinstance(self.ranks, SymmetricPlans) else SymmetricPlans.of(self.ranks)

    def has(self, kind: type[Operation]) -> bool:
        """Return whether any rank has an operation of this type."""
        return any(
            isinstance(operation, kind) for own in self.symmetric.patterns for operation in own.operations
        )

    @cached_property
    def exchanges(self) -> tuple[Sequence[tuple[Message | GroupCollective, int]], ...]:
        """By rank, its distinct operations that involve other ranks, each with its count."""
        return tuple(map(self.symmetric.exchanges, range(len(self.symmetric))))

    @cached_property
    def operations(self) -> int:
        """The number of operations of all ranks."""
        return sum(map(len, self.symmetric.patterns))

    def locality_of(self, group: int) -> tuple[int, ...]:
        """Return the locality domain of each member of a group, in the members' order."""
        members, numbers = self.groups[group][1], self.near or self.buildings
        return tuple(numbers[member] for member in members) if numbers else (0,) * len(members)

    def dscp(self, operation: Operation) -> int:
        """Return the DSCP of an operation's packets."""
        return self.dscps.get(operation.kind, 0)


def jittered_s(plan: JobPlan, rank: int, index: int, step: int) -> float:
    """Return the emulated seconds of an operation's computation in one step; the same in every run."""
    operation = plan.ranks[rank][index]
    assert isinstance(operation, Computing)
    if not plan.jitter:
        return operation.duration_s
    deviation = random.Random(f"{plan.seed}/{step}/{rank}/{index}").gauss(0.0, plan.jitter)
    return operation.duration_s * max(0.0, 1.0 + deviation)

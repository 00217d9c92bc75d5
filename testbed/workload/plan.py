"""What each rank of a job does in a step: operations on streams, with what they wait for.

As on an accelerator, operations of one stream come one after the other, and streams go on side by side; a stream that
is a queue takes them in the order in which they can begin. The same plan
is carried out by ranks on a network, and by a model of both: `dependency_tracker` says for both what may start when.
"""

from __future__ import annotations

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
    operation_document,
    operation_of,
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
    "operation_document",
    "operation_of",
    "replace_fields",
]

Known = TypeVar("Known")


@dataclass(frozen=True)
class JobPlan:
    """All ranks' plans; groups: ranks that do collectives together, by name.

    holds_receivers: a message leaves once its receiver waits for it, and not before. jitter: standard deviation of
    computing, as a share of its time; seed: of that. dscps: of what operations send, by their kind, where not 0.
    buildings: of the ranks; () for one. near: what algorithms go by in their place, as `parallelism.hierarchy` says it;
    () for buildings. tuning: what collectives go by whose algorithm is "auto". ranks: `SymmetricPlans` where
    some are known to do the same.
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

    def remembered(self, what: Hashable, made: Callable[[], Known]) -> Known:
        """What follows from the plan, which whoever asks again for `what` need not find out anew."""
        if what not in self._known:
            self._known[what] = made()
        found: Known = self._known[what]
        return found

    def placed(self, buildings: tuple[int, ...], tuning: TuningTable, near: tuple[int, ...]) -> JobPlan:
        """In these buildings, by this table; the same one whenever it is asked for."""
        if (buildings, tuning, near) == (self.buildings, self.tuning, self.near):
            return self
        where = "placed", buildings, tuning, near
        return self.remembered(where, lambda: replace(self, buildings=buildings, tuning=tuning, near=near))

    def using(self, algorithm: str) -> JobPlan:
        """With this one in the collectives that name none; the same one whenever it is asked for."""
        if not any(pattern.nameless for pattern in self.alike.patterns):
            return self
        return self.remembered(("using", algorithm), lambda: replace(self, ranks=self.alike.using(algorithm)))

    @cached_property
    def alike(self) -> SymmetricPlans:
        """The ranks, by what they do alike."""
        return self.ranks if isinstance(self.ranks, SymmetricPlans) else SymmetricPlans.of(self.ranks)

    def has(self, kind: type[Operation]) -> bool:
        """Whether any rank does such an operation."""
        return any(isinstance(operation, kind) for own in self.alike.patterns for operation in own.operations)

    @cached_property
    def exchanged(self) -> tuple[Sequence[tuple[Message | GroupCollective, int]], ...]:
        """By rank, what other ranks take part in: of those that send the same one, and how many there are."""
        return tuple(map(self.alike.exchanged, range(len(self.alike))))

    @cached_property
    def operations(self) -> int:
        """How many all ranks have."""
        return sum(map(len, self.alike.patterns))

    def near_of(self, group: int) -> tuple[int, ...]:
        """Who of a group's members is near whom, for algorithms: those of one number, in the members' order."""
        members, numbers = self.groups[group][1], self.near or self.buildings
        return tuple(numbers[member] for member in members) if numbers else (0,) * len(members)

    def dscp(self, operation: Operation) -> int:
        """Of the packets of an operation."""
        return self.dscps.get(operation.kind, 0)

    def to_document(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "ranks": [list(map(operation_document, plan)) for plan in self.ranks],
            "groups": [[name, list(members)] for name, members in self.groups],
            "holds_receivers": self.holds_receivers,
            "jitter": self.jitter,
            "seed": self.seed,
            "dscps": dict(self.dscps),
            "buildings": list(self.buildings),
            "tuning": self.tuning.to_document(),
            "near": list(self.near),
        }

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> JobPlan:
        """The inverse, after a way through JSON."""
        ranks = [tuple(operation_of(entry) for entry in plan) for plan in document["ranks"]]
        groups = tuple((name, tuple(members)) for name, members in document["groups"])
        rest = {name: document[name] for name in ("holds_receivers", "jitter", "seed", "dscps")}
        buildings, near = tuple(document["buildings"]), tuple(document["near"])
        tuning = TuningTable.from_document(document["tuning"])
        return cls(tuple(ranks), groups, buildings=buildings, tuning=tuning, near=near, **rest)


def jittered_s(plan: JobPlan, rank: int, index: int, step: int) -> float:
    """What an operation's computing takes in one step, the same in every run."""
    operation = plan.ranks[rank][index]
    assert isinstance(operation, Computing)
    if not plan.jitter:
        return operation.duration_s
    deviation = random.Random(f"{plan.seed}/{step}/{rank}/{index}").gauss(0.0, plan.jitter)
    return operation.duration_s * max(0.0, 1.0 + deviation)

"""The plan of each rank of a job for a step: operations on streams, with their dependencies.

As on an accelerator, operations of one stream run in order and streams run concurrently. A stream that is a queue runs
its operations in the order in which they become ready. Ranks on a network and the simulation execute the same plan:
`dependency_tracker` decides for both which operation may start when.

Symmetric ranks share one pattern of operations, which is relocated to each rank's peers and groups. Data derived from a
pattern are cached for all ranks that share it, including those of other plans.
"""

from __future__ import annotations

import operator
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, overload

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
Shared = TypeVar("Shared", bound=Message | GroupCollective)
NumberOf = Sequence[int] | Mapping[int, int]


class _Cached:
    """A cache of values derived from an object, with the lifetime of the object."""

    def cached(self, key: Hashable, make: Callable[[], Known]) -> Known:
        """Return the value cached under `key`; call `make` on the first request."""
        known: dict[Hashable, Any] = self.__dict__.setdefault("_known", {})
        if key not in known:
            known[key] = make()
        found: Known = known[key]
        return found


class Pattern(_Cached):
    """The operations of a rank. If there is a `Relocation`, peers and groups are indices into it.

    Attributes:
        operations: The operations, in order.
    """

    def __init__(self, operations: RankPlan, column_source: Pattern | None = None) -> None:
        self.operations = operations
        self._column_source = (
            column_source  # not itself, so that there is no cycle and plans are freed without the collector
        )

    @property
    def column_source(self) -> Pattern:
        """A pattern that differs only in collective algorithms, which columns do not contain; or itself."""
        return self._column_source or self

    def __len__(self) -> int:
        return len(self.operations)

    @cached_property
    def shared_indices(self) -> list[int]:
        """Indices of the operations that involve other ranks, which are a small part of all."""
        kinds = {GroupCollective, Message, Block}
        return [index for index, kind in enumerate(map(type, self.operations)) if kind in kinds]

    @property
    def shared_kinds(self) -> list[int]:
        """For each of `shared_indices`, the index of the equal operation in `exchanges`."""
        return self._sorted[0]

    @property
    def exchanges(self) -> list[tuple[Message | GroupCollective, int]]:
        """The distinct operations that involve other ranks, each with its count."""
        return self._sorted[1]

    @cached_property
    def _sorted(self) -> tuple[list[int], list[tuple[Message | GroupCollective, int]]]:
        sorts: list[int] = []
        numbers: dict[object, int] = {}
        first: list[Message | GroupCollective] = []
        for index in self.shared_indices:
            operation = self.operations[index]
            assert isinstance(operation, Message | GroupCollective)
            number = numbers.setdefault(send_key(operation), len(first))
            if number == len(first):
                first.append(operation)
            sorts.append(number)
        many = Counter(sorts)
        return sorts, [(operation, many[number]) for number, operation in enumerate(first)]

    def with_algorithm(self, algorithm: str) -> Pattern:
        """Return the pattern with this algorithm in collectives that do not name one; always the same object."""
        if not any(map(_uses_default_algorithm, (own for own, _ in self.exchanges))):
            return self
        return self.cached(("using", algorithm), lambda: self._with_algorithm(algorithm))

    def _with_algorithm(self, algorithm: str) -> Pattern:
        operations = tuple(
            replace_fields(own, algorithm=algorithm) if _uses_default_algorithm(own) else own
            for own in self.operations
        )
        found = Pattern(operations, self.column_source)
        # once two collectives have become equal, so have their columns
        same = len(found.exchanges) == len(self.exchanges)
        return found if same else Pattern(operations)


EMPTY_PATTERN = Pattern(())


def send_key(operation: Operation) -> object:
    """Return a key that is equal for operations that exchange the same data with the same peers."""
    if isinstance(operation, GroupCollective):
        return *operation.exchange_key, operation.kind
    assert isinstance(operation, Message)
    return operation.peer, operation.numel, operation.sends, operation.kind, type(operation)


def _uses_default_algorithm(operation: Operation) -> bool:
    return isinstance(operation, GroupCollective) and not operation.algorithm


class Relocation(NamedTuple):
    """The peers and groups to which a rank applies a pattern.

    Attributes:
        groups: Number in the plan of each of the pattern's groups.
        peers: Rank of each of the pattern's peers.
    """

    groups: tuple[int, ...]
    peers: tuple[int, ...]


class SymmetricPlans(Sequence[RankPlan]):
    """The plans of all ranks, built on access; a relocation is None if a pattern belongs to only one rank."""

    def __init__(self, patterns: Sequence[Pattern], relocations: Sequence[Relocation | None]) -> None:
        self.patterns, self.relocations = tuple(patterns), tuple(relocations)
        self._made: dict[int, RankPlan] = {}

    @classmethod
    def of(cls, ranks: Sequence[RankPlan]) -> SymmetricPlans:
        """Wrap plans whose symmetry is not known."""
        found = {id(own): Pattern(own) if own else EMPTY_PATTERN for own in ranks}
        return cls([found[id(own)] for own in ranks], [None] * len(ranks))

    def exchanges(self, rank: int) -> list[tuple[Message | GroupCollective, int]]:
        """Return a rank's distinct operations that involve other ranks, each with its count."""
        own, relocation = self.patterns[rank], self.relocations[rank]
        if relocation is None:
            return own.exchanges
        return own.cached(
            ("exchanges", relocation),
            lambda: [(relocate(operation, *relocation), many) for operation, many in own.exchanges],
        )

    @overload
    def __getitem__(self, rank: int) -> RankPlan: ...

    @overload
    def __getitem__(self, rank: slice) -> tuple[RankPlan, ...]: ...

    def __getitem__(self, rank: int | slice) -> RankPlan | tuple[RankPlan, ...]:
        if isinstance(rank, slice):
            return tuple(self)[rank]
        number = range(len(self))[rank]
        if self.relocations[number] is None:
            return self.patterns[number].operations
        if number not in self._made:
            relocation = self.relocations[number]
            assert relocation is not None
            self._made[number] = tuple(
                relocate(own, *relocation) if isinstance(own, Message | GroupCollective) else own
                for own in self.patterns[number].operations
            )
        return self._made[number]

    def __len__(self) -> int:
        return len(self.patterns)

    def __iter__(self) -> Iterator[RankPlan]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SymmetricPlans | tuple) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]


def relocate(operation: Shared, groups: NumberOf, peers: NumberOf) -> Shared:
    """Return an operation with the group or peer at the given index."""
    if isinstance(operation, GroupCollective):
        return replace_fields(operation, group=groups[operation.group])
    assert isinstance(operation, Message)
    peer = peers[operation.peer]
    stream, _, _ = operation.stream.rpartition(" ")
    return replace_fields(operation, peer=peer, stream=f"{stream} {peer}")


@dataclass(frozen=True)
class JobPlan(_Cached):
    """The plans of all ranks of a job.

    Attributes:
        ranks: One plan per rank; `SymmetricPlans` if ranks are known to have the same operations.
        groups: Name and members of each group of ranks that run collectives together.
        holds_receivers: Whether a message leaves only once its receive is posted.
        jitter: Standard deviation of compute time, relative to that time.
        seed: Seed of the jitter.
        dscps: DSCP of the operations' packets by kind, if not 0.
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

    def with_placement(
        self, buildings: tuple[int, ...], tuning: TuningTable, near: tuple[int, ...]
    ) -> JobPlan:
        """Return the plan with this placement and tuning table; always the same object."""
        if (buildings, tuning, near) == (self.buildings, self.tuning, self.near):
            return self
        key = "placement", buildings, tuning, near
        return self.cached(key, lambda: replace(self, buildings=buildings, tuning=tuning, near=near))

    def with_algorithm(self, algorithm: str) -> JobPlan:
        """Return the plan with this algorithm in collectives that do not name one; always the same object."""
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
        """For each rank, its distinct operations that involve other ranks, each with its count."""
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
    """Return the emulated seconds of an operation's computation in one step, which are the same in every run."""
    operation = plan.ranks[rank][index]
    assert isinstance(operation, Computing)
    if not plan.jitter:
        return operation.duration_s
    deviation = random.Random(f"{plan.seed}/{step}/{rank}/{index}").gauss(0.0, plan.jitter)
    return operation.duration_s * max(0.0, 1.0 + deviation)

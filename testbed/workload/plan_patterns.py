"""Symmetric ranks: one pattern of operations that several ranks share, relocated to each rank's peers and groups.

What is derived from a pattern is cached for all ranks that share it, in other plans too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, overload

from testbed.workload.operations import Block, GroupCollective, Message, Operation, RankPlan, replace_fields

Known = TypeVar("Known")
Kind = TypeVar("Kind", bound=Operation)
Shared = TypeVar("Shared", bound=Message | GroupCollective)
NumberOf = Sequence[int] | Mapping[int, int]


class Chain(NamedTuple):
    """Consecutive computations of one stream that depend on each other alone.

    Attributes:
        place: Index of the first one.
        durations_s: Emulated seconds of each.
    """

    place: int
    durations_s: Sequence[float]


class Pattern:
    """The operations of a rank. Where a `Relocation` goes with it, peers and groups are indices into that.

    Attributes:
        chains: Known chains of computations, which need not be examined one by one.
    """

    def __init__(self, operations: RankPlan, chains: Sequence[Chain] = ()) -> None:
        self._operations, self.chains = operations, chains
        self._known: dict[Hashable, Any] = {}

    @property
    def operations(self) -> RankPlan:
        """The operations, in order."""
        return self._operations

    def __len__(self) -> int:
        return len(self._operations)

    def cached(self, key: Hashable, make: Callable[[], Known]) -> Known:
        """Return the value cached under `key`; call `make` on the first request."""
        if key not in self._known:
            self._known[key] = make()
        found: Known = self._known[key]
        return found

    @cached_property
    def shared_indices(self) -> list[int]:
        """Indices of the operations that involve other ranks, a small part of all."""
        kinds = {GroupCollective, Message, Block}
        return [index for index, kind in enumerate(map(type, self.operations)) if kind in kinds]

    @cached_property
    def shared_kinds(self) -> list[int]:
        """For each of `shared_indices`, the index of its equal in `exchanges`."""
        return self._sorted[0]

    @cached_property
    def exchanges(self) -> list[tuple[Message | GroupCollective, int]]:
        """The distinct operations that involve other ranks, each with its count."""
        return self._sorted[1]

    @cached_property
    def _sorted(self) -> tuple[list[int], list[tuple[Message | GroupCollective, int]]]:
        return self._sort()

    def _sort(self) -> tuple[list[int], list[tuple[Message | GroupCollective, int]]]:
        sorts: list[int] = []
        numbers: dict[object, int] = {}
        first: list[Message | GroupCollective] = []
        many: list[int] = []
        for index in self.shared_indices:
            operation = self.operations[index]
            assert isinstance(operation, Message | GroupCollective)
            number = numbers.setdefault(send_key(operation), len(first))
            if number == len(first):
                first.append(operation)
                many.append(0)
            many[number] += 1
            sorts.append(number)
        return sorts, list(zip(first, many, strict=True))

    @cached_property
    def has_default_algorithm(self) -> bool:
        """Whether any collective names no algorithm."""
        return any(_uses_default_algorithm(own) for own, _ in self.exchanges)

    def with_algorithm(self, algorithm: str) -> Pattern:
        """Return the pattern with this algorithm in collectives that name none; the same object on every call."""
        if not self.has_default_algorithm:
            return self
        return self.cached(("using", algorithm), lambda: AlgorithmPattern(self, algorithm))


class AlgorithmPattern(Pattern):
    """A pattern with a given algorithm in the collectives that name none."""

    def __init__(self, base: Pattern, algorithm: str) -> None:
        super().__init__((), base.chains)
        self.base, self.algorithm = base, algorithm

    @cached_property
    def operations(self) -> RankPlan:
        """The operations, made on first use."""
        return tuple(map(self._named, self.base.operations))

    def __len__(self) -> int:
        return len(self.base)

    @cached_property
    def shared_indices(self) -> list[int]:
        """The base pattern's."""
        return self.base.shared_indices

    @cached_property
    def keeps_kinds_distinct(self) -> bool:
        """Whether filling in the algorithm makes no two distinct collectives equal."""
        kinds = [send_key(self._named(own)) for own, _ in self.base.exchanges]
        return len(set(kinds)) == len(kinds)

    def _sort(self) -> tuple[list[int], list[tuple[Message | GroupCollective, int]]]:
        if not self.keeps_kinds_distinct:
            return super()._sort()
        return self.base.shared_kinds, [(self._named(own), many) for own, many in self.base.exchanges]

    def _named(self, operation: Kind) -> Kind:
        return (
            replace_fields(operation, algorithm=self.algorithm)
            if _uses_default_algorithm(operation)
            else operation
        )


EMPTY_PATTERN = Pattern(())


def send_key(operation: Operation) -> object:
    """Return a key that is equal for operations that exchange the same data with the same peers."""
    if isinstance(operation, GroupCollective):
        return (
            operation.group,
            operation.collective,
            operation.numel,
            operation.algorithm,
            operation.counts,
            operation.returns,
            operation.table,
            operation.kind,
        )
    assert isinstance(operation, Message)
    return operation.peer, operation.numel, operation.sends, operation.kind, type(operation)


def _uses_default_algorithm(operation: Operation) -> bool:
    return isinstance(operation, GroupCollective) and not operation.algorithm


class Relocation(NamedTuple):
    """Where a rank uses a pattern.

    Attributes:
        groups: Number in the plan of each of the pattern's groups.
        peers: Rank of each of the pattern's peers.
    """

    groups: tuple[int, ...]
    peers: tuple[int, ...]


class SymmetricPlans(Sequence[RankPlan]):
    """The plans of all ranks, built on access. A relocation is None where a pattern is the rank's own."""

    def __init__(self, patterns: Sequence[Pattern], relocations: Sequence[Relocation | None]) -> None:
        self.patterns, self.relocations = tuple(patterns), tuple(relocations)
        self._made: dict[int, RankPlan] = {}

    @classmethod
    def of(cls, ranks: Sequence[RankPlan]) -> SymmetricPlans:
        """Wrap plans whose symmetry is not known."""
        found = {id(own): Pattern(own) if own else EMPTY_PATTERN for own in ranks}
        return cls([found[id(own)] for own in ranks], [None] * len(ranks))

    def with_algorithm(self, algorithm: str) -> SymmetricPlans:
        """Return the plans with this algorithm in collectives that name none."""
        return SymmetricPlans([own.with_algorithm(algorithm) for own in self.patterns], self.relocations)

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

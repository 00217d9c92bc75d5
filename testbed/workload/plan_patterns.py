"""Symmetric ranks: one pattern of operations that several ranks share, relocated to each rank's peers and groups.

What is derived from a pattern is cached for all ranks that share it, in other plans too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, overload

from testbed.workload.operations import Block, GroupCollective, Message, Operation, RankPlan, replace_fields

Known = TypeVar("Known")
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
        operations: The operations, in order.
        chains: Known chains of computations, which need not be examined one by one.
        column_source: A pattern that differs only in collective algorithms, which columns do not contain; or itself.
    """

    def __init__(
        self, operations: RankPlan, chains: Sequence[Chain] = (), column_source: Pattern | None = None
    ) -> None:
        self.operations, self.chains = operations, chains
        self.column_source = column_source or self
        self._known: dict[Hashable, Any] = {}

    def __len__(self) -> int:
        return len(self.operations)

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

    @property
    def shared_kinds(self) -> list[int]:
        """For each of `shared_indices`, the index of its equal in `exchanges`."""
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
        """Return the pattern with this algorithm in collectives that name none; the same object on every call."""
        if not any(map(_uses_default_algorithm, (own for own, _ in self.exchanges))):
            return self
        return self.cached(("using", algorithm), lambda: self._with_algorithm(algorithm))

    def _with_algorithm(self, algorithm: str) -> Pattern:
        operations = tuple(
            replace_fields(own, algorithm=algorithm) if _uses_default_algorithm(own) else own
            for own in self.operations
        )
        found = Pattern(operations, self.chains, self.column_source)
        # once two collectives have become equal, so have their columns
        same = len(found.exchanges) == len(self.exchanges)
        return found if same else Pattern(operations, self.chains)


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

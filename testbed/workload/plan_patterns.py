"""Ranks that do alike: one pattern of what all of them do, and for each whom it sends to and in which groups it is.

What is found out of a pattern is known of all ranks that go by it, and of those of other plans.
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
    """Computing that follows on other computing of its stream, from that place on, and waits for nothing else.

    durations_s: of each.
    """

    place: int
    durations_s: Sequence[float]


class Pattern:
    """A rank's operations; where a `Relocation` goes with them, peers and groups are places in that.

    chains: of them, which need not be looked at one by one; those that are known.
    """

    def __init__(self, operations: RankPlan, chains: Sequence[Chain] = ()) -> None:
        self._given, self.chains = operations, chains
        self._known: dict[Hashable, Any] = {}

    @property
    def operations(self) -> RankPlan:
        """In their order."""
        return self._given

    def __len__(self) -> int:
        return len(self._given)

    def remembered(self, what: Hashable, made: Callable[[], Known]) -> Known:
        """As a plan's."""
        if what not in self._known:
            self._known[what] = made()
        found: Known = self._known[what]
        return found

    @cached_property
    def shared(self) -> list[int]:
        """Places of what other ranks take part in: few of all."""
        kinds = {GroupCollective, Message, Block}
        return [index for index, kind in enumerate(map(type, self.operations)) if kind in kinds]

    @cached_property
    def sorts(self) -> list[int]:
        """Of each that is shared, which of `exchanged` it is like."""
        return self._sorted[0]

    @cached_property
    def exchanged(self) -> list[tuple[Message | GroupCollective, int]]:
        """Of shared operations that send the same, one, and how many there are."""
        return self._sorted[1]

    @cached_property
    def _sorted(self) -> tuple[list[int], list[tuple[Message | GroupCollective, int]]]:
        return self._sort()

    def _sort(self) -> tuple[list[int], list[tuple[Message | GroupCollective, int]]]:
        sorts: list[int] = []
        numbers: dict[object, int] = {}
        first: list[Message | GroupCollective] = []
        many: list[int] = []
        for index in self.shared:
            operation = self.operations[index]
            assert isinstance(operation, Message | GroupCollective)
            number = numbers.setdefault(sent_alike(operation), len(first))
            if number == len(first):
                first.append(operation)
                many.append(0)
            many[number] += 1
            sorts.append(number)
        return sorts, list(zip(first, many, strict=True))

    @cached_property
    def nameless(self) -> bool:
        """Whether any collective names no algorithm."""
        return any(_is_nameless(own) for own, _ in self.exchanged)

    def using(self, algorithm: str) -> Pattern:
        """With this one in the collectives that name none; the same one whenever it is asked for."""
        if not self.nameless:
            return self
        return self.remembered(("using", algorithm), lambda: Using(self, algorithm))


class Using(Pattern):
    """A pattern with this algorithm in the collectives that name none."""

    def __init__(self, plain: Pattern, algorithm: str) -> None:
        super().__init__((), plain.chains)
        self.plain, self.algorithm = plain, algorithm

    @cached_property
    def operations(self) -> RankPlan:
        """Made when asked for."""
        return tuple(map(self._named, self.plain.operations))

    def __len__(self) -> int:
        return len(self.plain)

    @cached_property
    def shared(self) -> list[int]:
        """As the pattern's."""
        return self.plain.shared

    @cached_property
    def tells_as_many_apart(self) -> bool:
        """Whether no collective that names none is now like one that names this algorithm."""
        kinds = [sent_alike(self._named(own)) for own, _ in self.plain.exchanged]
        return len(set(kinds)) == len(kinds)

    def _sort(self) -> tuple[list[int], list[tuple[Message | GroupCollective, int]]]:
        if not self.tells_as_many_apart:
            return super()._sort()
        return self.plain.sorts, [(self._named(own), many) for own, many in self.plain.exchanged]

    def _named(self, operation: Kind) -> Kind:
        return replace_fields(operation, algorithm=self.algorithm) if _is_nameless(operation) else operation


EMPTY_PATTERN = Pattern(())


def sent_alike(operation: Operation) -> object:
    """Equal for operations that send the same, which other ranks take part in."""
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


def _is_nameless(operation: Operation) -> bool:
    return isinstance(operation, GroupCollective) and not operation.algorithm


class Relocation(NamedTuple):
    """groups: numbers of the plan's, of each of the pattern's; line: likewise ranks, of peers."""

    groups: tuple[int, ...]
    line: tuple[int, ...]


class SymmetricPlans(Sequence[RankPlan]):
    """All ranks' plans, which are made as they are asked for. moves: None where a pattern is the rank's own."""

    def __init__(self, patterns: Sequence[Pattern], moves: Sequence[Relocation | None]) -> None:
        self.patterns, self.moves = tuple(patterns), tuple(moves)
        self._made: dict[int, RankPlan] = {}

    @classmethod
    def of(cls, ranks: Sequence[RankPlan]) -> SymmetricPlans:
        """Of ranks of which nothing is known but what each does."""
        found = {id(own): Pattern(own) if own else EMPTY_PATTERN for own in ranks}
        return cls([found[id(own)] for own in ranks], [None] * len(ranks))

    def using(self, algorithm: str) -> SymmetricPlans:
        """See Pattern."""
        return SymmetricPlans([own.using(algorithm) for own in self.patterns], self.moves)

    def exchanged(self, rank: int) -> list[tuple[Message | GroupCollective, int]]:
        """What other ranks take part in, of those that send the same one, and how many there are."""
        own, move = self.patterns[rank], self.moves[rank]
        if move is None:
            return own.exchanged
        return own.remembered(
            ("exchanged", move),
            lambda: [(relocate(operation, *move), many) for operation, many in own.exchanged],
        )

    @overload
    def __getitem__(self, rank: int) -> RankPlan: ...

    @overload
    def __getitem__(self, rank: slice) -> tuple[RankPlan, ...]: ...

    def __getitem__(self, rank: int | slice) -> RankPlan | tuple[RankPlan, ...]:
        if isinstance(rank, slice):
            return tuple(self)[rank]
        number = range(len(self))[rank]
        if self.moves[number] is None:
            return self.patterns[number].operations
        if number not in self._made:
            move = self.moves[number]
            assert move is not None
            self._made[number] = tuple(
                relocate(own, *move) if isinstance(own, Message | GroupCollective) else own
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


def relocate(operation: Shared, groups: NumberOf, line: NumberOf) -> Shared:
    """The same between others: those that stand at the numbers of its own."""
    if isinstance(operation, GroupCollective):
        return replace_fields(operation, group=groups[operation.group])
    assert isinstance(operation, Message)
    peer = line[operation.peer]
    stream, _, _ = operation.stream.rpartition(" ")
    return replace_fields(operation, peer=peer, stream=f"{stream} {peer}")

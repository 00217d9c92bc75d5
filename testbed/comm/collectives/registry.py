"""The registry of collectives and of the algorithms that execute them.

A `Collective` says what each rank has before and after; an `Algorithm` makes each rank's plan. Modules register what
they define, and plug-ins add more. Below, n is the number of ranks; in all_to_all, block s * n + d goes from rank s to
rank d.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from testbed.comm.collectives.plan import Plan, in_channels, reverse
from testbed.plugins import PluginError, Registry, attribute_errors

AUTO = "auto"
PACKAGE = (
    "testbed.comm.collectives.algorithms"  # its modules register the built-in collectives and algorithms
)
ENTRY_POINTS, ALGORITHM_ENTRY_POINTS = "testbed.collectives", "testbed.collective_algorithms"


class PlanRequest(NamedTuple):
    """The input of a planner: this rank, each rank's building, the root if any, and the count of channels or chunks."""

    rank: int
    groups: tuple[int, ...]
    root: int = 0
    pieces: int = 1

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.groups)


class Pieces(NamedTuple):
    """The number of pieces into which an array is cut: at most `most`, each of at least `least_bytes`."""

    most: int
    least_bytes: int

    def of(self, size_bytes: int) -> int:
        """Return the number of pieces for an array of `size_bytes`, at least 1."""
        return max(1, min(self.most, size_bytes // self.least_bytes))


MakePlan = Callable[[PlanRequest], Plan]
MakePlanT = TypeVar("MakePlanT", bound=Callable[..., Plan])
AutoRule = Callable[[int, Sequence[int]], bool]
"""Whether `auto` picks an algorithm, given the size in bytes as `algorithm_selection.traffic` counts it, and each
rank's building."""


@dataclass(frozen=True, eq=False)
class Algorithm:
    """A way to execute a collective. Called with a PlanRequest, it returns that rank's plan.

    channels: every block is cut, and the parts proceed independently (`plan.in_channels`); their number follows from
    the bytes of the whole array divided by the number of ranks.
    chunks: the plan itself cuts the array (`PlanRequest.pieces`); their number follows from the bytes of the whole
    array. With neither, the array is sent in one piece.
    source: the file and line of the definition.
    """

    collective: Collective
    make: MakePlan
    channels: Pieces | None = None
    chunks: Pieces | None = None
    name: str = ""
    source: tuple[Path, int] = (Path(), 0)

    def __call__(self, request: PlanRequest) -> Plan:
        """Return this rank's plan, cached. Raises PluginError if the planner raises or returns something else."""
        return _plan(self, request)

    def pieces(self, size_bytes: int, ranks: int) -> int:
        """Return the number of channels or chunks; the size is that of `algorithm_selection.traffic`, in bytes."""
        whole_bytes = size_bytes * self.collective.blocks(ranks)
        if self.channels is not None:
            return self.channels.of(whole_bytes // ranks)
        return 1 if self.chunks is None else self.chunks.of(whole_bytes)

    def serving(self, collective: Collective) -> Algorithm:
        """Return this algorithm for `collective`: itself for its own collective, reversed for the mirrored one."""
        return self if collective is self.collective else _reversed(self, collective)


def _source(make: MakePlan) -> tuple[Path, int]:
    code = inspect.unwrap(make).__code__
    return Path(code.co_filename), code.co_firstlineno


@lru_cache(maxsize=512)
def _plan(algorithm: Algorithm, request: PlanRequest) -> Plan:
    file, line = algorithm.source
    with attribute_errors(f"algorithm {algorithm.name}", file):
        plan = algorithm.make(request)
        if not isinstance(plan, Plan):
            got = f"{type(plan).__name__} ({file}, line {line})"
            raise PluginError(where=f"algorithm {algorithm.name}", got=got, expected="a Plan")
        return plan if algorithm.channels is None else in_channels(plan, request.pieces)


def _play_backwards(make: MakePlan, collective: Collective) -> MakePlan:
    return lambda request: reverse(make(request), collective.name.replace("_", "-"), collective.reduces)


@lru_cache(maxsize=128)
def _reversed(algorithm: Algorithm, collective: Collective) -> Algorithm:
    return replace(algorithm, collective=collective, make=_play_backwards(algorithm.make, collective))


@dataclass(frozen=True)
class RowsAlgorithm:
    """An algorithm for rows whose number receivers do not know; `algorithms.all_to_all_v.Exchange` executes it.

    sent: the number of rows on the wire for `count` rows to send, where no rank has more than `most` for any other.
    concurrency: the number of peers at a time.
    posts_ahead: receivers post before counts arrive, because `sent` is the same for any count, or counts are known.
    counts_known: receivers know `count` from an earlier exchange, so no counts are sent, only rows.
    """

    sent: Callable[[int, int], int]
    concurrency: int = 8
    posts_ahead: bool = False
    counts_known: bool = False

    @property
    def pads(self) -> bool:
        """Whether padding is sent."""
        return self.posts_ahead and not self.counts_known


class Algorithms(Registry[Any]):
    """The algorithms of one collective by name: Algorithm objects, or RowsAlgorithm objects if its rows are uneven."""

    def __init__(self, collective: Collective) -> None:
        self.collective = collective
        what = f"{collective.name} algorithm"
        super().__init__(what, PACKAGE, ALGORITHM_ENTRY_POINTS, self._expected_kind, f"{collective.name}.")

    def _expected_kind(self, thing: object) -> str | None:
        if self.collective.uneven:
            return None if isinstance(thing, RowsAlgorithm) else "a RowsAlgorithm"
        fitting = (self.collective, self.collective.mirror)
        if isinstance(thing, Algorithm) and any(thing.collective is one for one in fitting):
            return None
        names = " or ".join(one.name for one in fitting if one is not None)
        return f"an algorithm of {names}, as its `algorithm` decorator makes one"

    def has(self, name: str) -> bool:
        """Return whether `find` would find this name."""
        try:
            self.find(name)
        except PluginError:
            return False
        return True

    def _checked(self, name: str, thing: object) -> Any:
        found = super()._checked(name, thing)
        return found.serving(self.collective) if isinstance(found, Algorithm) else found


@dataclass(frozen=True, eq=False)
class Collective:
    """A collective operation, defined by the blocks of one array that each rank has before and after it.

    blocks: the number of equal blocks, as a function of the number of ranks.
    before, after: the blocks that a rank starts and ends with, as functions of rank, number of ranks and root, in their
    order in its arrays.
    reduces: a rank ends with the reduction of all ranks' blocks, and all ranks must have the same blocks; otherwise
    each block is copied from the rank that has it.
    bus_factor: the ratio of busbw to algbw, as a function of the number of ranks, as in nccl-tests.
    mirror: the collective that results when plans of this one are played backwards.
    uneven: instead of blocks, every pair of ranks exchanges its own number of rows.
    """

    name: str
    blocks: Callable[[int], int]
    before: Callable[[int, int, int], Sequence[int]]
    after: Callable[[int, int, int], Sequence[int]]
    reduces: bool = False
    bus_factor: Callable[[int], float] = lambda ranks: (ranks - 1) / ranks
    mirror: Collective | None = None
    uneven: bool = False
    _rules: list[tuple[str, AutoRule | None]] = field(default_factory=list, repr=False)

    @cached_property
    def algorithms(self) -> Algorithms:
        """The algorithms that implement this collective."""
        return Algorithms(self)

    def algorithm(
        self, *, channels: Pieces | None = None, chunks: Pieces | None = None
    ) -> Callable[[MakePlan], Algorithm]:
        """Decorate a planner to make it an algorithm of this collective; see `Algorithm` for the options."""
        return lambda make: Algorithm(self, make, channels, chunks, make.__name__, _source(make))

    def register(
        self,
        name: str,
        *,
        channels: Pieces | None = None,
        chunks: Pieces | None = None,
        auto: AutoRule | None = None,
    ) -> Callable[[MakePlanT], MakePlanT]:
        """Decorate a planner to register it under `name`; `auto` is the rule by which "auto" picks it."""

        def register_planner(make: MakePlanT) -> MakePlanT:
            self.add(name, Algorithm(self, make, channels, chunks, name, _source(make)), auto)
            return make

        return register_planner

    def register_reversed(
        self,
        name: str,
        make: MakePlan,
        *,
        channels: Pieces | None = None,
        chunks: Pieces | None = None,
        auto: AutoRule | None = None,
    ) -> None:
        """Register a planner of the mirrored collective, played backwards, with the same steps and bytes."""
        made = Algorithm(self, _play_backwards(make, self), channels, chunks, name, _source(make))
        self.add(name, made, auto)

    def add(self, name: str, algorithm: Algorithm | RowsAlgorithm, auto: AutoRule | None = None) -> None:
        """Register an algorithm under `name`; `register` does so for a planner function."""
        self.algorithms.register(name)(algorithm)
        self._rules.append((name, auto))

    def automatic(self, size_bytes: int, groups: Sequence[int]) -> str:
        """Return what `auto` picks: the first algorithm whose rule applies, or else the first one registered."""
        chosen = (name for name, rule in self._rules if rule is not None and rule(size_bytes, groups))
        return next(chosen, self._rules[0][0])

    def parts(self, size: int) -> int:
        """Return the number of blocks in a rank's larger array, input or output."""
        return _parts(self, size)

    def part(self, numel: int, size: int) -> int:
        """Convert the elements of a rank's larger array to those that `algorithm_selection.traffic` counts."""
        return numel // self.parts(size)

    def elements(self, numel: int, rank: int, size: int) -> tuple[int, int | None]:
        """Return the number of elements of a rank's input and of its output; None for the output if it is the input.

        `numel` counts the elements of the larger array.
        """
        before, after = (side(rank, size, 0) for side in (self.before, self.after))
        part = self.part(numel, size)
        return part * len(before), None if before == after else part * len(after)


@lru_cache(maxsize=1024)
def _parts(collective: Collective, size: int) -> int:
    sides = (collective.before, collective.after)
    return max(len(side(rank, size, 0)) for side in sides for rank in range(size))


def _not_a_collective(thing: object) -> str | None:
    return None if isinstance(thing, Collective) else "a Collective"


COLLECTIVES: Registry[Collective] = Registry("collective", PACKAGE, ENTRY_POINTS, _not_a_collective)


def collective_of(collective: str | Collective) -> Collective:
    """Return a collective by name or FILE.py:NAME, or the Collective itself. Raises PluginError if unknown."""
    return COLLECTIVES.find(collective) if isinstance(collective, str) else collective


def algorithm_of(collective: str | Collective, algorithm: str | Algorithm) -> Algorithm:
    """Return an algorithm by name or FILE.py:NAME, or an Algorithm for this collective. Raises PluginError."""
    known = collective_of(collective)
    if isinstance(algorithm, Algorithm):
        return algorithm.serving(known)
    found: Algorithm = known.algorithms.find(algorithm)
    return found


def rows_algorithm_of(collective: str | Collective, algorithm: str | RowsAlgorithm) -> RowsAlgorithm:
    """Return an algorithm of a collective with uneven rows, as `algorithm_of` does."""
    if isinstance(algorithm, RowsAlgorithm):
        return algorithm
    found: RowsAlgorithm = collective_of(collective).algorithms.find(algorithm)
    return found


# up to this size `auto` minimises steps, not bytes
SMALL_BYTES = 64 * 1024

Ranks = Callable[[int, int, int], Sequence[int]]


def _all(rank: int, size: int, root: int) -> Sequence[int]:
    return range(size)


def _own(rank: int, size: int, root: int) -> Sequence[int]:
    return (rank,)


def _whole(rank: int, size: int, root: int) -> Sequence[int]:
    return (0,)


def _at_root(blocks: Ranks) -> Ranks:
    return lambda rank, size, root: blocks(rank, size, root) if rank == root else ()


def _register(collective: Collective) -> Collective:
    return COLLECTIVES.register(collective.name)(collective)


ALL_REDUCE = _register(Collective("all_reduce", lambda n: 1, _whole, _whole, True, lambda n: 2 * (n - 1) / n))
ALL_GATHER = _register(Collective("all_gather", lambda n: n, _own, _all))
REDUCE_SCATTER = _register(Collective("reduce_scatter", lambda n: n, _all, _own, True, mirror=ALL_GATHER))
ALL_TO_ALL = _register(
    Collective(
        "all_to_all",
        lambda n: n * n,
        lambda rank, n, root: range(rank * n, (rank + 1) * n),
        lambda rank, n, root: range(rank, n * n, n),
    )
)
ALL_TO_ALL_V = _register(replace(ALL_TO_ALL, name="all_to_all_v", uneven=True, _rules=[]))
BROADCAST = _register(Collective("broadcast", lambda n: 1, _at_root(_whole), _whole, False, lambda n: 1.0))
REDUCE = _register(
    Collective("reduce", lambda n: 1, _whole, _at_root(_whole), True, lambda n: 1.0, BROADCAST)
)
SCATTER = _register(Collective("scatter", lambda n: n, _at_root(_all), _own))
GATHER = _register(Collective("gather", lambda n: n, _own, _at_root(_all), mirror=SCATTER))
SENDRECV = _register(
    Collective("sendrecv", lambda n: n, _own, lambda rank, n, root: ((rank - 1) % n,), False, lambda n: 1.0)
)


def small(size_bytes: int, groups: Sequence[int]) -> bool:
    """Return whether the array is so small that few steps matter more than few bytes."""
    return size_bytes <= SMALL_BYTES


def large(size_bytes: int, groups: Sequence[int]) -> bool:
    """Return whether the array is not `small`."""
    return not small(size_bytes, groups)


def large_across(size_bytes: int, groups: Sequence[int]) -> bool:
    """Return whether the array is large and ranks are in several buildings."""
    return large(size_bytes, groups) and len(set(groups)) > 1


def large_inside(size_bytes: int, groups: Sequence[int]) -> bool:
    """Return whether the array is large and ranks are in one building."""
    return large(size_bytes, groups) and len(set(groups)) == 1


def small_across(size_bytes: int, groups: Sequence[int]) -> bool:
    """Return whether the per-rank blocks are so small that the number of messages between buildings matters."""
    return len(set(groups)) > 1 and size_bytes // len(groups) <= SMALL_BYTES // 16

"""What collectives there are, and by which algorithms: each registers where it stands, a file of one's own brings more.

A `Collective` says what each rank has before and after; an `Algorithm` makes each rank's plan of how it gets there.
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
PACKAGE = "testbed.comm.collectives.algorithms"  # whose modules register what the testbed has itself
ENTRY_POINTS, ALGORITHM_ENTRY_POINTS = "testbed.collectives", "testbed.collective_algorithms"


class PlanRequest(NamedTuple):
    """What a plan is for: this rank, the building of each rank, the root where there is one, channels or chunks."""

    rank: int
    groups: tuple[int, ...]
    root: int = 0
    pieces: int = 1

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.groups)


class Pieces(NamedTuple):
    """In how many parts an array goes: as many as have `least_bytes` each, `most` of them."""

    most: int
    least_bytes: int

    def of(self, size_bytes: int) -> int:
        """For so many bytes; 1 at the least."""
        return max(1, min(self.most, size_bytes // self.least_bytes))


MakePlan = Callable[[PlanRequest], Plan]
MakePlanT = TypeVar("MakePlanT", bound=Callable[..., Plan])
AutoRule = Callable[[int, Sequence[int]], bool]
"""Whether `auto` takes an algorithm, by size in bytes, as `catalogue.traffic` counts it, and the ranks' buildings."""


@dataclass(frozen=True, eq=False)
class Algorithm:
    """How a collective is done. Called with a PlanRequest, it makes that rank's plan.

    channels: every block is cut, and the parts go on independently (`plan.in_channels`), by the bytes of the whole
    array over the number of ranks. chunks: the plan itself makes so many (`PlanRequest.pieces`), by the bytes of the
    whole array. Neither: the array goes in one piece. source: the file and line where it stands.
    """

    collective: Collective
    make: MakePlan
    channels: Pieces | None = None
    chunks: Pieces | None = None
    name: str = ""
    source: tuple[Path, int] = (Path(), 0)

    def __call__(self, request: PlanRequest) -> Plan:
        """This rank's plan, cached. PluginError where it raises, or makes none."""
        return _plan(self, request)

    def pieces(self, size_bytes: int, ranks: int) -> int:
        """Channels or chunks for an array of this size, as `catalogue.traffic` counts it."""
        whole_bytes = size_bytes * self.collective.blocks(ranks)
        if self.channels is not None:
            return self.channels.of(whole_bytes // ranks)
        return 1 if self.chunks is None else self.chunks.of(whole_bytes)

    def serving(self, collective: Collective) -> Algorithm:
        """The same for the collective that is this one's played backwards; itself for its own."""
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


@lru_cache(maxsize=128)
def _reversed(algorithm: Algorithm, collective: Collective) -> Algorithm:
    def make(request: PlanRequest) -> Plan:
        return reverse(algorithm.make(request), collective.name.replace("_", "-"), collective.reduces)

    return replace(algorithm, collective=collective, make=make)


@dataclass(frozen=True)
class RowsAlgorithm:
    """How rows travel whose number the receivers do not know: `algorithms.all_to_all_v.Exchange` carries it out.

    sent: how many rows travel where there are `count` to be sent, of which nobody has more than `most` for anybody.
    concurrency: with so many peers at a time. ahead: `sent` is the same for any count, so that receivers need not
    know it first. told: they know `count` from an exchange before, so that no counts travel; then all rows do.
    """

    sent: Callable[[int, int], int]
    concurrency: int = 8
    ahead: bool = False
    told: bool = False

    @property
    def pads(self) -> bool:
        """Whether more travels than there is."""
        return self.ahead and not self.told


class Algorithms(Registry[Any]):
    """Those of one collective, by name: an Algorithm each; of one with uneven rows a RowsAlgorithm."""

    def __init__(self, collective: Collective) -> None:
        what = f"{collective.name} algorithm"
        self.collective = collective
        super().__init__(what, PACKAGE, ALGORITHM_ENTRY_POINTS, self._misfit, f"{collective.name}.")

    def _misfit(self, thing: object) -> str | None:
        if self.collective.uneven:
            return None if isinstance(thing, RowsAlgorithm) else "a RowsAlgorithm"
        fitting = (self.collective, self.collective.mirror)
        if isinstance(thing, Algorithm) and any(thing.collective is one for one in fitting):
            return None
        names = " or ".join(one.name for one in fitting if one is not None)
        return f"an algorithm of {names}, as its `algorithm` decorator makes one"

    def has(self, name: str) -> bool:
        """Whether `find` would find it."""
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
    """A collective operation, by what ranks have of one array, cut in equal blocks, before and after it.

    blocks: how many, by the number of ranks. before, after: by rank, number of ranks and root, the blocks that a rank
    has and those that it ends with, in the order in which they lie in its arrays. reduces: what a rank ends with is
    the reduction of what all had, who must all have the same blocks; else each block is copied from where it is.
    bus_factor: busbw over algbw, by the number of ranks, as nccl-tests have it. mirror: the collective whose plans are
    this one's when they are played backwards. uneven: in place of blocks every pair of ranks has rows of their number.
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
        """By which it can be done."""
        return Algorithms(self)

    def algorithm(
        self, *, channels: Pieces | None = None, chunks: Pieces | None = None
    ) -> Callable[[MakePlan], Algorithm]:
        """Decorate a function that makes plans: an algorithm of this collective; see there for what it goes in."""
        return lambda make: Algorithm(self, make, channels, chunks, make.__name__, _source(make))

    def register(
        self,
        name: str,
        *,
        channels: Pieces | None = None,
        chunks: Pieces | None = None,
        auto: AutoRule | None = None,
    ) -> Callable[[MakePlanT], MakePlanT]:
        """Decorate a function that makes plans: it goes by this name from now on, and `auto` takes it by a rule."""

        def keep(make: MakePlanT) -> MakePlanT:
            self.add(name, Algorithm(self, make, channels, chunks, name, _source(make)), auto)
            return make

        return keep

    def add(self, name: str, algorithm: Algorithm | RowsAlgorithm, auto: AutoRule | None = None) -> None:
        """An algorithm goes by this name from now on; see `register`, which makes one of a function."""
        self.algorithms.register(name)(algorithm)
        self._rules.append((name, auto))

    def automatic(self, size_bytes: int, groups: Sequence[int]) -> str:
        """What `auto` takes: the first whose rule holds, or the first of all that registered."""
        chosen = (name for name, rule in self._rules if rule is not None and rule(size_bytes, groups))
        return next(chosen, self._rules[0][0])

    def parts(self, size: int) -> int:
        """Blocks of a rank's larger array, input or output."""
        return _parts(self, size)

    def part(self, numel: int, size: int) -> int:
        """Elements as `catalogue.traffic` counts them, by those of a rank's larger array."""
        return numel // self.parts(size)

    def elements(self, numel: int, rank: int, size: int) -> tuple[int, int | None]:
        """Of a rank's input, and of its output, None where that is the input; numel: of the larger one."""
        before, after = (side(rank, size, 0) for side in (self.before, self.after))
        part = self.part(numel, size)
        return part * len(before), None if before == after else part * len(after)


@lru_cache(maxsize=1024)
def _parts(collective: Collective, size: int) -> int:
    sides = (collective.before, collective.after)
    return max(len(side(rank, size, 0)) for side in sides for rank in range(size))


def _no_collective(thing: object) -> str | None:
    return None if isinstance(thing, Collective) else "a Collective"


COLLECTIVES: Registry[Collective] = Registry("collective", PACKAGE, ENTRY_POINTS, _no_collective)


def collective_of(collective: str | Collective) -> Collective:
    """By name, or FILE.py:NAME; one that is there already, itself. PluginError."""
    return COLLECTIVES.find(collective) if isinstance(collective, str) else collective


def algorithm_of(collective: str | Collective, algorithm: str | Algorithm) -> Algorithm:
    """By names, or FILE.py:NAME; one that is there already, itself. PluginError."""
    known = collective_of(collective)
    if isinstance(algorithm, Algorithm):
        return algorithm.serving(known)
    found: Algorithm = known.algorithms.find(algorithm)
    return found


def rows_algorithm_of(collective: str | Collective, algorithm: str | RowsAlgorithm) -> RowsAlgorithm:
    """The same of a collective with uneven rows."""
    if isinstance(algorithm, RowsAlgorithm):
        return algorithm
    found: RowsAlgorithm = collective_of(collective).algorithms.find(algorithm)
    return found


# what `auto` takes for small, where steps count and not bytes
SMALL_BYTES = 64 * 1024

Ranks = Callable[[int, int, int], Sequence[int]]


def _one(size: int) -> int:
    return 1


def _each(size: int) -> int:
    return size


def _pairs(size: int) -> int:
    return size * size


def _all(rank: int, size: int, root: int) -> Sequence[int]:
    return range(size)


def _own(rank: int, size: int, root: int) -> Sequence[int]:
    return (rank,)


def _whole(rank: int, size: int, root: int) -> Sequence[int]:
    return (0,)


def _from_own(rank: int, size: int, root: int) -> Sequence[int]:
    return range(rank * size, (rank + 1) * size)


def _for_own(rank: int, size: int, root: int) -> Sequence[int]:
    return range(rank, size * size, size)


def _left(rank: int, size: int, root: int) -> Sequence[int]:
    return ((rank - 1) % size,)


def _at_root(blocks: Ranks) -> Ranks:
    return lambda rank, size, root: blocks(rank, size, root) if rank == root else ()


def _one_way(ranks: int) -> float:
    return 1.0


def _there_and_back(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


def _kept(collective: Collective) -> Collective:
    return COLLECTIVES.register(collective.name)(collective)


ALL_REDUCE = _kept(Collective("all_reduce", _one, _whole, _whole, True, _there_and_back))
ALL_GATHER = _kept(Collective("all_gather", _each, _own, _all))
REDUCE_SCATTER = _kept(Collective("reduce_scatter", _each, _all, _own, True, mirror=ALL_GATHER))
ALL_TO_ALL = _kept(Collective("all_to_all", _pairs, _from_own, _for_own))
ALL_TO_ALL_V = _kept(Collective("all_to_all_v", _pairs, _from_own, _for_own, uneven=True))
BROADCAST = _kept(Collective("broadcast", _one, _at_root(_whole), _whole, False, _one_way))
REDUCE = _kept(Collective("reduce", _one, _whole, _at_root(_whole), True, _one_way, BROADCAST))
SCATTER = _kept(Collective("scatter", _each, _at_root(_all), _own))
GATHER = _kept(Collective("gather", _each, _own, _at_root(_all), mirror=SCATTER))
SENDRECV = _kept(Collective("sendrecv", _each, _own, _left, False, _one_way))


def small(size_bytes: int, groups: Sequence[int]) -> bool:
    """Few steps matter more than few bytes."""
    return size_bytes <= SMALL_BYTES


def large(size_bytes: int, groups: Sequence[int]) -> bool:
    """The reverse."""
    return not small(size_bytes, groups)


def large_across(size_bytes: int, groups: Sequence[int]) -> bool:
    """Large, and ranks are in several buildings."""
    return large(size_bytes, groups) and len(set(groups)) > 1


def large_inside(size_bytes: int, groups: Sequence[int]) -> bool:
    """Large, and ranks are in one building."""
    return large(size_bytes, groups) and len(set(groups)) == 1


def small_across(size_bytes: int, groups: Sequence[int]) -> bool:
    """Blocks for one rank are so small that the messages between buildings count."""
    return len(set(groups)) > 1 and size_bytes // len(groups) <= SMALL_BYTES // 16

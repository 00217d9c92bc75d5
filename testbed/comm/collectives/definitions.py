"""The collectives that the testbed has: what each rank has of an array before and after.

n is the number of ranks. all_to_all: block s * n + d goes from rank s to rank d.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from testbed.comm.collectives.registry import COLLECTIVES, Collective

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

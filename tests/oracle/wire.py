"""Bytes that collectives put on the wire, inside buildings and between them, by each algorithm's formula.

n is the number of members, B the bytes of a rank's larger array, b the block B / n. Blocks are taken as equal, so a sum
may be off by an element for each message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

SMALL_BYTES = 64 * 1024
UNEVEN = ("late_counts", "late_counts_at_once", "told_counts", "padded")


class Payload(NamedTuple):
    """Bytes inside buildings and between them, and how many messages carry them."""

    inside: float
    across: float
    messages: int


Sent = tuple[int, int, float]
"""From which member to which, how many bytes."""


def payload(
    collective: str, algorithm: str, size: float, buildings: Sequence[int], itemsize: int = 4
) -> Payload | None:
    """Of one collective; None of an algorithm that the oracle has no formula for.

    Args:
        collective: Its name.
        algorithm: Its name; "auto" for the testbed's rule.
        size: Bytes of a rank's larger array.
        buildings: Of each member.
        itemsize: Bytes of an element.
    """
    if len(buildings) == 1:
        return Payload(0.0, 0.0, 0)
    if algorithm == "auto":
        algorithm = automatic(collective, size, buildings)
    gather = _GATHERS.get(_mirrored(collective, algorithm))
    sends: Iterator[Sent]
    if collective in ("all_gather", "reduce_scatter") and gather is not None:
        sends = gather(size, buildings)
    elif collective == "all_reduce" and algorithm in ("ring", "bidirectional_ring"):
        sends = _twice(_ring(size, buildings))
    elif collective == "all_reduce" and algorithm == "halving_doubling":
        sends = _twice(_digits(size, buildings, near_grows=False))
    elif collective == "all_reduce" and algorithm in ("hierarchical", "hierarchical_tree"):
        return _two_tiers(size, buildings)
    elif collective == "all_to_all" and algorithm in ("direct", "pairwise", "hierarchical"):
        sends = (_by_collectors if algorithm == "hierarchical" else _to_each)(size, buildings)
    elif collective == "all_to_all_v" and algorithm in UNEVEN:
        sends = _uneven(size, itemsize, algorithm, len(buildings))
    elif collective in ("gather", "scatter") and algorithm == "direct":
        n = len(buildings)
        sends = ((0, member, size / n) for member in range(1, n))
    elif collective in ("broadcast", "reduce") and algorithm == "chain":
        sends = ((member, member + 1, size) for member in range(len(buildings) - 1))
    elif collective in ("broadcast", "reduce") and algorithm == "binomial":
        # a member's parent has its lowest bit less
        sends = ((member & (member - 1), member, size) for member in range(1, len(buildings)))
    else:
        return None
    return _sum(sends, buildings)


def automatic(collective: str, size: float, buildings: Sequence[int]) -> str:
    """What "auto" takes: few steps for little, few bytes across for much."""
    several, small = len(set(buildings)) > 1, size <= SMALL_BYTES
    if collective == "all_reduce":
        return "halving_doubling" if small else "hierarchical" if several else "ring"
    if collective in ("all_gather", "reduce_scatter"):
        few = {"all_gather": "far_first", "reduce_scatter": "near_first"}[collective]
        return few if small else "hierarchical" if several else "ring"
    if collective == "all_to_all":
        return "hierarchical" if several and size // len(buildings) <= SMALL_BYTES // 16 else "direct"
    if collective == "all_to_all_v":
        return "late_counts"
    if collective in ("gather", "scatter"):
        return "binomial" if small else "direct"
    return "binomial" if small else "chain"


def _sum(sends: Iterator[Sent], buildings: Sequence[int]) -> Payload:
    inside = across = 0.0
    messages = 0
    for here, there, size in sends:
        messages += 1
        if buildings[here] == buildings[there]:
            inside += size
        else:
            across += size
    return Payload(inside, across, messages)


def _twice(sends: Iterator[Sent]) -> Iterator[Sent]:
    """A reduce-scatter is an all-gather played backwards, and an all-reduce is one and then the other."""
    for here, there, size in sends:
        yield here, there, size
        yield there, here, size


def _mirrored(collective: str, algorithm: str) -> str:
    """A reduce-scatter that has the far exchange first is an all-gather backwards that has it last."""
    turned = {"near_first": "far_first", "far_first": "near_first"}
    return turned.get(algorithm, algorithm) if collective == "reduce_scatter" else algorithm


def _ring(size: float, buildings: Sequence[int]) -> Iterator[Sent]:
    """Each member sends n - 1 blocks to the next."""
    n = len(buildings)
    for member in range(n):
        yield member, (member + 1) % n, size * (n - 1) / n


def _digits(size: float, buildings: Sequence[int], near_grows: bool) -> Iterator[Sent]:
    """Exchange all that a member has with f - 1 others for each prime factor f of n; then it has f times as much.

    near_grows: the nearest come first, so that the farthest exchange moves most.
    """
    n, rest, factors = len(buildings), len(buildings), []
    for factor in range(2, n + 1):
        while rest % factor == 0:
            factors.append(factor)
            rest //= factor
    distances, distance = [], 1
    for factor in factors:
        distances.append((distance, factor))
        distance *= factor
    blocks = 1
    for apart, factor in distances if near_grows else reversed(distances):
        for member in range(n):
            digit = member // apart % factor
            for other in range(factor):
                if other != digit:
                    yield member, member + (other - digit) * apart, size * blocks / n
        blocks *= factor


def _bruck(size: float, buildings: Sequence[int]) -> Iterator[Sent]:
    n, distance = len(buildings), 1
    while distance < n:
        for member in range(n):
            yield member, (member - distance) % n, size / n * min(distance, n - distance)
        distance *= 2


def _to_each(size: float, buildings: Sequence[int]) -> Iterator[Sent]:
    n = len(buildings)
    for here in range(n):
        for there in range(n):
            if here != there:
                yield here, there, size / n


def _uneven(size: float, itemsize: int, algorithm: str, ranks: int) -> Iterator[Sent]:
    """Each rank has as many elements for each as are drawn by its number, the ranks and the most that there may be.

    A count of 8 bytes goes ahead, but where it is known; "padded" sends the most to everybody.
    """
    most = round(size / itemsize) // ranks
    for here in range(ranks):
        draw = Random(f"{here}/{ranks}/{most}")
        for there in range(ranks):
            count = draw.randint(0, most)
            if here != there:
                rows = most if algorithm == "padded" else count
                yield here, there, itemsize * rows + (0 if algorithm == "told_counts" else 8)


def _across_once(size: float, buildings: Sequence[int]) -> Iterator[Sent]:
    """Each block goes once into every other building; rings inside spread all: a member of m passes on all but its own.

    In all m - 1 times B move inside a building of m.
    """
    n = len(buildings)
    members = _members(buildings)
    for own in members:
        for member in own:
            for other in members:
                if other is not own:
                    yield member, other[0], size / n
        for member in own[1:]:
            yield own[0], member, size


def _by_collectors(size: float, buildings: Sequence[int]) -> Iterator[Sent]:
    """What a building has for a rank of another is first brought to one of its own, and crosses from there."""
    n = len(buildings)
    members = _members(buildings)
    place = {member: position for own in members for position, member in enumerate(own)}
    for own in members:
        for here in own:
            for there in range(n):
                collector = here if there in own else own[place[there] % len(own)]
                if collector != here:
                    yield here, collector, size / n
                if there != collector:
                    yield collector, there, size / n


def _two_tiers(size: float, buildings: Sequence[int]) -> Payload:
    """Rings inside, 2 B (m - 1) in a building of m; across 2 B (g - 1) in all for g buildings."""
    members = _members(buildings)
    inside = sum(2 * size * (len(own) - 1) for own in members)
    messages = sum(2 * len(own) * (len(own) - 1) for own in members) + 2 * len(buildings) * len(members)
    return Payload(inside, 2 * size * (len(members) - 1), messages)


def _members(buildings: Sequence[int]) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for member, building in enumerate(buildings):
        found.setdefault(building, []).append(member)
    return list(found.values())


_GATHERS = {
    "ring": _ring,
    "bidirectional_ring": _ring,
    "near_first": lambda size, buildings: _digits(size, buildings, near_grows=True),
    "far_first": lambda size, buildings: _digits(size, buildings, near_grows=False),
    "bruck": _bruck,
    "direct": _to_each,
    "hierarchical": _across_once,
}

"""How arrays are cut: into chunks as even as possible, and into the pieces that several cuts have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


def even_bounds(numel: int, parts: int) -> list[int]:
    """`parts` + 1 offsets from 0 to `numel`; part i is [bounds[i], bounds[i + 1]), the first ones an element longer."""
    least, longer = divmod(numel, parts)
    return [index * least + min(index, longer) for index in range(parts + 1)]


@dataclass(frozen=True)
class Segment:
    """Elements [start, end) of an array, and the ranks, one of each group, whose shards hold them."""

    start: int
    end: int
    owners: tuple[int, ...]


def members_of(groups: Sequence[int]) -> list[list[int]]:
    """The ranks of each group, groups in the order of their first rank."""
    found: dict[int, list[int]] = {}
    for rank, group in enumerate(groups):
        found.setdefault(group, []).append(rank)
    return list(found.values())


def segments(numel: int, members: Sequence[Sequence[int]]) -> list[Segment]:
    """The least common refinement of every group's shards: within a segment, each group has one owner.

    A group of m ranks holds m shards of the array, cut by `even_bounds`. Groups of equal size have the same shards, so
    there are as many segments as ranks in a group; in general up to the number of ranks less that of groups plus one.
    """
    cuts = [even_bounds(numel, len(ranks)) for ranks in members]
    edges = sorted({edge for cut in cuts for edge in cut})
    found = []
    positions = [0] * len(members)
    for start, end in pairwise(edges):
        for group, cut in enumerate(cuts):
            while cut[positions[group] + 1] <= start:
                positions[group] += 1
        owners = tuple(ranks[position] for ranks, position in zip(members, positions, strict=True))
        found.append(Segment(start, end, owners))
    return found

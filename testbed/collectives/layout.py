"""Who owns which part of a vector. Pure arithmetic, shared by the algorithms and by the byte formulas."""

from __future__ import annotations

from collections.abc import Sequence


def chunk_bounds(size: int, parts: int) -> list[tuple[int, int]]:
    """`parts` ranges (from, to) that cover `size` elements; the first `size % parts` are one element longer."""
    base, longer = divmod(size, parts)
    starts = [part * base + min(part, longer) for part in range(parts + 1)]
    return list(zip(starts[:-1], starts[1:], strict=True))


def members_by_group(groups: Sequence[int]) -> dict[int, list[int]]:
    """Ranks of each group, in rank order; groups in the order of their first rank. `groups[rank]` is a rank's group."""
    members: dict[int, list[int]] = {}
    for rank, group in enumerate(groups):
        members.setdefault(group, []).append(rank)
    return members


def shared_segments(size: int, buildings: Sequence[Sequence[int]]) -> list[tuple[int, int, list[int]]]:
    """Cut `size` elements at every chunk boundary of any building.

    Returns (from, to, owners): owners[i] is the rank of buildings[i] whose chunk holds the segment. Segments without
    elements are left out.
    """
    layouts = [chunk_bounds(size, len(ranks)) for ranks in buildings]
    cuts = sorted({bound for layout in layouts for bounds in layout for bound in bounds})
    segments = []
    for low, high in zip(cuts[:-1], cuts[1:], strict=True):
        owners = [
            next(
                rank for rank, (start, end) in zip(ranks, layout, strict=True) if start <= low and high <= end
            )
            for ranks, layout in zip(buildings, layouts, strict=True)
        ]
        segments.append((low, high, owners))
    return segments

"""How many payload bytes each algorithm sends from whom to whom: closed formulas, exact for uneven chunks too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from testbed.collectives.layout import chunk_bounds, members_by_group, shared_segments

ALL_REDUCE_ALGORITHMS = ("ring", "hierarchical")


def traffic(algorithm: str, numel: int, itemsize: int, groups: Sequence[int]) -> dict[tuple[int, int], int]:
    """Payload bytes per (sender, receiver) of one all-reduce of `numel` elements; `groups[rank]` is a rank's building.

    ValueError for an unknown algorithm.
    """
    sent: Counter[tuple[int, int]] = Counter()
    if algorithm == "ring":
        _add_ring(sent, list(range(len(groups))), numel)
    elif algorithm == "hierarchical":
        buildings = list(members_by_group(groups).values())
        for ranks in buildings:
            _add_ring(sent, ranks, numel)
        if len(buildings) > 1:
            for low, high, owners in shared_segments(numel, buildings):
                _add_ring(sent, owners, high - low)
    else:
        raise ValueError(
            f"unknown algorithm {algorithm!r}, expected one of {', '.join(ALL_REDUCE_ALGORITHMS)}"
        )
    return {ends: count * itemsize for ends, count in sent.items() if count}


def _add_ring(sent: Counter[tuple[int, int]], ranks: Sequence[int], numel: int) -> None:
    """A ring's i-th rank sends all chunks but its own, then all but its right neighbour's: 2N - c[i] - c[i+1]."""
    n = len(ranks)
    if n == 1:
        return
    sizes = [high - low for low, high in chunk_bounds(numel, n)]
    for i, rank in enumerate(ranks):
        right = (i + 1) % n
        sent[rank, ranks[right]] += 2 * numel - sizes[i] - sizes[right]


def across_buildings(sent: Mapping[tuple[int, int], int], groups: Sequence[int]) -> int:
    """The part of a traffic matrix that goes from one building to another, all directions together."""
    return sum(count for (here, there), count in sent.items() if groups[here] != groups[there])


def wan_bytes(algorithm: str, numel: int, itemsize: int, groups: Sequence[int]) -> int:
    """Payload bytes between buildings of one all-reduce, all directions together."""
    return across_buildings(traffic(algorithm, numel, itemsize, groups), groups)

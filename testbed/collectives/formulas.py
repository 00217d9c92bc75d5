"""Payload bytes that each collective puts on the wire, from sizes alone; see the algorithms' docstrings for why.

`traffic` is per ordered pair of ranks (source, destination), without pairs that send nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from testbed.collectives.chunks import even_bounds, members_of, segments

Traffic = dict[tuple[int, int], int]


def traffic(algorithm: str, numel: int, itemsize: int, groups: Sequence[int]) -> Traffic:
    """An all-reduce of `numel` elements of `itemsize` bytes; `groups` has the building of each rank.

    Algorithms: "ring", "hierarchical". Raises ValueError for others.
    """
    if algorithm not in _ALL_REDUCE:
        raise ValueError(f"algorithm: got {algorithm!r}, expected one of {', '.join(_ALL_REDUCE)}")
    elements = _ALL_REDUCE[algorithm](numel, groups)
    return {pair: count * itemsize for pair, count in elements.items() if count}


def wan_bytes(algorithm: str, numel: int, itemsize: int, groups: Sequence[int]) -> int:
    """Of an all-reduce's traffic, all bytes between different buildings, all directions."""
    return between_groups(traffic(algorithm, numel, itemsize, groups), groups)


def between_groups(pairs: Mapping[tuple[int, int], int], groups: Sequence[int]) -> int:
    """The part of some traffic that goes between different groups, in bytes."""
    return sum(count for (source, target), count in pairs.items() if groups[source] != groups[target])


def reduce_scatter_traffic(output_numel: int, itemsize: int, size: int) -> Traffic:
    """A ring reduce-scatter: each rank sends the next all parts of its input but one."""
    return _to_next(size, [(size - 1) * output_numel * itemsize] * size)


def all_gather_traffic(input_numel: int, itemsize: int, size: int) -> Traffic:
    """A ring all-gather: each rank sends the next all parts of the output but one."""
    return _to_next(size, [(size - 1) * input_numel * itemsize] * size)


def broadcast_traffic(numel: int, itemsize: int, size: int, src: int) -> Traffic:
    """A binomial tree: the rank at place p from the root hears from place p without its lowest set bit."""
    return {
        ((src + (place & (place - 1))) % size, (src + place) % size): numel * itemsize
        for place in range(1, size)
        if numel
    }


def _to_next(size: int, counts: Sequence[int]) -> Traffic:
    """Traffic of a ring of all ranks; `counts[r]` is what rank r sends."""
    return {(rank, (rank + 1) % size): count for rank, count in enumerate(counts) if size > 1 and count}


def _ring_counts(numel: int, size: int) -> list[int]:
    """What the rank at each place of a ring all-reduce sends: twice all, less its own chunk and the next one's."""
    bounds = even_bounds(numel, size)
    chunks = [end - start for start, end in pairwise(bounds)]
    return [2 * numel - chunks[place] - chunks[(place + 1) % size] for place in range(size)]


def _ring(numel: int, groups: Sequence[int]) -> Traffic:
    size = len(groups)
    return _to_next(size, _ring_counts(numel, size))


def _hierarchical(numel: int, groups: Sequence[int]) -> Traffic:
    members = members_of(groups)
    rings = [(ranks, numel) for ranks in members]
    rings += [(list(segment.owners), segment.end - segment.start) for segment in segments(numel, members)]
    pairs: defaultdict[tuple[int, int], int] = defaultdict(int)
    for ranks, count in rings:
        if len(ranks) > 1:
            for place, sent in enumerate(_ring_counts(count, len(ranks))):
                pairs[ranks[place], ranks[(place + 1) % len(ranks)]] += sent
    return dict(pairs)


_ALL_REDUCE: dict[str, Callable[[int, Sequence[int]], Traffic]] = {
    "ring": _ring,
    "hierarchical": _hierarchical,
}

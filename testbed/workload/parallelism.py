"""Degrees of parallelism as a mesh of ranks, under torchtitan's names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput

REPLICATE, SHARD = "data_parallel_replicate", "data_parallel_shard"
CONTEXT, TENSOR, PIPELINE, EXPERT = (
    "context_parallel",
    "tensor_parallel",
    "pipeline_parallel",
    "expert_parallel",
)
# the ranks of `data_parallel_shard` that share an expert's parameters
EXPERT_SHARD = "expert_shard"
DIMENSIONS = (REPLICATE, PIPELINE, SHARD, CONTEXT, TENSOR)
"""Dimensions in the default order of rank numbers, outermost first; experts are within `data_parallel_shard`."""

_TRAFFIC = {
    REPLICATE: "all-reduces of gradients",
    SHARD: "all-gathers of parameters, reduce-scatters of gradients",
    EXPERT: "all-to-alls of tokens",
    CONTEXT: "keys and values round a ring",
    TENSOR: "all-reduces in every block",
}


class ParallelismError(BadInput, ValueError):
    """The error for degrees of parallelism that do not fit together."""


@dataclass(frozen=True)
class Mesh:
    """Ranks by their coordinates.

    Attributes:
        order: Dimensions, outermost first.
        degrees: Degree of every dimension, over accelerators.
        per_rank: Number of accelerators of a rank; these are the innermost ones.
        inside: Number of a dimension's accelerators that are in one rank.
        ranks: Rank at each coordinate, in mesh order.
    """

    order: tuple[str, ...]
    degrees: Mapping[str, int]
    per_rank: int
    inside: Mapping[str, int]
    ranks: tuple[int, ...]
    _groups: dict[tuple[str, ...], list[tuple[int, ...]]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @cached_property
    def outside(self) -> dict[str, int]:
        """The number of ranks that each dimension spans."""
        return {name: self.degrees[name] // self.inside[name] for name in self.order}

    @property
    def size(self) -> int:
        """The number of ranks."""
        return math.prod(self.outside.values())

    @property
    def within_ranks(self) -> list[str]:
        """Traffic between each rank's own accelerators, which no network carries, as "dimension degree (traffic)"."""
        inside = {**self.inside, EXPERT: math.gcd(self.degrees[EXPERT], self.inside[SHARD])}
        return [f"{name} {inside[name]} ({what})" for name, what in _TRAFFIC.items() if inside[name] > 1]

    @cached_property
    def _grid(self) -> NDArray[np.int64]:
        """The rank at each coordinate, with an axis for each dimension."""
        return np.array(self.ranks).reshape([self.outside[name] for name in self.order])

    def rank(self, coordinate: Mapping[str, int]) -> int:
        """Return the rank at these coordinates."""
        return int(self._grid[tuple(coordinate[name] for name in self.order)])

    @cached_property
    def coordinates(self) -> list[dict[str, int]]:
        """The coordinates of each rank."""
        numbers = np.array(np.unravel_index(np.argsort(self.ranks), self._grid.shape)).T.tolist()
        return [dict(zip(self.order, own, strict=True)) for own in numbers]

    def mappings(self) -> list[list[int]]:
        """Return the rank at each coordinate for the current order, and with each dimension outermost."""
        found = []
        for name in self.order:
            by_dimension = sorted(
                range(self.size), key=lambda number: (self.coordinates[number][name], number)
            )
            ranks = [0] * self.size
            for rank, coordinate in enumerate(by_dimension):
                ranks[coordinate] = rank
            found.append(ranks)
        return found

    def groups(self, *names: str) -> list[tuple[int, ...]]:
        """Return the groups of ranks that differ only in these dimensions, in mesh order.

        The result is empty if each group would be a single rank.
        """
        if names not in self._groups:
            self._groups[names] = self._grouped(names)
        return self._groups[names]

    def _grouped(self, names: Sequence[str]) -> list[tuple[int, ...]]:
        size = math.prod(self.outside[name] for name in names)
        axes = sorted(range(len(self.order)), key=lambda axis: self.order[axis] in names)
        groups = self._grid.transpose(axes).reshape(-1, size).tolist()
        return [tuple(members) for members in groups] if size > 1 else []


def check_product(
    degrees: Mapping[str, int], ranks: int, per_rank: int, order: Sequence[str] = DIMENSIONS
) -> None:
    """Raise ParallelismError unless the product of the degrees is the number of accelerators of all ranks.

    `order` is the order of dimensions in the message.
    """
    world = math.prod(degrees[name] for name in order)
    if world != ranks * per_rank:
        product = " x ".join(f"{name} {degrees[name]}" for name in order if degrees[name] > 1) or "1"
        raise ParallelismError(
            got=f"{product} = {world} accelerators",
            expected=f"{ranks * per_rank}: {ranks} ranks of {per_rank}",
        )


def make_mesh(
    degrees: Mapping[str, int],
    ranks: int,
    per_rank: int,
    order: Sequence[str] = DIMENSIONS,
    mapping: Sequence[int] = (),
) -> Mesh:
    """Return the mesh over this many ranks; recent meshes are cached.

    Args:
        degrees: Degree of every dimension, over accelerators.
        ranks: Number of ranks.
        per_rank: Accelerators of a rank.
        order: Dimensions, outermost first.
        mapping: Rank at each coordinate, in mesh order; by default 0, 1, 2 and so on.

    Raises:
        ParallelismError: If the product of degrees differs from ranks times accelerators per rank.
    """
    return _make_mesh(tuple(degrees.items()), ranks, per_rank, tuple(order), tuple(mapping))


@lru_cache(256)  # searches request a few distinct meshes many times
def _make_mesh(
    degree_items: tuple[tuple[str, int], ...],
    ranks: int,
    per_rank: int,
    order: tuple[str, ...],
    mapping: tuple[int, ...],
) -> Mesh:
    degrees = dict(degree_items)
    check_product(degrees, ranks, per_rank, order)
    inside, left = {}, per_rank
    for name in reversed(order):
        inside[name] = math.gcd(degrees[name], left)
        if inside[name] < min(degrees[name], left):
            raise ParallelismError(
                got=f"a rank has {per_rank} accelerators, of which {left} remain for {name} {degrees[name]}",
                expected="one to divide the other",
            )
        left //= inside[name]
    numbers = mapping or tuple(range(ranks))
    if sorted(numbers) != list(range(ranks)):
        raise ParallelismError(
            got=f"ranks of coordinates {list(numbers)}", expected=f"each of 0 to {ranks - 1} once"
        )
    return Mesh(order, degrees, per_rank, inside, numbers)

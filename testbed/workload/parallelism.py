"""Which rank has which part of the work: degrees of parallelism as a mesh of ranks. Names are torchtitan's."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from testbed.errors import BadInput

REPLICATE, SHARD = "data_parallel_replicate", "data_parallel_shard"
CONTEXT, TENSOR, PIPELINE, EXPERT = (
    "context_parallel",
    "tensor_parallel",
    "pipeline_parallel",
    "expert_parallel",
)
# ranks that share an expert's parameters: of `data_parallel_shard`, those with that one
EXPERT_SHARD = "expert_shard"
DIMENSIONS = (REPLICATE, PIPELINE, SHARD, CONTEXT, TENSOR)
"""Those that ranks are numbered by, outermost first as usual. Experts are spread within `data_parallel_shard`."""

_TRAFFIC = {
    REPLICATE: "all-reduces of gradients",
    SHARD: "all-gathers of parameters, reduce-scatters of gradients",
    EXPERT: "all-to-alls of tokens",
    CONTEXT: "keys and values round a ring",
    TENSOR: "all-reduces in every block",
}


class ParallelismError(BadInput, ValueError):
    """Degrees that do not fit; the message says which."""


@dataclass(frozen=True)
class Mesh:
    """Ranks by their coordinates. order: dimensions, outermost first. degrees: of all dimensions, over accelerators.

    A rank stands for `per_rank` accelerators, the innermost ones: `inside` is how many of a dimension's are in one
    rank, `outside` over how many ranks it goes. ranks: at the mesh's coordinates, in their order.
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
        """Over how many ranks each dimension goes."""
        return {name: self.degrees[name] // self.inside[name] for name in self.order}

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return math.prod(self.outside.values())

    @property
    def within_ranks(self) -> list[str]:
        """What each rank's accelerators send each other, which no network carries: dimension, degree, traffic."""
        inside = {**self.inside, EXPERT: math.gcd(self.degrees[EXPERT], self.inside[SHARD])}
        return [f"{name} {inside[name]} ({what})" for name, what in _TRAFFIC.items() if inside[name] > 1]

    def rank(self, coordinate: Mapping[str, int]) -> int:
        """The rank with these coordinates."""
        number = 0
        for name in self.order:
            number = number * self.outside[name] + coordinate[name]
        return self.ranks[number]

    def coordinates(self) -> Sequence[Mapping[str, int]]:
        """Coordinates by rank."""
        return self._coordinates

    @cached_property
    def _coordinates(self) -> list[dict[str, int]]:
        found: dict[int, dict[str, int]] = {}
        for numbers in itertools.product(*(range(self.outside[name]) for name in self.order)):
            coordinate = dict(zip(self.order, numbers, strict=True))
            found[self.rank(coordinate)] = coordinate
        return [found[rank] for rank in range(self.size)]

    def mappings(self) -> list[list[int]]:
        """Ranks of coordinates as they are, and as they would be with one or another dimension outermost."""
        coordinates = self.coordinates()
        found = []
        for name in self.order:
            turned = sorted(range(self.size), key=lambda number: (coordinates[number][name], number))
            ranks = [0] * self.size
            for rank, coordinate in enumerate(turned):
                ranks[coordinate] = rank
            found.append(ranks)
        return found

    def groups(self, *names: str) -> list[tuple[int, ...]]:
        """Ranks that differ in these dimensions alone, in the order of the mesh; none if they are in one rank."""
        if names not in self._groups:
            self._groups[names] = self._grouped(names)
        return self._groups[names]

    def _grouped(self, names: Sequence[str]) -> list[tuple[int, ...]]:
        if math.prod(self.outside[name] for name in names) == 1:
            return []
        found: dict[tuple[int, ...], list[int]] = {}
        for numbers in itertools.product(*(range(self.outside[name]) for name in self.order)):
            coordinate = dict(zip(self.order, numbers, strict=True))
            key = tuple(coordinate[name] for name in self.order if name not in names)
            found.setdefault(key, []).append(self.rank(coordinate))
        return [tuple(members) for members in found.values()]


def check_product(
    degrees: Mapping[str, int], ranks: int, per_rank: int, order: Sequence[str] = DIMENSIONS
) -> None:
    """ParallelismError unless degrees multiply to the accelerators of all ranks; order: as the message names them."""
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
    """The mesh over so many ranks. ParallelismError when degrees, ranks and accelerators per rank do not multiply.

    mapping: the rank at each coordinate of the mesh, in its order; by default rank 0 at the first, and so on. The same
    mesh for the same, of late.
    """
    return _made(tuple(degrees.items()), ranks, per_rank, tuple(order), tuple(mapping))


@lru_cache(256)  # searches ask for the same ones again and again
def _made(
    of_degrees: tuple[tuple[str, int], ...],
    ranks: int,
    per_rank: int,
    order: tuple[str, ...],
    mapping: tuple[int, ...],
) -> Mesh:
    degrees = dict(of_degrees)
    check_product(degrees, ranks, per_rank, order)
    inside, left = {}, per_rank
    for name in reversed(order):
        inside[name] = math.gcd(degrees[name], left)
        if inside[name] < min(degrees[name], left):
            raise ParallelismError(
                got=f"a rank has {per_rank} accelerators, of which {left} are left for {name} {degrees[name]}",
                expected="one to divide the other",
            )
        left //= inside[name]
    numbers = mapping or tuple(range(ranks))
    if sorted(numbers) != list(range(ranks)):
        raise ParallelismError(
            got=f"ranks of coordinates {list(numbers)}", expected=f"each of 0 to {ranks - 1} once"
        )
    return Mesh(order, degrees, per_rank, inside, numbers)

"""Algorithm selection: each algorithm's plan and traffic by name, the rule behind `auto`, and tuning tables.

A tuning table, from `testbed bench --tune`, records the fastest algorithm for each collective, number of ranks,
buildings and size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed.comm.collectives import registry
from testbed.comm.collectives.algorithms import all_gather, all_reduce, all_to_all, all_to_all_v, trees
from testbed.comm.collectives.plan import Plan
from testbed.comm.collectives.registry import (
    AUTO,
    COLLECTIVES,
    Algorithm,
    Collective,
    PlanRequest,
    algorithm_of,
    collective_of,
)
from testbed.plugins import Registry

Traffic = dict[tuple[int, int], int]

OWN = (registry, all_reduce, all_gather, trees, all_to_all, all_to_all_v)
"""Modules that register the built-in algorithms: importing them makes these known without scanning entry points."""


def plan_of(collective: str | Collective, algorithm: str | Algorithm, request: PlanRequest) -> Plan:
    """Return one rank's plan. Raise a PluginError that lists the known algorithms if this one is unknown."""
    return algorithm_of(collective, algorithm)(request)


def pieces_for(collective: str | Collective, algorithm: str | Algorithm, size_bytes: int, ranks: int) -> int:
    """Return the number of channels or chunks of an array; 1 for algorithms with neither. See `traffic` for sizes."""
    return algorithm_of(collective, algorithm).pieces(size_bytes, ranks)


def choose_algorithm(collective: str | Collective, size_bytes: int, groups: Sequence[int]) -> str:
    """Return what `algorithm="auto"` picks without a tuning table; sizes are those of `traffic`, in bytes.

    Small arrays use the fewest steps: halving_doubling, far_first (near_first played backwards), binomial trees. Large
    ones use rings, which keep every link between neighbours busy; with several buildings they use a hierarchy, which
    minimises the bytes that cross. All-to-all crosses hierarchically while blocks are small, and directly otherwise.
    """
    return collective_of(collective).automatic(size_bytes, groups)


def traffic(
    collective: str | Collective,
    algorithm: str | Algorithm,
    numel: int,
    itemsize: int,
    groups: Sequence[int],
    root: int = 0,
) -> Traffic:
    """Return payload bytes per ordered pair of ranks (source, target), without pairs that send nothing.

    Args:
        collective: Name or definition.
        algorithm: Name or definition; "auto" is what `choose_algorithm` picks.
        numel: Elements of the array in all_reduce, broadcast, reduce; of one rank's block in all_gather (its
            input), reduce_scatter (its output), gather, scatter and all_to_all (what it has for one rank); of a
            block in any other.
        itemsize: Bytes per element.
        groups: The building of each rank.
        root: The root rank, if the collective has one.

    Raises:
        PluginError: If the algorithm is unknown.
    """
    size, known = len(groups), collective_of(collective)
    if algorithm == AUTO:
        algorithm = known.automatic(numel * itemsize, groups)
    made = algorithm_of(known, algorithm)
    pairs: Traffic = {}
    bounds: list[int] = []
    for rank in range(size):
        plan = made(PlanRequest(rank, tuple(groups), root))
        bounds = bounds or plan.bounds(numel * known.blocks(size))
        for peer, count in plan.sent(bounds).items():
            pairs[rank, peer] = count * itemsize
    return pairs


def between_groups(pairs: Mapping[tuple[int, int], float], groups: Sequence[int]) -> int:
    """Return the bytes of this traffic that cross between different groups."""
    return round(sum(count for (source, target), count in pairs.items() if groups[source] != groups[target]))


def wan_bytes(
    collective: str | Collective, algorithm: str | Algorithm, numel: int, itemsize: int, groups: Sequence[int]
) -> int:
    """Return the bytes that a collective sends between different buildings, all directions together; see `traffic`."""
    return between_groups(traffic(collective, algorithm, numel, itemsize, groups), groups)


SCHEMA = 1


@dataclass(frozen=True)
class Entry:
    """One row of a tuning table: jobs of this shape use `algorithm` for up to `max_bytes` (None: any size)."""

    collective: str
    ranks: int
    buildings: int
    max_bytes: int | None
    algorithm: str


@dataclass(frozen=True)
class TuningTable:
    """Measured choices of algorithms. If none matches, the rule of `Collective.automatic` applies.

    size_scale: how many bytes each byte of an array represents, so that a scaled job chooses the same algorithm as the
    full-size one.
    """

    entries: tuple[Entry, ...] = ()
    size_scale: float = 1.0

    def choose(self, collective: str | Collective, size_bytes: int, groups: Sequence[int]) -> str:
        """Return the algorithm for an array of this size in bytes, as `traffic` counts it."""
        size_bytes = round(size_bytes * self.size_scale)
        known = collective_of(collective)
        name = collective if isinstance(collective, str) else known.name
        shape = (name, len(groups), len(set(groups)))
        for entry in self.entries:
            if (entry.collective, entry.ranks, entry.buildings) == shape and (
                entry.max_bytes is None or size_bytes <= entry.max_bytes
            ):
                return entry.algorithm
        return known.automatic(size_bytes, groups)

    def write(self, path: Path) -> None:
        """Write the table as JSON."""
        document = {"schema": SCHEMA, "entries": [asdict(entry) for entry in self.entries]}
        path.write_text(json.dumps(document, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> TuningTable:
        """Read a table from JSON.

        Raises OSError, or ValueError naming file, entry, field, value and what was expected.
        """
        try:
            document = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(
                f"{path}: expected JSON, as `testbed bench --tune` writes it ({error})"
            ) from None
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise ValueError(f"{path}: expected a tuning table of schema {SCHEMA}")
        entries = document.get("entries")
        if not isinstance(entries, list):
            raise ValueError(f"{path}: entries: got {entries!r}, expected a list")
        return cls(tuple(_entry(item, f"{path}: entries[{number}]") for number, item in enumerate(entries)))

    @classmethod
    def fastest(
        cls, times_s: Mapping[tuple[str, int, int], Mapping[int, Mapping[str, float]]]
    ) -> TuningTable:
        """Return a table of the fastest algorithm of each size, from times in seconds.

        Adjacent sizes with the same choice share an entry; the entry of the largest size has no upper limit.

        Args:
            times_s: Times by (collective, ranks, buildings), then size in bytes, then algorithm.
        """
        entries = []
        for (collective, ranks, buildings), sizes in times_s.items():
            choices = [(size, min(found, key=found.__getitem__)) for size, found in sorted(sizes.items())]
            for number, (size, algorithm) in enumerate(choices):
                last = number + 1 == len(choices)
                if last or choices[number + 1][1] != algorithm:
                    entries.append(Entry(collective, ranks, buildings, None if last else size, algorithm))
        return cls(tuple(entries))


def _entry(item: Any, where: str) -> Entry:
    if not isinstance(item, dict):
        raise ValueError(f"{where}: got {item!r}, expected an object")
    for field in ("ranks", "buildings", "max_bytes"):
        value = item.get(field)
        if not ((isinstance(value, int) and value > 0) or (field == "max_bytes" and value is None)):
            raise ValueError(f"{where}: {field}: got {value!r}, expected a whole number above 0")
    _check_name(item, "collective", COLLECTIVES, where)
    _check_name(item, "algorithm", collective_of(item["collective"]).algorithms, where)
    return Entry(**{field: item[field] for field in Entry.__dataclass_fields__})


def _check_name(item: dict[str, Any], field: str, known: Registry[Any], where: str) -> None:
    if (expected := known.expected(item.get(field))) is not None:
        raise ValueError(f"{where}: {field}: got {item.get(field)!r}, expected {expected}")

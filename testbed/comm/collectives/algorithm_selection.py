"""Algorithms by name: the plan that each makes, what it puts on the wire, which one `auto` takes."""

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
"""Modules that register what the testbed has itself: known with them, with no look at what is installed."""


def plan_of(collective: str | Collective, algorithm: str | Algorithm, request: PlanRequest) -> Plan:
    """One rank's plan. PluginError names the algorithms that there are."""
    return algorithm_of(collective, algorithm)(request)


def pieces_for(collective: str | Collective, algorithm: str | Algorithm, size_bytes: int, ranks: int) -> int:
    """In how many channels or chunks an array goes; 1 for algorithms that have neither. Sizes: see `traffic`."""
    return algorithm_of(collective, algorithm).pieces(size_bytes, ranks)


def choose_algorithm(collective: str | Collective, size_bytes: int, groups: Sequence[int]) -> str:
    """What `algorithm="auto"` takes where no tuning table says otherwise; sizes are those of `traffic`, in bytes.

    Small arrays go with the fewest steps: halving_doubling, far_first (near_first backwards), binomial trees. Large
    ones go by rings, which keep every link busy with neighbours; where there are several buildings, hierarchically, for
    then the least possible crosses. All-to-all crosses hierarchically while blocks are small, directly after that.
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
    """Payload bytes per ordered pair of ranks (source, target), without pairs that send nothing.

    numel: elements of the array in all_reduce, broadcast, reduce; of one rank's block in all_gather (its input),
    reduce_scatter (its output), gather, scatter and all_to_all (what it has for one rank); of a block in any other.
    groups: the building of each rank. "auto" is what `choose_algorithm` takes. PluginError for an algorithm that there
    is not.
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
    """The part of some traffic that goes between different groups, in bytes."""
    return round(sum(count for (source, target), count in pairs.items() if groups[source] != groups[target]))


def wan_bytes(
    collective: str | Collective, algorithm: str | Algorithm, numel: int, itemsize: int, groups: Sequence[int]
) -> int:
    """Of a collective's traffic (see `traffic`), all bytes between different buildings, all directions."""
    return between_groups(traffic(collective, algorithm, numel, itemsize, groups), groups)


SCHEMA = 1


@dataclass(frozen=True)
class Entry:
    """Up to `max_bytes` (None: any size) take this algorithm, with so many ranks in so many buildings."""

    collective: str
    ranks: int
    buildings: int
    max_bytes: int | None
    algorithm: str


@dataclass(frozen=True)
class TuningTable:
    """Measured choices. Where none fits, the rule of `Collective.choose_algorithm` holds.

    size_scale: how many bytes one of the arrays' stands for, so that a scaled job chooses as the real one would.
    """

    entries: tuple[Entry, ...] = ()
    size_scale: float = 1.0

    def choose(self, collective: str | Collective, size_bytes: int, groups: Sequence[int]) -> str:
        """The algorithm for an array of this size, as `catalogue.traffic` counts it, in bytes."""
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

    def to_document(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> TuningTable:
        """The inverse, after it went through JSON."""
        return cls(tuple(Entry(**entry) for entry in document["entries"]), document["size_scale"])

    def write(self, path: Path) -> None:
        """As JSON."""
        document = {"schema": SCHEMA, "entries": [asdict(entry) for entry in self.entries]}
        path.write_text(json.dumps(document, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> TuningTable:
        """The inverse of `write`. OSError, or ValueError naming file, entry, field, value and what was expected."""
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
        """From times by (collective, ranks, buildings), size in bytes and algorithm: the quickest of each size.

        Sizes next to each other with the same choice make one entry; the largest one's goes on for ever.
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

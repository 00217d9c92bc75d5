"""Max-min fair rates (Bertsekas and Gallager, "Data Networks", section 6.5.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.net.paths.network import PartShares

ALIKE = 1e-9  # relative difference below which shares of parts are equal
FEW = 24  # number of paths up to which plain Python is faster than NumPy

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Steps = tuple[tuple[int, float], ...]  # a path: its parts by number, and the load on each


class Paths(NamedTuple):
    """Paths as flat arrays.

    parts, loads: part number and load of each step of all paths. path: the step's path. many: number of paths.
    """

    parts: Indices
    loads: Floats
    path: Indices
    many: int


class GrowableArray:
    """An array with amortised appending; the first `many` elements are in use."""

    def __init__(self, kind: type) -> None:
        self.array: NDArray[Any] = np.zeros(16, dtype=kind)
        self.many = 0

    def add(self, values: Sequence[float]) -> None:
        """Append the values."""
        end = self.many + len(values)
        if end > len(self.array):
            self.array = np.concatenate([self.array, np.zeros(end, dtype=self.array.dtype)])
        self.array[self.many : end] = values
        self.many = end


class PathTable:
    """The paths of all connections as flat arrays, in the connections' order."""

    def __init__(self) -> None:
        self._parts, self._loads = GrowableArray(np.intp), GrowableArray(float)
        self._steps, self._first_step = GrowableArray(np.intp), GrowableArray(np.intp)  # per path
        self._paths, self._first_path = GrowableArray(np.intp), GrowableArray(np.intp)  # per connection

    def add(self, paths: Sequence[Mapping[int, float]]) -> None:
        """Append the paths of the next connection."""
        self._first_path.add([self._steps.many])
        self._paths.add([len(paths)])
        for path in paths:
            self._first_step.add([self._parts.many])
            self._steps.add([len(path)])
            self._parts.add(list(path))
            self._loads.add(list(path.values()))

    def of(self, numbers: Indices) -> tuple[Paths, Indices]:
        """Return these connections' paths and, per path, the index in `numbers` of its connection."""
        paths = self._paths.array[numbers]
        taken = _ranges(self._first_path.array[numbers], paths)
        steps = self._steps.array[taken]
        which = _ranges(self._first_step.array[taken], steps)
        path = np.repeat(np.arange(len(taken)), steps)
        owner = np.repeat(np.arange(len(numbers)), paths)
        return Paths(self._parts.array[which], self._loads.array[which], path, len(taken)), owner


def fair_rates(capacities: Mapping[str, float], paths: Sequence[PartShares]) -> list[float]:
    """Return the max-min fair rates of all paths at once, in bytes per second."""
    part = {name: number for number, name in enumerate(capacities)}
    laid = PathTable()
    laid.add([{part[name]: load for name, load in path.items()} for path in paths])
    all_paths, _ = laid.of(np.zeros(1, dtype=np.intp))
    found: list[float] = fair(np.array(list(capacities.values()), dtype=float), all_paths).tolist()
    return found


def fair(capacities: Floats, paths: Paths) -> Floats:
    """Return max-min fair rates: all paths grow evenly until a part is full, then the paths through it stop."""
    parts, loads, path, many = paths
    left = capacities
    rates = np.zeros(many)
    while len(path):
        through = np.bincount(parts, loads, minlength=len(left))
        shares = np.divide(left, through, out=np.full(len(left), math.inf), where=through > 0)
        rate = float(shares.min())
        full = shares <= rate * (1 + ALIKE)
        done = np.zeros(many, dtype=bool)
        done[path[full[parts]]] = True
        rates[done] = rate
        over = done[path]
        left = left - rate * np.bincount(parts[over], loads[over], minlength=len(left))
        parts, loads, path = parts[~over], loads[~over], path[~over]
    return rates


def fair_few(room: Sequence[float], least: Sequence[float], paths: Sequence[Steps]) -> list[float]:
    """Return the rates as `fair` does, from the remaining capacity of each part, but at least `least`."""
    rates = [0.0] * len(paths)
    left = {part: max(room[part], least[part]) for path in paths for part, _ in path}
    growing = [number for number, path in enumerate(paths) if path]
    while growing:
        through: dict[int, float] = {}
        for number in growing:
            for part, load in paths[number]:
                through[part] = through.get(part, 0.0) + load
        shares = {part: left[part] / load for part, load in through.items() if load > 0.0}
        rate = min(shares.values())
        most = rate * (1 + ALIKE)
        full = {part for part, share in shares.items() if share <= most}
        some, growing = growing, []
        for number in some:
            if full.isdisjoint([part for part, _ in paths[number]]):
                growing.append(number)
                continue
            rates[number] = rate
            for part, load in paths[number]:
                left[part] -= rate * load
    return rates


def _ranges(starts: Indices, counts: Indices) -> Indices:
    """Concatenate the ranges that start at `starts` and have `counts` elements."""
    ends = np.cumsum(counts)
    found: Indices = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(
        starts - (ends - counts), counts
    )
    return found

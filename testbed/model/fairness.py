"""Max-min fair rates (Bertsekas and Gallager, "Data Networks", section 6.5.2), of paths that are laid end to end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.paths.network import PartShares

ALIKE = 1e-9  # shares of parts that differ by less are one

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


class Paths(NamedTuple):
    """parts, loads: of each step of a path, by number, and what goes there. path: whose step it is. many: paths."""

    parts: Indices
    loads: Floats
    path: Indices
    many: int

    def only(self, some: NDArray[np.bool_]) -> Paths:
        """Those of the paths that are marked, numbered anew."""
        numbers = np.cumsum(some) - 1
        mine = some[self.path]
        return Paths(self.parts[mine], self.loads[mine], numbers[self.path[mine]], int(some.sum()))


def fair_rates(capacities: Mapping[str, float], paths: Sequence[PartShares]) -> list[float]:
    """Of all of these at once, in bytes per second."""
    part = {name: number for number, name in enumerate(capacities)}
    laid = Paths(
        np.array([part[name] for path in paths for name in path], dtype=np.intp),
        np.array([load for path in paths for load in path.values()], dtype=float),
        np.repeat(np.arange(len(paths)), [len(path) for path in paths]),
        len(paths),
    )
    found: list[float] = fair(np.array(list(capacities.values()), dtype=float), laid).tolist()
    return found


def fair(capacities: Floats, paths: Paths) -> Floats:
    """Those of all paths grow alike until a part is full, through which none grows any more."""
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


def ranges(starts: Indices, counts: Indices) -> Indices:
    """start, start + 1, ... of each, so many."""
    ends = np.cumsum(counts)
    found: Indices = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(
        starts - (ends - counts), counts
    )
    return found

"""What a workload is: a function from a request, and a scenario's options, to the plan of every rank."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from testbed.config import units
from testbed.plugins import PluginError, Registry, blamed
from testbed.scale import UNSCALED, Scale
from testbed.workload.plan import JobPlan
from testbed.workload.plans.checking import PlanProblem, check_plan


@dataclass(frozen=True)
class WorkloadRequest:
    """What a plan is for.

    Attributes:
        buildings: The name of each rank's building; ranks are numbered from 0.
        dtype: Of the elements that travel, such as "float32".
        scale: Between real figures, in which a workload is described, and those of the emulation, which a plan has.
        seed: The scenario's, for what is drawn at random.
    """

    buildings: tuple[str, ...]
    dtype: str = "float32"
    scale: Scale = UNSCALED
    seed: int = 0

    @property
    def ranks(self) -> int:
        """How many there are."""
        return len(self.buildings)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    def by_building(self) -> dict[str, list[int]]:
        """The ranks in each building."""
        found: dict[str, list[int]] = {}
        for rank, building in enumerate(self.buildings):
            found.setdefault(building, []).append(rank)
        return found

    def seconds(self, duration: float | str) -> float:
        """Emulated seconds for real ones, as a number or as files have them ("10 ms"). ValueError."""
        real_s = units.parse_duration(duration) if isinstance(duration, str) else duration
        return self.scale.emulated_s(real_s)

    def elements(self, size: float | str, parts: int = 1) -> int:
        """Emulated elements for real bytes, as a number or as files have them ("64 MB"); at least one per part.

        parts: equal ones, by which the result can be divided. ValueError.
        """
        size_bytes = units.parse_size(size) if isinstance(size, str) else size
        return max(1, round(self.scale.emulated_bytes(size_bytes) / self.itemsize / parts)) * parts


MakePlan = Callable[..., JobPlan]


def _check(thing: object) -> str | None:
    if callable(thing) and not isinstance(thing, type):
        return None
    return "a function from a WorkloadRequest to a JobPlan"


WORKLOADS: Registry[MakePlan] = Registry("workload", "testbed.workload.plans", "testbed.workloads", _check)
"""All that have a name. Each registers where it stands: `@WORKLOADS.register("local_sgd")`."""


def make_plan(name: str, request: WorkloadRequest, options: Mapping[str, Any]) -> JobPlan:
    """The plan of one of WORKLOADS, or of a file, checked; options: what its function takes beside the request.

    PluginError, with file and line, where the function raises, or what it returns is no plan of these ranks.
    """
    make = WORKLOADS.find(name)
    file, line = source_of(make)
    where = f"{file}:{line}: workload {name.rpartition(':')[2]}"
    try:
        inspect.signature(make).bind(request, **options)
    except TypeError as error:
        raise PluginError(
            where=where, got=f"options that do not fit ({error})", expected=_taken(make)
        ) from None
    with blamed(f"workload {name}", Path(file)):
        plan: Any = make(request, **options)
    if not isinstance(plan, JobPlan):
        raise PluginError(where=where, got=f"a {type(plan).__name__}", expected="a JobPlan")
    try:
        check_plan(plan, request.ranks, request.itemsize)
    except PlanProblem as error:
        raise PluginError(where=where, got=error.found, expected=error.expected) from None
    return plan


def source_of(make: MakePlan) -> tuple[str, int]:
    """File and line of a function."""
    code = getattr(make, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else (make.__module__, 1)


def _taken(make: MakePlan) -> str:
    names = list(inspect.signature(make).parameters)[1:]
    return f"options: {', '.join(names)}" if names else "no options"

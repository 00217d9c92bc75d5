"""What a workload is asked for: a plan for these ranks, at this scale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from testbed.spec import units
from testbed.spec.scale import UNSCALED, Scale


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

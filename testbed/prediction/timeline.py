"""When all that a plan has to do began and ended; or why it never would."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from testbed.errors import TestbedError
from testbed.workload.dispatch import Carried
from testbed.workload.plan import JobPlan


class Stuck(TestbedError, ValueError):
    """A plan that never comes to its end; the message says who waits for what."""


@dataclass(frozen=True)
class Timeline:
    """When each operation began and ended, in seconds from the step's start; `spans[rank][index of the operation]`.

    carried: what was done and decided, where that was not known beforehand.
    """

    spans: tuple[tuple[tuple[float, float], ...], ...]
    carried: Carried | None = None

    @property
    def plan(self) -> JobPlan | None:
        """What was carried out, where that was not known beforehand."""
        return None if self.carried is None else self.carried.plan

    @cached_property
    def step_time_s(self) -> float:
        """Until the last rank is done."""
        return max((end for rank in self.spans for _, end in rank), default=0.0)

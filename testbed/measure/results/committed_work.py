"""What a variant got done, and in what time: all rates and speed-ups of a run are taken from these figures."""

from __future__ import annotations

import math
from collections.abc import Iterable

from pydantic import Field

from testbed.measure.results.base_model import ResultModel


class Work(ResultModel):
    """What the measured steps of a variant got done, and in what time.

    A step that some replicas missed counts as the share of its sequences that the others trained. A step that was lost
    with a checkpoint and done again counts once.
    """

    steps: float = Field(description="Committed ones, in whole steps.")
    partial_steps: int = Field(default=0, description="How many were committed without all replicas.")
    with_stalls: bool = Field(
        default=False, description="Whether replicas come and go, so that `elapsed_s` is more than the steps."
    )
    elapsed_s: float = Field(
        description="The sum of the step times; where replicas come and go, from the first measured step's start to "
        "the last commit, with all stalls and all steps that were lost."
    )
    tokens: int | None = Field(default=None, description="Trained or decoded in that time.")
    sequences: int | None = Field(default=None, description="Trained in that time.")
    workload: str = Field(
        description="What a step works on, in the scenario's words. Variants whose words differ are not compared."
    )

    @property
    def amount(self) -> float:
        """Tokens where they are counted, else whole steps."""
        return self.steps if self.tokens is None else self.tokens

    @property
    def unit(self) -> str:
        """What `amount` counts."""
        return "steps" if self.tokens is None else "tokens"

    @property
    def per_second(self) -> float:
        """The amount over the elapsed time."""
        return self.amount / self.elapsed_s

    @property
    def step_s(self) -> float:
        """The elapsed time of each whole step; infinite where none was committed."""
        return self.elapsed_s / self.steps if self.steps else math.inf

    @property
    def per_step(self) -> float:
        """The amount of a whole step; 0 where none was committed."""
        return self.amount / self.steps if self.steps else 0.0


def same_workload(works: Iterable[Work]) -> bool:
    """Whether all work on the same, so that their amounts compare."""
    return len({one.workload for one in works}) <= 1


def same_steps(works: Iterable[Work]) -> bool:
    """Whether the steps of all are the same work, all whole, so that their times alone compare."""
    found = list(works)
    sizes = [one.per_step for one in found]
    alike = same_workload(found) and all(math.isclose(size, sizes[0]) for size in sizes)
    return alike and not any(one.with_stalls for one in found)

"""What steps come to in tokens, sequences and arithmetic."""

from __future__ import annotations

from pydantic import Field

from testbed.model.work import StepWork
from testbed.results.model import ResultModel


class Rates(ResultModel):
    """Of all accelerators together, by a step's median time."""

    tokens_per_s: float
    sequences_per_s: float
    mfu: float = Field(
        description="Model FLOPs utilisation: the model's own arithmetic, as a part of the accelerators' peak."
    )


def rates_of(work: StepWork | None, step_time_s: float) -> Rates | None:
    """Of a step that trains a model; None of others."""
    if work is None:
        return None
    return Rates(
        tokens_per_s=work.tokens_per_s(step_time_s),
        sequences_per_s=work.sequences_per_s(step_time_s),
        mfu=work.model_flops_utilisation(step_time_s),
    )

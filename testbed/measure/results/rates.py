"""What steps come to in tokens, sequences and arithmetic."""

from __future__ import annotations

import math

from pydantic import Field

from testbed.measure.results.base_model import ResultModel
from testbed.prediction.step_flops import StepWork


class Rates(ResultModel):
    """Of all accelerators together: what `work` counts as done, over its elapsed time."""

    tokens_per_s: float
    sequences_per_s: float
    mfu: float = Field(
        description="Model FLOPs utilisation: the model's own arithmetic, as a part of the accelerators' peak. "
        "6 operations per token and parameter of its matrices, without embeddings; attention's scores where they count."
    )


def rates_of(work: StepWork | None, elapsed_s: float, steps: float = 1.0) -> Rates | None:
    """Return the rates of steps that train a model; None of others.

    Args:
        work: Of one whole step.
        elapsed_s: Seconds that the steps took together, with whatever came between them.
        steps: How many whole steps were done in that time; part of one where replicas were missing.
    """
    if work is None:
        return None
    step_s = elapsed_s / steps if steps else math.inf
    return Rates(
        tokens_per_s=work.tokens_per_s(step_s),
        sequences_per_s=work.sequences_per_s(step_s),
        mfu=work.model_flops_utilisation(step_s),
    )

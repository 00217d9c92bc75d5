"""The work that a variant completed, and in what time: the base of all rates and speed-ups."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import BaseModel, Field

from testbed.measure.results.base_model import ResultModel
from testbed.measure.results.replication import Replication
from testbed.prediction.closed_form import sequences
from testbed.prediction.step_flops import StepWork
from testbed.spec.scenario import Scenario
from testbed.spec.units import size_text, time_text
from testbed.spec.workload import INFERENCE, WorkloadSpec
from testbed.workload.job.kinds.decode import BATCH, METHOD_OPTIONS, TOKENS


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


DECODE = "decode"


def committed_work(
    scenario: Scenario, work: StepWork | None, times_s: Sequence[float], replications: Sequence[Replication]
) -> Work:
    """Return what one variant got done.

    Args:
        scenario: The variant's.
        work: Of a whole step; None of a step that trains no model.
        times_s: Of the measured steps, real seconds.
        replications: What each part of the run says of replicas that come and go; empty where none do.
    """
    shares = [share for one in replications for share in one.standing_shares.values()]
    steps = sum(shares) if replications else float(len(times_s))
    figures: dict[str, Any] = {
        "steps": steps,
        "elapsed_s": sum(one.elapsed_s for one in replications) if replications else sum(times_s),
        "workload": workload_words(scenario),
    }
    if replications:
        figures |= {"partial_steps": sum(share < 1 for share in shares), "with_stalls": True}
    if work is not None:
        figures |= {"tokens": round(steps * work.tokens), "sequences": round(steps * work.sequences)}
    elif scenario.workload.kind == DECODE:
        figures["tokens"] = round(steps * _decoded(scenario))
    return Work(**figures)


def _decoded(scenario: Scenario) -> int:
    """Return how many tokens all ranks decode in a step."""
    options = scenario.workload.options or {}
    return int(scenario.ranks * options.get("batch", BATCH) * options.get("tokens", TOKENS))


def workload_words(scenario: Scenario) -> str:
    """Return what a step works on: the same words for all variants whose amounts of work may be compared."""
    workload = scenario.workload
    if workload.recorded:
        return f"recorded in {workload.trace or workload.chakra}"
    if workload.model is not None:
        model = workload.model if isinstance(workload.model, str) else _words(workload.model)
        return f"{model}, sequences of {workload.sequence_length} tokens"
    if workload.kind == INFERENCE:
        return "requests"
    if workload.kind == DECODE:
        return _of_options(DECODE, workload, METHOD_OPTIONS)
    if workload.kind != workload.kind_described:
        return f"{_of_options(workload.kind, workload)}, {scenario.ranks} ranks"
    return f"{', '.join(_parts(scenario))}, {scenario.ranks} ranks"


def _parts(scenario: Scenario) -> Iterator[str]:
    """Yield what a step is made of that trains no model and goes by no plan."""
    workload = scenario.workload
    if workload.stage is not None and workload.parallelism is not None:
        stages = workload.parallelism.pipeline_parallel_degree
        yield f"{sequences(scenario)} sequences through {stages} stages of {_words(workload.stage)}"
    for one in workload.collectives or ():
        yield f"{one.collective} of {size_text(one.size_bytes)}"
    if workload.exchange is not None:
        yield f"messages of {_words(workload.exchange)}"
    if workload.compute_s:
        yield f"{time_text(workload.compute_s)} of computing"


def _of_options(name: str, workload: WorkloadSpec, but: Iterable[str] = ()) -> str:
    """Return a plan's name with its options, without those that only say how."""
    kept = {key: value for key, value in (workload.options or {}).items() if key not in but}
    return ", ".join([name, *(f"{key} {value}" for key, value in kept.items())])


def _words(model: BaseModel) -> str:
    """Return what is set of a part of a scenario, such as: dim 4096, n_layers 4."""
    found = model.model_dump(exclude_defaults=True, by_alias=True)
    return ", ".join(f"{key} {value}" for key, value in found.items())

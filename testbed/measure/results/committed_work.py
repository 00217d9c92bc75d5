"""The work that a variant completed and the time it took: the basis of all rates and speed-ups."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import BaseModel, Field

from testbed.measure.result_model import ResultModel
from testbed.measure.results.replication import Replication
from testbed.prediction.closed_form import sequences
from testbed.prediction.step_flops import StepWork
from testbed.spec.scenario import Scenario
from testbed.spec.units import size_text, time_text
from testbed.spec.workload import INFERENCE, WorkloadSpec
from testbed.workload.job.kinds.decode import BATCH, METHOD_OPTIONS, TOKENS


class Work(ResultModel):
    """The work done in a variant's measured steps, and the time it took.

    A step that some replicas missed counts in proportion to the sequences that the others trained. A step that was
    repeated after a restart from a checkpoint counts once.
    """

    steps: float = Field(description="Committed steps, in whole steps.")
    partial_steps: int = Field(default=0, description="Steps committed without all replicas.")
    with_stalls: bool = Field(
        default=False, description="Whether replicas are elastic, so that `elapsed_s` includes stalls."
    )
    elapsed_s: float = Field(
        description="Sum of the step times. With elastic replicas: from the start of the first measured step to the "
        "last commit, including all stalls and lost steps."
    )
    tokens: int | None = Field(default=None, description="Tokens trained or decoded in that time.")
    sequences: int | None = Field(default=None, description="Sequences trained in that time.")
    workload: str = Field(
        description="Description of a step's work. Only variants with the same description are compared."
    )

    @property
    def amount(self) -> float:
        """The number of tokens if they are counted, or else the number of whole steps."""
        return self.steps if self.tokens is None else self.tokens

    @property
    def unit(self) -> str:
        """The unit of `amount`."""
        return "steps" if self.tokens is None else "tokens"

    @property
    def per_second(self) -> float:
        """The amount divided by the elapsed time."""
        return self.amount / self.elapsed_s

    @property
    def step_s(self) -> float:
        """The elapsed time per whole step; infinite if none was committed."""
        return self.elapsed_s / self.steps if self.steps else math.inf

    @property
    def per_step(self) -> float:
        """The amount per whole step; 0 if none was committed."""
        return self.amount / self.steps if self.steps else 0.0


def have_same_workload(works: Iterable[Work]) -> bool:
    """Return whether all variants have the same workload, so that their amounts can be compared."""
    return len({one.workload for one in works}) <= 1


def have_same_steps(works: Iterable[Work]) -> bool:
    """Return whether all steps are whole and do the same work, so that step times can be compared directly."""
    found = list(works)
    sizes = [one.per_step for one in found]
    is_same = have_same_workload(found) and all(math.isclose(size, sizes[0]) for size in sizes)
    return is_same and not any(one.with_stalls for one in found)


class Rates(ResultModel):
    """Rates of all accelerators together: the committed work divided by its elapsed time."""

    tokens_per_s: float
    sequences_per_s: float
    mfu: float = Field(
        description="Model FLOPs utilisation: the model's arithmetic as a share of the accelerators' peak. It counts 6 "
        "operations per token and matrix parameter, without embeddings, and attention scores where they matter."
    )


def compute_rates(work: StepWork | None, elapsed_s: float, steps: float = 1.0) -> Rates | None:
    """Return the rates of steps that train a model, or None for other steps.

    Args:
        work: The work of one whole step; None if it trains no model.
        elapsed_s: Total time of the steps in seconds, including the time between steps.
        steps: Number of whole steps completed in that time; fractional if replicas were missing.
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
    """Return the work that one variant completed.

    Args:
        scenario: The variant's scenario.
        work: The work of a whole step; None if it trains no model.
        times_s: Times of the measured steps in real seconds.
        replications: Each shard's record of elastic replicas; empty without them.
    """
    shares = [share for one in replications for share in one.committed_shares.values()]
    steps = sum(shares) if replications else float(len(times_s))
    figures: dict[str, Any] = {
        "steps": steps,
        "elapsed_s": sum(one.elapsed_s for one in replications) if replications else sum(times_s),
        "workload": describe_workload(scenario),
    }
    if replications:
        figures |= {"partial_steps": sum(share < 1 for share in shares), "with_stalls": True}
    if work is not None:
        figures |= {"tokens": round(steps * work.tokens), "sequences": round(steps * work.sequences)}
    elif scenario.workload.kind == DECODE:
        figures["tokens"] = round(steps * _decoded(scenario))
    return Work(**figures)


def _decoded(scenario: Scenario) -> int:
    options = scenario.workload.options or {}
    return int(scenario.ranks * options.get("batch", BATCH) * options.get("tokens", TOKENS))


def describe_workload(scenario: Scenario) -> str:
    """Describe a step's work, in the same words for all variants whose amounts of work are comparable."""
    workload = scenario.workload
    if workload.is_recorded:
        return f"recorded in {workload.trace or workload.chakra}"
    if workload.model is not None:
        model = workload.model if isinstance(workload.model, str) else _describe_model(workload.model)
        return f"{model}, sequences of {workload.sequence_length} tokens"
    if workload.kind == INFERENCE:
        return "requests"
    if workload.kind == DECODE:
        return _describe_options(DECODE, workload, METHOD_OPTIONS)
    if workload.kind != workload.described_kind:
        return f"{_describe_options(workload.kind, workload)}, {scenario.ranks} ranks"
    return f"{', '.join(_describe_parts(scenario))}, {scenario.ranks} ranks"


def _describe_parts(scenario: Scenario) -> Iterator[str]:
    """Describe the parts of a step that neither trains a model nor follows a plug-in's plan."""
    workload = scenario.workload
    if workload.stage is not None and workload.parallelism is not None:
        stages = workload.parallelism.pipeline_parallel_degree
        yield f"{sequences(scenario)} sequences through {stages} stages of {_describe_model(workload.stage)}"
    for one in workload.collectives or ():
        yield f"{one.collective} of {size_text(one.size_bytes)}"
    if workload.exchange is not None:
        yield f"messages of {_describe_model(workload.exchange)}"
    if workload.compute_s:
        yield f"{time_text(workload.compute_s)} of computing"


def _describe_options(name: str, workload: WorkloadSpec, excluded: Iterable[str] = ()) -> str:
    """Return a plan's name with its options, except the excluded ones, which do not change the work."""
    options = {key: value for key, value in (workload.options or {}).items() if key not in excluded}
    return ", ".join([name, *(f"{key} {value}" for key, value in options.items())])


def _describe_model(model: BaseModel) -> str:
    """Return the fields of a scenario's part that differ from the defaults, such as "dim 4096, n_layers 4"."""
    found = model.model_dump(exclude_defaults=True, by_alias=True)
    return ", ".join(f"{key} {value}" for key, value in found.items())

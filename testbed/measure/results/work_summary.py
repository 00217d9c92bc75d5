"""What a variant got done: from its scenario, its step times and its commits to the figures of `Work`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import BaseModel

from testbed.measure.results.committed_work import Work
from testbed.measure.results.replication_result import Replication
from testbed.prediction.closed_form import sequences
from testbed.prediction.step_flops import StepWork
from testbed.spec.scenario import Scenario
from testbed.spec.units import size_text, time_text
from testbed.spec.workload import INFERENCE, WorkloadSpec
from testbed.workload.job.kinds.decode import BATCH, OF_METHOD, TOKENS

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
        return _of_options(DECODE, workload, OF_METHOD)
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

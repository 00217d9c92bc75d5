"""How right the model was where searches like this one were held against packets: what it cannot tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from testbed.catalogue import model_errors
from testbed.config import Scenario
from testbed.explorer.search import Exploration, Result
from testbed.workload.models import dimensions


@dataclass(frozen=True)
class ModelErrors:
    """Of one kind of search, as parts of what packets took; what: the kind in words.

    median: the largest one of so many points that tell theirs, with `of` configurations; worst: of all `measured`.
    """

    what: str
    median: float
    points: int
    of: int
    worst: float
    measured: int


def model_errors_of(scenario: Scenario) -> ModelErrors | None:
    """At points of the scenario's kind; None where none was measured. ConfigError."""
    kind = _kind(scenario)
    return None if kind is None else errors_of(model_errors()[kind])


def errors_of(entry: Any) -> ModelErrors:
    """Of an entry of `data/model_errors.yaml`."""
    points = entry["points"]
    told = [point for point in points if "median" in point]
    return ModelErrors(
        entry["what"],
        max(float(point["median"]) for point in told),
        len(told),
        sum(point["measured"] for point in told),
        max(float(point["worst"]) for point in points),
        sum(point["measured"] for point in points),
    )


def near(found: Exploration, errors: ModelErrors) -> Sequence[Result]:
    """The best, and what the model does not tell from it, the quickest first."""
    most_s = found.best.tried.step_time_s * (1 + errors.median)
    return [one for one in found.distinct if one.tried.step_time_s <= most_s]


def _kind(scenario: Scenario) -> str | None:
    workload, lossy = scenario.workload, scenario.topology.resolve().lossy
    if workload.recorded:
        return None if lossy else "recorded"
    if lossy:
        return "lossy"
    assert workload.parallelism is not None
    if workload.parallelism.context_parallel_degree > 1:
        return "long_context"
    experts = workload.model is not None and dimensions(workload.model).experts
    return "experts" if experts or workload.parallelism.expert_parallel_degree > 1 else "training"

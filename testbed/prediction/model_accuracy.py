"""The model's errors on held-out packet measurements, by kind of scenario."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from testbed.spec.catalogue import model_errors
from testbed.spec.scenario import Scenario
from testbed.workload.models import dimensions

MEASURED_TRANSPORTS = ("tcp", "striped")  # the transports that benchmarks/held_out samples


@dataclass(frozen=True)
class ModelErrors:
    """Relative errors of the model over all points of one kind.

    Attributes:
        what: Description of the kind.
        median: Largest median error of the points that have one.
        points: Number of those points.
        of: Number of configurations in those points.
        worst: Largest error of all configurations.
        measured: Number of all configurations.
    """

    what: str
    median: float
    points: int
    of: int
    worst: float
    measured: int


def parse_errors(entry: Any) -> ModelErrors:
    """Parse an entry of `data/model_errors.yaml`."""
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


def stated_error(scenario: Scenario, by_packets: bool) -> float | None:
    """Return the model's worst known error on this kind of scenario, as a share; None if it was never measured.

    `by_packets` is true if the step is simulated packet by packet, not as a fluid.
    """
    kind = kind_of(scenario)
    if kind is None or scenario.transport.kind not in MEASURED_TRANSPORTS:
        return None
    found = model_errors().get(f"{kind}_by_packets" if by_packets else kind)
    return None if found is None else parse_errors(found).worst


def kind_of(scenario: Scenario) -> str | None:
    """Return the scenario's kind in `data/model_errors.yaml`; None if no such kind was measured."""
    workload, lossy = scenario.workload, scenario.topology.resolve().lossy
    if workload.is_recorded:
        return None if lossy else "recorded"
    if workload.collectives or workload.exchange is not None:
        return "lossy_collectives" if lossy else "collectives"
    if workload.model is None and workload.stage is None:
        return None
    if lossy:
        return "lossy"
    parallelism = workload.parallelism
    if parallelism is not None and parallelism.context_parallel_degree > 1:
        return "long_context"
    experts = workload.model is not None and dimensions(workload.model).experts
    spread = parallelism is not None and parallelism.expert_parallel_degree > 1
    return "experts" if experts or spread else "training"

"""A training step's plan tried out on the model of its network before anything is built: that it ends, and fits."""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakKeyDictionary

from testbed.config import ConfigError, Problem, Scenario
from testbed.config.units import format_size
from testbed.job.training import Training, wrong_workload
from testbed.job.workload import Workload, workload_of
from testbed.model.memory import peak_alive
from testbed.model.simulation import Stuck, Timeline, simulate
from testbed.scale import Scale

_known: WeakKeyDictionary[Training, Timeline] = WeakKeyDictionary()


def dry_run(training: Training) -> Timeline:
    """What the model says of the plan, on the shortest paths. ConfigError where it never ends."""
    if training not in _known:
        try:
            plan = training.plan.using(training.algorithm)
            _known[training] = simulate(
                plan, training.network, training.itemsize, *training.cost, folded=True
            )
        except Stuck as error:
            expected = f"one that comes to its end; this one {error}"
            if training.schedule.source is not None:
                file, line = training.schedule.source
                name = training.schedule.name.rpartition(":")[2]
                raise ConfigError([Problem(file, line, "schedule", name, expected)]) from None
            raise wrong_workload("schedule", training.schedule.name, expected) from None
    return _known[training]


def check_memory(workload: Workload) -> None:
    """ConfigError where a rank would keep more alive than the scenario's limit."""
    training = workload.training
    if training is None or training.memory_limit_bytes is None:
        return
    peaks = peak_alive(training.plan, dry_run(training).spans)
    if max(peaks) > training.memory_limit_bytes:
        rank, most = peaks.index(max(peaks)), format_size(round(max(peaks)))
        found = f"{training.schedule.name}, which keeps {most} alive on rank {rank}"
        expected = f"at most memory_limit, {format_size(round(training.memory_limit_bytes))}"
        raise wrong_workload("schedule", found, expected)


def workloads_of(scenario: Scenario, scale: Scale) -> dict[str, Workload]:
    """Of every variant by name, or of the scenario by its own where none differ in what they do.

    ConfigError for what does not fit, or would never come to its end.
    """
    if scenario.variants is None:
        return {scenario.name: _tried(scenario, scale)}
    found = {}
    for name in scenario.variants:
        variant = scenario.variant(name)
        try:
            found[name] = _tried(variant, scale)
        except ConfigError as error:
            raise ConfigError(
                [replace(problem, file=f"variant {name}") for problem in error.problems]
            ) from None
    return found


def _tried(scenario: Scenario, scale: Scale) -> Workload:
    workload = workload_of(scenario, scenario.topology.resolve(scale), scale)
    if workload.training is not None:
        dry_run(workload.training)
        check_memory(workload)
    return workload

"""Dry runs: simulate a plan before anything is built, to check that it completes and fits into memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from testbed.net.paths import network_of
from testbed.prediction.simulation import simulate
from testbed.prediction.timeline import Deadlock, Timeline, peak_activation_bytes
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.spec.units import format_size
from testbed.workload.job.endpoint_resolution import modelled_software
from testbed.workload.job.errors import wrong_workload
from testbed.workload.job.fault_resolution import rank_faults_of
from testbed.workload.job.job import Workload, workload_of
from testbed.workload.job.kinds import WORKLOADS, is_plugin, source_of
from testbed.workload.job.training import Training
from testbed.workload.schedules import write_csv

_known: WeakKeyDictionary[Training, Timeline] = WeakKeyDictionary()


@dataclass(frozen=True)
class DryRun:
    """A simulated step on shortest paths; `algorithm` is for collectives that do not name one."""

    workload: Workload
    algorithm: str
    timeline: Timeline


def dry_run(training: Training) -> Timeline:
    """Simulate a training plan on shortest paths; raise ConfigError if it never completes."""
    if training not in _known:
        try:
            plan = training.plan.with_algorithm(training.algorithm)
            _known[training] = simulate(
                plan, training.network, training.itemsize, training.software, folded=True
            )
        except Deadlock as error:
            if training.schedule.source is not None:
                raise _never_completes(
                    "schedule", training.schedule.name, training.schedule.source, error
                ) from None
            expected = f"one that completes; this one {error}"
            raise wrong_workload("schedule", training.schedule.name, expected) from None
    return _known[training]


def _never_completes(what: str, name: str, source: tuple[str, int], error: Deadlock) -> ConfigError:
    """Return the error for a user's own function, with its file and line."""
    file, line = source
    expected = f"one that completes; this one {error}"
    return ConfigError([Problem(file, line, what, name.rpartition(":")[2], expected)])


def schedule_csv(tried: Mapping[str, DryRun], variant: str) -> str:
    """Return a variant's schedule as CSV, in the format of `workload.schedule.file`.

    Raise ConfigError if there is no such variant, or if its step has no schedule.
    """
    if variant not in tried:
        raise ConfigError([Problem("command line", None, "--csv", variant, f"one of {', '.join(tried)}")])
    training = tried[variant].workload.training
    if training is None:
        expected = "a schedule: a step with workload.parallelism"
        raise ConfigError([Problem("command line", None, "--csv", variant, expected)])
    return write_csv(training.schedule.orders)


def dry_run_of(scenario: Scenario, workload: Workload, algorithm: str, scale: Scale) -> Timeline:
    """Simulate any scenario without variants; raise ConfigError if a user's own plan never completes."""
    if workload.training is not None:
        return dry_run(workload.training)
    topology = scenario.topology.resolve(scale)
    network = network_of(topology, scenario.rank_hosts(topology))
    plan, dispatching = workload.start.with_algorithm(algorithm), workload.dispatching
    software = modelled_software(scenario.transport, scale)
    try:
        return simulate(plan, network, workload.itemsize, software, folded=True, dispatching=dispatching)
    except Deadlock as error:
        name = scenario.workload.kind
        raise _never_completes("workload", name, source_of(WORKLOADS.find(name)), error) from None


def check_memory(workload: Workload) -> None:
    """Raise ConfigError if a rank would keep more activations alive than the scenario allows."""
    training = workload.training
    if training is None or training.memory_limit_bytes is None:
        return
    peaks = peak_activation_bytes(training.plan, dry_run(training).spans)
    if max(peaks) > training.memory_limit_bytes:
        rank, most = peaks.index(max(peaks)), format_size(round(max(peaks)))
        found = f"{training.schedule.name}, which keeps {most} alive on rank {rank}"
        expected = f"at most memory_limit, {format_size(round(training.memory_limit_bytes))}"
        raise wrong_workload("schedule", found, expected)


def check_plan_ends(scenario: Scenario, workload: Workload, scale: Scale) -> None:
    """Raise ConfigError if a schedule, or a user's own plan, never completes or exceeds the memory limit."""
    if workload.training is not None:
        dry_run(workload.training)
        check_memory(workload)
    elif is_plugin(scenario.workload.kind):
        dry_run_of(scenario, workload, scenario.algorithms[0], scale)


def workloads_of(scenario: Scenario, scale: Scale) -> dict[str, Workload]:
    """Return the workload of every variant by name, or of the scenario by its own name if it has no variants.

    Raise ConfigError if a workload is inconsistent or never completes.
    """
    return {name: workload for name, _, workload in _variant_workloads(scenario, scale)}


def dry_runs(scenario: Scenario, scale: Scale) -> dict[str, DryRun]:
    """Return the dry run of every variant by name.

    A scenario without variants has one dry run per algorithm, by name, or a single one under its own name. A training
    step with `parallelism` uses its first algorithm. It raises ConfigError like `workloads_of`.
    """
    found = {}
    for name, own, workload in _variant_workloads(scenario, scale):
        several = scenario.variants is None and workload.training is None and len(own.algorithms) > 1
        for label, algorithm in list(own.named_algorithms.items())[: None if several else 1]:
            timeline = dry_run_of(own, workload, algorithm, scale)
            carried = timeline.carried
            done = workload if carried is None else workload.as_executed(carried)
            found[label if several else name] = DryRun(done, algorithm, timeline)
    return found


def _variant_workloads(scenario: Scenario, scale: Scale) -> Iterator[tuple[str, Scenario, Workload]]:
    if scenario.variants is None:
        yield scenario.name, scenario, _checked_workload(scenario, scale)
        return
    for name in scenario.variants:
        variant = scenario.variant(name)
        try:
            yield name, variant, _checked_workload(variant, scale)
        except ConfigError as error:
            raise ConfigError(
                [replace(problem, file=f"variant {name}") for problem in error.problems]
            ) from None


def _checked_workload(scenario: Scenario, scale: Scale) -> Workload:
    workload = workload_of(scenario, scenario.topology.resolve(scale), scale)
    check_plan_ends(scenario, workload, scale)
    rank_faults_of(scenario.events, workload.plan, scenario.seed, scale, scenario.name)
    return workload

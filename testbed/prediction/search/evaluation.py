"""Evaluation of one configuration of a scenario with the model: its step time, or the constraint that it violates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from testbed.caches import IdentityCache
from testbed.gc_control import gc_disabled
from testbed.plugins import shorten_names
from testbed.prediction.calibration import VIRTUAL, Calibration, find_calibration
from testbed.prediction.closed_form import Changes, replicas, sequences
from testbed.prediction.dry_run import check_memory
from testbed.prediction.search.default_space import fill_space
from testbed.prediction.simulation import play_cached
from testbed.prediction.step_prediction import predict_tail_s, prepare_step
from testbed.prediction.timeline import Deadlock
from testbed.spec.catalogue import accelerators
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.hardware import Hardware
from testbed.spec.parallelism import ScheduleSpec
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.spec.search_space import ExploreSpec
from testbed.workload.job.job import Job, Workload, job_of, unmodelled
from testbed.workload.memory import accelerator_bytes
from testbed.workload.parallelism import PIPELINE, ParallelismError, check_product

MEMORY = "explore.memory"
# prefixes of paths that may select features that the model does not cover
UNMODELLED = ("transport.kind", "transport.protocol", "events", "background_traffic")
# plans do not depend on these paths; the last REMEMBERED plans are reused for configurations that differ only there
ROUTED, REMEMBERED = ("policy", "transport.congestion_control", "transport.kind", "transport.stripes."), 8
DRAWS = 3  # for steps with packet loss; each draw simulates the step and its warm-up
DEGREES, MICROBATCHES = "workload.parallelism", "workload.schedule.microbatches"
# parts of a path that its short name omits, since the names within them are unique; `algorithms` is the exception,
# which appears twice
SECTIONS = frozenset({"workload", "parallelism", "schedule", "transport", "stripes", "topology"})
KINDS = "workload.algorithms"


@dataclass(frozen=True)
class Configuration:
    """A configuration: the changed values of a scenario, by path."""

    changes: Changes

    @property
    def key(self) -> str:
        """Return a key that does not depend on the order of the changes."""
        return json.dumps(self.changes, sort_keys=True)

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return ", ".join(f"{short_name(path)} {_shown(value)}" for path, value in self.changes.items())


@dataclass(frozen=True)
class Evaluation:
    """The model's result for a feasible configuration.

    Attributes:
        step_time_s: Seconds per step.
        tail_s: 99th percentile of step times. Without packet loss it equals the step time. With loss it is None until
            `evaluate_tail_s` computes it from many steps.
        wan_bytes: Bytes between buildings per step.
        memory_bytes: Memory use of the fullest accelerator; None if the scenario has no model to count.
    """

    step_time_s: float
    tail_s: float | None
    wan_bytes: int
    memory_bytes: float | None


@dataclass(frozen=True)
class Infeasible:
    """Why a configuration does not fit: the violated field, and the found and expected values as in messages."""

    constraint: str
    found: str
    expected: str


def search_space_of(scenario: Scenario, file: str) -> ExploreSpec:
    """Return the search space of a scenario; raise ConfigError, which names the file, if it has none."""
    if scenario.explore is None:
        expected = "a scenario that says what to search"
        raise ConfigError([Problem(file, None, "explore", "nothing", expected)])
    explore = scenario.explore
    if explore.space and not explore.whole:
        return explore
    return explore.model_copy(update={"space": fill_space(scenario, explore.space)})


def check_modelled(scenario: Scenario) -> None:
    """Raise ConfigError if the scenario, or a value of its search space, uses a feature that the model lacks.

    It is also raised if a trace does not fit.
    """
    explore = search_space_of(scenario, scenario.name)
    kinds = {path: values for path, values in explore.space.items() if path.startswith(UNMODELLED)}
    changed = [scenario.changed({path: value}, path) for path, values in kinds.items() for value in values]
    asked = dict.fromkeys(what for one in (scenario, *changed) for what in unmodelled(one))
    if scenario.workload.is_recorded:
        job_of(scenario, Scale())  # checks that the trace has this scenario's ranks, all of one job
    if asked:
        expected = "a step that the model knows, as nothing else compares configurations"
        raise ConfigError([Problem(scenario.name, None, "explore", what, expected) for what in asked])


def evaluate(scenario: Scenario, configuration: Configuration) -> Evaluation | Infeasible:
    """Evaluate the scenario with the configuration's changes in the model, keeping the sequences per step."""
    with gc_disabled():
        return _evaluate(scenario, configuration)


def _evaluate(scenario: Scenario, configuration: Configuration) -> Evaluation | Infeasible:
    job = _job(scenario, configuration.changes)
    if isinstance(job, Infeasible):
        return job
    algorithm, calibration = job.scenario.algorithms[0], _calibration(scenario)
    try:
        # at real size a step has too many packets to simulate each one
        one = play_cached(prepare_step(job, algorithm, calibration, draws=DRAWS, packets=0))
    except Deadlock as error:
        field = job.scenario.workload.kind if scenario.workload.is_recorded else "schedule"
        return Infeasible(f"workload.{field}", f"a step that {error}", "one that completes")
    memory_bytes = _memory_bytes(job, one.alive)
    limits_bytes = _memory_limits_bytes(scenario, job)
    for own, limit_bytes in zip(memory_bytes, limits_bytes, strict=bool(memory_bytes)):
        if limit_bytes is not None and own > limit_bytes:
            return Infeasible(MEMORY, f"{own / 1e9:.3g} GB", f"at most {limit_bytes / 1e9:.3g} GB")
    step_s = one.step_time_s
    tail_s = None if job.topology.lossy else step_s
    return Evaluation(step_s, tail_s, job.wan_bytes(algorithm), max(memory_bytes, default=None))


def evaluate_tail_s(scenario: Scenario, tried: tuple[Configuration, Evaluation]) -> float | None:
    """Return the 99th percentile of a configuration's step times; None if the model does not draw all losses.

    This takes a few seconds if links lose packets.
    """
    configuration, found = tried
    if found.tail_s is not None:
        return found.tail_s
    job = _job(scenario, configuration.changes)
    assert isinstance(job, Job)
    return predict_tail_s(job, job.scenario.algorithms[0], found.step_time_s, _calibration(scenario))


def _job(scenario: Scenario, changes: Changes) -> Job | Infeasible:
    """Build the job of a configuration, if it fits."""
    if (infeasible := check_degrees(scenario, changes)) is not None:
        return infeasible
    try:
        own = apply_changes(scenario, changes)
        job = _job_of(scenario, own, changes)
        check_memory(job.workload)
        return job
    except ConfigError as error:
        problem = error.problems[0]
        return Infeasible(problem.field, problem.value, problem.expected)


def _calibration(scenario: Scenario) -> Calibration:
    """Return the calibration, which is the same for all configurations of a scenario."""
    return _calibrations.of((scenario,), lambda: find_calibration(VIRTUAL))


_calibrations: IdentityCache[Calibration] = IdentityCache(1)


_workloads: IdentityCache[Workload] = IdentityCache(REMEMBERED)


def _job_of(scenario: Scenario, own: Scenario, changes: Changes) -> Job:
    """Return the job of `own`, a configuration of the scenario; raise ConfigError if it is invalid."""
    if own.workload.parallelism is None:
        return job_of(own, Scale())
    rest = {path: value for path, value in changes.items() if not path.startswith(ROUTED)}
    workload = _workloads.of((scenario,), lambda: job_of(own, Scale()).workload, Configuration(rest).key)
    topology = own.topology.resolve(Scale())
    return Job(own, Scale(), topology, own.rank_hosts(topology), workload)


def apply_changes(scenario: Scenario, changes: Changes) -> Scenario:
    """Apply changes to the scenario, keeping its number of sequences per step.

    The number of microbatches follows from the degrees unless the changes set it; a recorded job has its own.

    Raises: ConfigError if a change is invalid.
    """
    changed = scenario.changed(changes, "a configuration")
    if scenario.workload.is_recorded:
        return changed
    whole = sequences(scenario)
    if MICROBATCHES not in changes:
        own = replicas(changed) * changed.workload.local_batch_size
        if whole % own:
            found, expected = f"{replicas(changed)} replicas and shards", f"a divisor of {whole} sequences"
            raise _wrong(DEGREES, found, expected)
        schedule = changed.workload.schedule or ScheduleSpec()
        schedule = schedule.model_copy(update={"microbatches": whole // own})
        workload = changed.workload.model_copy(update={"schedule": schedule})
        return changed.model_copy(update={"workload": workload})
    if sequences(changed) != whole:
        raise _wrong(MICROBATCHES, f"{sequences(changed)} sequences in a step", f"{whole}, the scenario's")
    return changed


def _wrong(field: str, found: str, expected: str) -> ConfigError:
    return ConfigError([Problem("a configuration", None, field, found, expected)])


def check_degrees(scenario: Scenario, changes: Changes) -> Infeasible | None:
    """Check only the degrees: a hundred times faster than the whole scenario, and enough to reject most of a space."""
    parallelism = scenario.workload.parallelism
    if parallelism is None:
        return None
    degrees = {
        name: changes.get(f"{DEGREES}.{name}_degree", degree) for name, degree in parallelism.degrees.items()
    }
    per_rank = changes.get(f"{DEGREES}.accelerators_per_rank", parallelism.accelerators_per_rank)
    if not all(type(value) is int and value > 0 for value in (*degrees.values(), per_rank)):
        return None  # the scenario's own check has the better message
    try:
        check_product(degrees, scenario.ranks, per_rank)
    except ParallelismError as error:
        return Infeasible(DEGREES, error.found, error.expected)
    return None


def _memory_limits_bytes(scenario: Scenario, job: Job) -> list[float | None]:
    """Return the memory limit per rank from the search, or else from the hardware; None if neither sets one."""
    if scenario.explore is not None and scenario.explore.memory_bytes is not None:
        return [scenario.explore.memory_bytes] * len(job.hosts)
    return [_memory_bytes_of(host.hardware, scenario.workload.accelerator) for host in job.hosts]


def _memory_bytes_of(hardware: Hardware, usual: str | None) -> float | None:
    """Return the memory of a host's accelerators; `usual` is the workload's accelerator."""
    if hardware.memory_bytes is not None:
        return hardware.memory_bytes
    name = hardware.accelerator or usual
    return None if name is None else float(accelerators()[name]["memory"])


def _memory_bytes(job: Job, alive: Sequence[float]) -> list[float]:
    """Return the memory used per rank on one accelerator; empty without a model; `alive` is for activations."""
    training, workload = job.workload.training, job.scenario.workload
    if training is None or workload.model is None:
        return []
    positions = [coordinate[PIPELINE] for coordinate in training.mesh.coordinates]
    owners, itemsize, layers = training.schedule.owners, workload.itemsize, training.layers
    return accelerator_bytes(workload.model, training.mesh, owners, alive, itemsize, positions, layers)


def short_name(path: str) -> str:
    """Return a short, unambiguous name of a path.

    Examples are pipeline_parallel for ...pipeline_parallel_degree, schedule for ...schedule.name, and same_region
    connections for transport.stripes.same_region.connections.
    """
    if path == KINDS:
        return "workload algorithms"
    *above, last = path.split(".")
    if last == "name" and above:
        *above, last = above
    return " ".join([*(one for one in above if one not in SECTIONS), last.removesuffix("_degree")])


def _shown(value: object) -> str:
    value = shorten_names(value)
    return value if isinstance(value, str) else json.dumps(value)

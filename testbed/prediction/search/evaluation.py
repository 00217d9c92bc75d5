"""One configuration of a scenario, tried on the model: how long a step takes, or what it does not fit."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from testbed.caches import IdentityCache
from testbed.gc_control import gc_disabled
from testbed.plugins import shorten_names
from testbed.prediction.calibration import VIRTUAL, Calibration, find_calibration
from testbed.prediction.closed_form import Changes, replicas, sequences
from testbed.prediction.dry_run import check_memory
from testbed.prediction.search.default_space import fill_space
from testbed.prediction.simulation_cache import play_cached
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
# paths of what a model may not know
UNMODELLED = ("transport.kind", "transport.protocol", "events", "background_traffic")
# what ranks do does not go by these; of so many plans, the last ones, no more are made for what differs there alone
ROUTED, REMEMBERED = ("policy", "transport.congestion_control", "transport.kind", "transport.stripes."), 8
DRAWS = 3  # of a step where packets are lost: each plays all of it, and steps before it
DEGREES, MICROBATCHES = "workload.parallelism", "workload.schedule.microbatches"
# of a path's parts those that a name goes without, as what is in them has names of its own; all but one, which
# `algorithms` has, too
SECTIONS = frozenset({"workload", "parallelism", "schedule", "transport", "stripes", "topology"})
KINDS = "workload.algorithms"


@dataclass(frozen=True)
class Configuration:
    """Values of a scenario that differ, by path."""

    changes: Changes

    @property
    def key(self) -> str:
        """The same for the same changes, whatever their order."""
        return json.dumps(self.changes, sort_keys=True)

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return ", ".join(f"{short(path)} {_shown(value)}" for path, value in self.changes.items())


@dataclass(frozen=True)
class Evaluation:
    """What the model says: seconds of a step, bytes between buildings in it, the fullest accelerator's memory.

    tail_s: what 99 of 100 steps do not exceed: as long where nothing is lost; None where packets are, as that takes
    many steps, until somebody asks for it. memory_bytes: None where the scenario has no model to count.
    """

    step_time_s: float
    tail_s: float | None
    wan_bytes: int
    memory_bytes: float | None


@dataclass(frozen=True)
class Infeasible:
    """Why a configuration cannot be. constraint: the field that keeps it out; found, expected: as an error says it."""

    constraint: str
    found: str
    expected: str


def searched(scenario: Scenario, file: str) -> ExploreSpec:
    """What a scenario's search goes over. ConfigError, which names the file, for a scenario without."""
    if scenario.explore is None:
        expected = "a scenario that says what to search"
        raise ConfigError([Problem(file, None, "explore", "nothing", expected)])
    explore = scenario.explore
    if explore.space and not explore.whole:
        return explore
    return explore.model_copy(update={"space": fill_space(scenario, explore.space)})


def check_modelled(scenario: Scenario) -> None:
    """ConfigError where the scenario, or what its search varies, asks for what the model of a step leaves out.

    Also where a trace does not fit.
    """
    explore = searched(scenario, scenario.name)
    kinds = {path: values for path, values in explore.space.items() if path.startswith(UNMODELLED)}
    changed = [scenario.changed({path: value}, path) for path, values in kinds.items() for value in values]
    asked = dict.fromkeys(what for one in (scenario, *changed) for what in unmodelled(one))
    if scenario.workload.is_recorded:
        job_of(scenario, Scale())  # that the trace is of this scenario's ranks, and these of one job
    if asked:
        expected = "a step that the model knows, as nothing else compares configurations"
        raise ConfigError([Problem(scenario.name, None, "explore", what, expected) for what in asked])


def evaluate(scenario: Scenario, configuration: Configuration) -> Evaluation | Infeasible:
    """`scenario` with the configuration's changes, on the model; with as many sequences in a step."""
    with gc_disabled():
        return _evaluated(scenario, configuration)


def _evaluated(scenario: Scenario, configuration: Configuration) -> Evaluation | Infeasible:
    job = _job(scenario, configuration.changes)
    if isinstance(job, Infeasible):
        return job
    algorithm, calibration = job.scenario.algorithms[0], _calibration(scenario)
    try:
        # real sizes have more packets than those that a run has
        one = play_cached(prepare_step(job, algorithm, calibration, draws=DRAWS, packets=0))
    except Deadlock as error:
        field = job.scenario.workload.kind if scenario.workload.is_recorded else "schedule"
        return Infeasible(f"workload.{field}", f"a step that {error}", "one that comes to its end")
    memory_bytes = _memory_bytes(job, one.alive)
    limits_bytes = _memory_limits_bytes(scenario, job)
    for own, limit_bytes in zip(memory_bytes, limits_bytes, strict=bool(memory_bytes)):
        if limit_bytes is not None and own > limit_bytes:
            return Infeasible(MEMORY, f"{own / 1e9:.3g} GB", f"at most {limit_bytes / 1e9:.3g} GB")
    step_s = one.step_time_s
    tail_s = None if job.topology.lossy else step_s
    return Evaluation(step_s, tail_s, job.wan_bytes(algorithm), max(memory_bytes, default=None))


def evaluate_tail_s(scenario: Scenario, tried: tuple[Configuration, Evaluation]) -> float | None:
    """What 99 of 100 steps of a configuration that fits do not exceed; None where the model does not draw all losses.

    Where links lose packets that is some seconds' work.
    """
    configuration, found = tried
    if found.tail_s is not None:
        return found.tail_s
    job = _job(scenario, configuration.changes)
    assert isinstance(job, Job)
    return predict_tail_s(job, job.scenario.algorithms[0], found.step_time_s, _calibration(scenario))


def _job(scenario: Scenario, changes: Changes) -> Job | Infeasible:
    """What ranks do, if that fits together."""
    if (infeasible := wrong_degrees(scenario, changes)) is not None:
        return infeasible
    try:
        own = configured(scenario, changes)
        job = _planned.job(scenario, own, changes)
        check_memory(job.workload)
        return job
    except ConfigError as error:
        problem = error.problems[0]
        return Infeasible(problem.field, problem.value, problem.expected)


def _calibration(scenario: Scenario) -> Calibration:
    """The same one for all that is tried of a scenario."""
    return _calibrations.of((scenario,), lambda: find_calibration(VIRTUAL))


_calibrations: IdentityCache[Calibration] = IdentityCache(1)


class _Planned:
    """What ranks do in the configurations of one scenario that were tried last."""

    def __init__(self) -> None:
        self._scenario: Scenario | None = None
        self._known: OrderedDict[str, Workload] = OrderedDict()

    def job(self, scenario: Scenario, own: Scenario, changes: Changes) -> Job:
        """Of a configuration, `own`, of the scenario. ConfigError."""
        if own.workload.parallelism is None:
            return job_of(own, Scale())
        if self._scenario is not scenario:
            self._scenario, self._known = scenario, OrderedDict()
        rest = {path: value for path, value in changes.items() if not path.startswith(ROUTED)}
        key = Configuration(rest).key
        if key not in self._known:
            job = job_of(own, Scale())
            self._known[key] = job.workload
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
            return job
        self._known.move_to_end(key)
        topology = own.topology.resolve(Scale())
        return Job(own, Scale(), topology, own.rank_hosts(topology), self._known[key])


_planned = _Planned()


def configured(scenario: Scenario, changes: Changes) -> Scenario:
    """The scenario with these changes, at as many sequences in a step as it has itself. ConfigError.

    Microbatches follow from the degrees where the changes name none; a job that was recorded has its own.
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


def wrong_degrees(scenario: Scenario, changes: Changes) -> Infeasible | None:
    """What checking the whole scenario would find, in a hundredth of the time; most of a space is left out by it."""
    parallelism = scenario.workload.parallelism
    if parallelism is None:
        return None
    degrees = {
        name: changes.get(f"{DEGREES}.{name}_degree", degree) for name, degree in parallelism.degrees.items()
    }
    per_rank = changes.get(f"{DEGREES}.accelerators_per_rank", parallelism.accelerators_per_rank)
    if not all(type(value) is int and value > 0 for value in (*degrees.values(), per_rank)):
        return None  # the scenario's own check says it better
    try:
        check_product(degrees, scenario.ranks, per_rank)
    except ParallelismError as error:
        return Infeasible(DEGREES, error.found, error.expected)
    return None


def _memory_limits_bytes(scenario: Scenario, job: Job) -> list[float | None]:
    """Of each rank's accelerators, by the scenario's search or by what these have; None where neither says."""
    if scenario.explore is not None and scenario.explore.memory_bytes is not None:
        return [scenario.explore.memory_bytes] * len(job.hosts)
    return [_memory_bytes_of(host.hardware, scenario.workload.accelerator) for host in job.hosts]


def _memory_bytes_of(hardware: Hardware, usual: str | None) -> float | None:
    """Of a host's accelerators; usual: the workload's."""
    if hardware.memory_bytes is not None:
        return hardware.memory_bytes
    name = hardware.accelerator or usual
    return None if name is None else float(accelerators()[name]["memory"])


def _memory_bytes(job: Job, alive: Sequence[float]) -> list[float]:
    """By rank, of one of its accelerators; none where the scenario has no model to count. alive: of activations."""
    training, workload = job.workload.training, job.scenario.workload
    if training is None or workload.model is None:
        return []
    positions = [coordinate[PIPELINE] for coordinate in training.mesh.coordinates()]
    owners, itemsize, layers = training.schedule.owners, workload.itemsize, training.layers
    return accelerator_bytes(workload.model, training.mesh, owners, alive, itemsize, positions, layers)


def short(path: str) -> str:
    """What a path is about, told from all others: pipeline_parallel of ...pipeline_parallel_degree, schedule of
    ...schedule.name, same_region connections of transport.stripes.same_region.connections.
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

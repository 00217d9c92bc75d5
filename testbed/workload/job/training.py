"""Every rank's plan from a scenario's parallelism, schedule and model, for the network on which it will run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from testbed.comm.transport import Software
from testbed.net.paths import Network, network_of
from testbed.net.paths.hops import NETEM
from testbed.spec.buildings import Host
from testbed.spec.errors import ConfigError
from testbed.spec.parallelism import (
    BY_SPEED,
    EVEN,
    LEAVES,
    TOPOLOGY_AWARE,
    ParallelismSpec,
    ScheduleSpec,
    StageSpec,
)
from testbed.spec.replicas import LocalSgdSpec
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.spec.topology import Topology
from testbed.spec.transformer import ModelSpec
from testbed.workload.job.endpoint_resolution import modelled_software
from testbed.workload.job.errors import wrong_workload
from testbed.workload.job.rank_hardware import (
    intra_node_models,
    microbatch_counts,
    slowdowns_of,
    stage_slowdowns,
    with_stragglers,
)
from testbed.workload.job.rank_placement import leaves_of, map_hosts, minimize_crossing
from testbed.workload.job.schedule_request import owners_of, schedule_by_name, schedule_from_file
from testbed.workload.job.tuning_choice import tuning_of
from testbed.workload.local_sgd import OuterSchedule
from testbed.workload.models import dimensions
from testbed.workload.parallelism import EXPERT, PIPELINE, REPLICATE, Mesh, ParallelismError, make_mesh
from testbed.workload.pipeline_plan import plan_job
from testbed.workload.plan import JobPlan
from testbed.workload.plan_options import Options, SendToken
from testbed.workload.plan_volume import plan_traffic
from testbed.workload.plans import WorkloadRequest
from testbed.workload.schedules import Schedule, SearchResult, find_schedule
from testbed.workload.sequence_parallel import RING, TREE, BlockWise
from testbed.workload.stages import Part, Sizes, Stage, layer_counts, model_stages

SEARCH_TIME_SHARES = {1: 0.4, 2: 0.6}  # by stages per rank, since the search space for two is larger


@dataclass(frozen=True, kw_only=True)
class JobRequest(WorkloadRequest):
    """A request with all known data of the job, for workloads that use the scenario's keys or the network.

    Attributes:
        scenario: The scenario, without variants; its topology and sizes are real.
        topology: The topology in figures of `scale`.
        hosts: Hosts of the ranks, in rank order.
        link_engine: Link engine on which the job will run.
    """

    scenario: Scenario
    topology: Topology
    hosts: tuple[Host, ...]
    link_engine: str = NETEM

    @classmethod
    def of(cls, scenario: Scenario, topology: Topology, scale: Scale, link_engine: str = NETEM) -> JobRequest:
        """Return the request of a scenario; `topology` is in figures of `scale`."""
        hosts = tuple(scenario.rank_hosts(topology))
        return cls(
            tuple(host.building for host in hosts),
            scenario.workload.gradient_dtype,
            scale,
            scenario.seed,
            scenario=scenario,
            topology=topology,
            hosts=hosts,
            link_engine=link_engine,
        )

    @property
    def building_indices(self) -> tuple[int, ...]:
        """The index of each rank's building, as used in plans."""
        return tuple(self.topology.building(name).index for name in self.buildings)


@dataclass(frozen=True, eq=False)
class Training:
    """A training step ready to run.

    Attributes:
        mesh: The mesh of ranks.
        schedule: Pipeline schedule; the first replica's if they differ.
        stages: Pipeline stages.
        plan: Every rank's plan.
        network: Paths between the ranks.
        itemsize: Bytes of an element on the wire.
        software: Software cost of messages.
        algorithm: The first of the scenario's algorithms.
        training_steps: Number of consecutive training steps in one step of the plan.
        memory_limit_bytes: Limit of a rank's activations; None for no limit.
        layers: Blocks of each stage; empty if stages are given explicitly.
        microbatches: Microbatches of each replica.
    """

    mesh: Mesh
    schedule: Schedule
    stages: tuple[Stage, ...]
    plan: JobPlan
    network: Network
    itemsize: int
    software: Software
    algorithm: str
    training_steps: int = 1
    memory_limit_bytes: float | None = None
    layers: tuple[int, ...] = ()
    microbatches: tuple[int, ...] = ()


def plan_training(request: JobRequest) -> Training:
    """Return the training step of a scenario; raise ConfigError if its settings do not fit.

    Bytes and seconds are emulated, except those of `stages`.
    """
    workload = request.scenario.workload
    assert workload.parallelism is not None
    hardware = slowdowns_of(workload, request.hosts)
    slowdowns = with_stragglers(hardware, workload.parallelism.stragglers, request.hosts)
    planner = _Planner(request, slowdowns)
    mapping = map_hosts(workload.parallelism.mapping, request.hosts, planner.network, hardware)
    if workload.parallelism.mapping == TOPOLOGY_AWARE:
        first = planner.plan(())
        pairs = plan_traffic(first.plan.with_algorithm(request.scenario.algorithms[0]), request.itemsize)
        mapping = minimize_crossing(pairs, request.building_indices, first.mesh.mappings())
    return planner.plan(mapping)


class _Planner:
    """A planner of a scenario's step for a mapping of ranks; `slowdowns` include stragglers."""

    def __init__(self, request: JobRequest, slowdowns: Mapping[int, float]) -> None:
        self.request, self.slowdowns = request, slowdowns
        self.scenario, self.hosts, self.scale = request.scenario, request.hosts, request.scale
        self.network = network_of(request.topology, request.hosts, request.link_engine)
        where = request.scenario.name, "workload.tuning"
        self.tuning = tuning_of(request.scenario.workload.tuning, *where, request.scale)

    def plan(self, mapping: Sequence[int]) -> Training:
        workload = self.scenario.workload
        spec, asked = workload.parallelism, workload.schedule or ScheduleSpec()
        assert spec is not None
        mesh = _make_mesh(spec, len(self.hosts), mapping)
        ranks = mesh.outside[PIPELINE]
        if asked.file is not None:
            schedule = schedule_from_file(Path(asked.file), ranks, asked.microbatches)
            stages, layers = self._stages(mesh, stage_slowdowns(mesh, self.slowdowns, schedule.owners))
        elif find_schedule(asked.name).searched and asked.chunks == 1 and ranks > 1:
            schedule, stages, layers = self._search_schedule(asked, mesh)
        else:
            count = ranks * (find_schedule(asked.name).chunks or asked.chunks)
            stages, layers = self._stages(mesh, self._named_slowdowns(asked, mesh, count))
            schedule = self._named_schedule(asked, mesh, stages)
        counts = microbatch_counts(
            asked.microbatches_per_replica, asked.microbatches, mesh, stages, schedule.owners, self.slowdowns
        )
        replica_schedules: list[Schedule] = []
        if counts != (asked.microbatches,) * len(counts):
            if find_schedule(asked.name).searched:
                expected = f"{EVEN} with schedule {asked.name}"
                raise wrong_workload("schedule.microbatches_per_replica", str(list(counts)), expected)
            by_count = {
                count: self._named_schedule(asked.model_copy(update={"microbatches": count}), mesh, stages)
                for count in sorted(set(counts))
            }
            replica_schedules = [by_count[count] for count in counts]
            schedule = replica_schedules[0]
        options = Options(
            self.request.itemsize,
            workload.bucket_cap_bytes,
            prefetch=asked.prefetch,
            prefetch_first=asked.prefetch_first,
            algorithms=spec.collectives,
            early_receives=asked.receives == "early",
            sequence_parallel=spec.tensor_communication == "sequence_parallel",
            blocks=self._block_wise(spec),
            routing_skew=spec.routing_skew,
            send_tokens=_send_tokens(self.network, self.hosts) if asked.wan_send_tokens else {},
            slowdowns=self.slowdowns,
            jitter=spec.compute_jitter,
            seed=self.scenario.seed,
            dscps=spec.dscp,
            scale=self.scale,
            within=intra_node_models(workload, self.hosts, self.scale, mesh),
            training_steps=workload.training_steps_per_step,
            outer=_outer_schedule(workload.outer, mesh),
        )
        plan = plan_job(mesh, schedule, stages, options, replica_schedules)
        near = leaves_of(self.request.topology, self.hosts) if spec.hierarchy == LEAVES else ()
        return Training(
            mesh,
            schedule,
            tuple(stages),
            plan.with_placement(self.request.building_indices, self.tuning, near),
            self.network,
            self.request.itemsize,
            modelled_software(self.scenario.transport, self.scale),
            self.scenario.algorithms[0],
            workload.training_steps_per_step,
            asked.memory_limit_bytes,
            layers,
            counts,
        )

    def _block_wise(self, spec: ParallelismSpec) -> BlockWise | None:
        """Return how tensor-parallel ranks work in blocks, if they do; a node consists of a leaf switch's hosts."""
        _, overlaps, algorithm = spec.tensor_communication.rpartition("overlapped_")
        if algorithm not in (RING, TREE):
            return None
        nodes = leaves_of(self.request.topology, self.hosts)
        return BlockWise(algorithm, bool(overlaps), nodes, self.scenario.workload.gemm_half_rows)

    def _named_slowdowns(self, asked: ScheduleSpec, mesh: Mesh, stages: int) -> list[float]:
        """Return each stage's slowdown; query the schedule for stage owners only if slowdowns differ."""
        if not self.slowdowns:
            return [1.0] * stages
        return stage_slowdowns(mesh, self.slowdowns, owners_of(asked, mesh.outside[PIPELINE], stages))

    def _stages(self, mesh: Mesh, slowdowns: Sequence[float]) -> tuple[list[Stage], tuple[int, ...]]:
        """Return the stages, and the number of the model's blocks on each; raise ConfigError if they do not fit."""
        workload, count = self.scenario.workload, len(slowdowns)
        if workload.stage is not None:
            return _given_stages(workload.stage, mesh.outside[PIPELINE], count), ()
        assert workload.model is not None
        _check_experts(workload.model, mesh)
        asked = (workload.schedule or ScheduleSpec()).layers_per_stage
        speeds = [1 / own for own in slowdowns] if asked == BY_SPEED and self.slowdowns else ()
        try:
            sizes, given = Sizes.of(workload, self.request.itemsize), () if isinstance(asked, str) else asked
            layers = layer_counts(workload.model, count, speeds, given, sizes.scores)
            return model_stages(workload.model, count, mesh, sizes, layers), layers
        except ParallelismError as error:
            raise wrong_workload("schedule", error.found, error.expected) from None

    def _named_schedule(
        self, asked: ScheduleSpec, mesh: Mesh, stages: Sequence[Stage], beat_s: float = math.inf
    ) -> Schedule:
        slowdowns = self._named_slowdowns(asked, mesh, len(stages))
        return schedule_by_name(asked, mesh, stages, slowdowns, self.network, self.hosts, self.scale, beat_s)

    def _search_schedule(
        self, asked: ScheduleSpec, mesh: Mesh
    ) -> tuple[Schedule, list[Stage], tuple[int, ...]]:
        """Return the faster schedule of one stage per rank and, with enough layers, two."""
        found: list[tuple[SearchResult, Schedule, list[Stage], tuple[int, ...]]] = []
        beat_s = math.inf
        for chunks, share in SEARCH_TIME_SHARES.items():
            ranks = mesh.outside[PIPELINE]
            try:
                stages, layers = self._stages(mesh, self._named_slowdowns(asked, mesh, chunks * ranks))
            except ConfigError:
                if chunks == 1:
                    raise
                continue
            own = asked.model_copy(update={"chunks": chunks, "time_limit_s": share * asked.time_limit_s})
            schedule = self._named_schedule(own, mesh, stages, beat_s)
            assert schedule.searched is not None
            found.append((schedule.searched, schedule, stages, layers))
            beat_s = min(beat_s, schedule.searched.step_s)
        best, schedule, stages, layers = min(found, key=lambda one: one[0].step_s)
        bounds_s = {chunks: bound_s for one, *_ in found for chunks, bound_s in one.bounds_s.items()}
        known = sorted((entry for one, *_ in found for entry in one.known), key=lambda entry: entry[1])
        searched = replace(best, bounds_s=bounds_s, known=tuple(known))
        return replace(schedule, searched=searched), stages, layers


def _send_tokens(network: Network, hosts: Sequence[Host]) -> dict[tuple[int, int], SendToken]:
    """Return the send token of each pair of ranks in different buildings."""
    found = {}
    for (here, there), path in network.paths.items():
        direction = hosts[here].building, hosts[there].building
        if direction[0] != direction[1]:
            found[here, there] = SendToken(direction, min(network.capacities[part] for part in path.parts))
    return found


def _outer_schedule(spec: LocalSgdSpec | None, mesh: Mesh) -> OuterSchedule | None:
    if spec is None:
        return None
    if mesh.outside[REPLICATE] == 1:
        found = f"replicas in one rank of {mesh.per_rank} accelerators"
        raise wrong_workload("outer", found, "replicas on ranks of their own")
    return OuterSchedule(spec.period, spec.parts, spec.overlap, spec.bits)


def _make_mesh(spec: ParallelismSpec, ranks: int, mapping: Sequence[int]) -> Mesh:
    try:
        mesh = make_mesh(spec.degrees, ranks, spec.accelerators_per_rank, spec.order, mapping)
    except ParallelismError as error:
        raise wrong_workload("parallelism", error.found, error.expected) from None
    if mesh.inside[PIPELINE] > 1:
        found = f"{mesh.inside[PIPELINE]} stages in one rank"
        raise wrong_workload("parallelism", found, "stages on ranks of their own")
    return mesh


def _check_experts(model: str | ModelSpec, mesh: Mesh) -> None:
    experts, shared_by = dimensions(model).experts, mesh.degrees[EXPERT]
    if shared_by > 1 and (not experts or experts % shared_by):
        expected = (
            f"a divisor of the model's experts ({experts})" if experts else "1, as the model has no experts"
        )
        raise wrong_workload("parallelism.expert_parallel_degree", str(shared_by), expected)


def _given_stages(spec: StageSpec, ranks: int, count: int) -> list[Stage]:
    """Return explicitly given stages, each with its share of the time and the whole activation."""
    share = ranks / count
    part = Part(
        spec.forward_s * share,
        spec.backward_input_s * share,
        spec.backward_weight_s * share,
        reduced=spec.gradient_bytes * share,
    )
    return [Stage((part,), spec.activation_bytes, spec.activation_bytes * share)] * count

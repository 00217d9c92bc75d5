"""From a scenario's parallelism, schedule and model to every rank's plan, for the network that it is to run on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations
from pathlib import Path

from testbed.config import ConfigError, Host, Problem, Scenario, Topology
from testbed.config.parallelism import (
    BY_DISTANCE,
    TOPOLOGY_AWARE,
    ParallelismSpec,
    ScheduleSpec,
    StageSpec,
    StragglerSpec,
)
from testbed.job.resolving import modelled_cost
from testbed.job.tuning import tuning_of
from testbed.paths import Network, network_of
from testbed.paths.hops import NETEM
from testbed.scale import Scale
from testbed.workload.layers import Options, SendToken
from testbed.workload.models import dimensions
from testbed.workload.parallelism import EXPERT, PIPELINE, Mesh, ParallelismError, make_mesh
from testbed.workload.placing import least_crossing, shortest_way
from testbed.workload.plan import JobPlan
from testbed.workload.plan_traffic import plan_traffic
from testbed.workload.planning import plan_job
from testbed.workload.schedules import (
    Costs,
    Schedule,
    ScheduleError,
    Searched,
    find_schedule,
    make_schedule,
    read_csv,
    schedule_of,
)
from testbed.workload.stages import Part, Sizes, Stage, model_stages

ROUNDED = 1000  # of a forward pass: to what times are rounded for a search
SHARES = {1: 0.4, 2: 0.6}  # of a search's time, by stages per rank: with two there is more to find


@dataclass(frozen=True, eq=False)
class Training:
    """A training step as it will be carried out. network: of the ranks; cost: of software, per message and byte.

    algorithm: the first of the scenario's. memory_limit_bytes: of what a rank may keep alive; None for no limit.
    """

    mesh: Mesh
    schedule: Schedule
    stages: tuple[Stage, ...]
    plan: JobPlan
    network: Network
    itemsize: int
    cost: tuple[float, float]
    algorithm: str
    memory_limit_bytes: float | None = None


def training_of(
    scenario: Scenario,
    topology: Topology,
    hosts: Sequence[Host],
    scale: Scale,
    itemsize: int,
    link_engine: str = NETEM,
) -> Training:
    """Emulated figures where they are of bytes and seconds, but for `stages`. ConfigError for what does not fit."""
    workload = scenario.workload
    assert workload.parallelism is not None
    asked = workload.schedule or ScheduleSpec()
    network = network_of(topology, hosts, link_engine)
    planner = _Planner(scenario, network, hosts, scale, itemsize)
    mapping = _mapping(workload.parallelism.mapping, hosts, network)
    if workload.parallelism.mapping == TOPOLOGY_AWARE:
        mesh, *_, plan = planner.plan(())
        buildings = [topology.building(host.building).index for host in hosts]
        pairs = plan_traffic(plan.using(scenario.algorithms[0]), itemsize)
        mapping = least_crossing(pairs, buildings, mesh.mappings())
    mesh, schedule, stages, plan = planner.plan(mapping)
    cost = modelled_cost(scenario.transport, scale)
    algorithm, limit_bytes = scenario.algorithms[0], asked.memory_limit_bytes
    return Training(mesh, schedule, tuple(stages), plan, network, itemsize, cost, algorithm, limit_bytes)


class _Planner:
    """Plans a scenario's step, with one or another mapping of ranks."""

    def __init__(
        self, scenario: Scenario, network: Network, hosts: Sequence[Host], scale: Scale, itemsize: int
    ) -> None:
        self.scenario, self.network, self.hosts = scenario, network, hosts
        self.scale, self.itemsize = scale, itemsize
        self.buildings = tuple(scenario.topology.resolve().building(host.building).index for host in hosts)
        self.tuning = tuning_of(scenario.workload.tuning, scenario.name, "workload.tuning", scale)

    def plan(self, mapping: Sequence[int]) -> tuple[Mesh, Schedule, list[Stage], JobPlan]:
        """ConfigError for what does not fit."""
        workload = self.scenario.workload
        spec, asked = workload.parallelism, workload.schedule or ScheduleSpec()
        assert spec is not None
        mesh = _mesh(spec, len(self.hosts), mapping)
        ranks = mesh.outside[PIPELINE]
        if asked.file is not None:
            schedule = _from_file(Path(asked.file), ranks, asked.microbatches)
            stages = _stages(self.scenario, mesh, len(schedule.owners), self.itemsize)
        elif find_schedule(asked.name).searched and asked.chunks == 1 and ranks > 1:
            schedule, stages = self._searched(asked, mesh)
        else:
            count = ranks * (find_schedule(asked.name).chunks or asked.chunks)
            stages = _stages(self.scenario, mesh, count, self.itemsize)
            schedule = _by_name(asked, mesh, stages, self.network, self.hosts, self.scale)
        options = Options(
            self.itemsize,
            workload.bucket_cap_bytes,
            prefetch=asked.prefetch,
            algorithms=spec.collectives,
            early_receives=asked.receives == "early",
            sequence_parallel=spec.tensor_communication == "sequence_parallel",
            routing_skew=spec.routing_skew,
            send_tokens=_send_tokens(self.network, self.hosts) if asked.wan_send_tokens else {},
            slowdowns=_slowdowns(spec.stragglers, mesh.size),
            jitter=spec.compute_jitter,
            seed=self.scenario.seed,
            dscps=spec.dscp,
            scale=self.scale,
        )
        plan = plan_job(mesh, schedule, stages, options)
        return mesh, schedule, stages, replace(plan, buildings=self.buildings, tuning=self.tuning)

    def _searched(self, asked: ScheduleSpec, mesh: Mesh) -> tuple[Schedule, list[Stage]]:
        """The quicker of one stage per rank and, where there are layers enough, of two."""
        found: list[tuple[Searched, Schedule, list[Stage]]] = []
        beat_s = math.inf
        for chunks, share in SHARES.items():
            try:
                stages = _stages(self.scenario, mesh, chunks * mesh.outside[PIPELINE], self.itemsize)
            except ConfigError:
                if chunks == 1:
                    raise
                continue
            own = asked.model_copy(update={"chunks": chunks, "time_limit_s": share * asked.time_limit_s})
            schedule = _by_name(own, mesh, stages, self.network, self.hosts, self.scale, beat_s)
            assert schedule.searched is not None
            found.append((schedule.searched, schedule, stages))
            beat_s = min(beat_s, schedule.searched.step_s)
        best, schedule, stages = min(found, key=lambda one: one[0].step_s)
        bounds_s = {chunks: bound_s for one, *_ in found for chunks, bound_s in one.bounds_s.items()}
        known = sorted((entry for one, *_ in found for entry in one.known), key=lambda entry: entry[1])
        return replace(schedule, searched=replace(best, bounds_s=bounds_s, known=tuple(known))), stages


def _send_tokens(network: Network, hosts: Sequence[Host]) -> dict[tuple[int, int], SendToken]:
    """Of all pairs of ranks in different buildings."""
    found = {}
    for (here, there), path in network.paths.items():
        direction = hosts[here].building, hosts[there].building
        if direction[0] != direction[1]:
            found[here, there] = SendToken(direction, min(network.capacities[part] for part in path.parts))
    return found


def wrong_workload(field: str, found: str, expected: str) -> ConfigError:
    """Of a scenario's workload, where what it says together does not fit."""
    return ConfigError([Problem("scenario", None, f"workload.{field}", found, expected)])


def _slowdowns(stragglers: Sequence[StragglerSpec], ranks: int) -> dict[int, float]:
    for position, straggler in enumerate(stragglers):
        if straggler.rank >= ranks:
            raise wrong_workload(
                f"parallelism.stragglers.{position}.rank",
                str(straggler.rank),
                f"a rank from 0 to {ranks - 1}",
            )
    return {straggler.rank: straggler.slowdown for straggler in stragglers}


def _mesh(spec: ParallelismSpec, ranks: int, mapping: Sequence[int]) -> Mesh:
    try:
        mesh = make_mesh(spec.degrees, ranks, spec.accelerators_per_rank, spec.order, mapping)
    except ParallelismError as error:
        raise wrong_workload("parallelism", error.found, error.expected) from None
    if mesh.inside[PIPELINE] > 1:
        found = f"{mesh.inside[PIPELINE]} stages in one rank"
        raise wrong_workload("parallelism", found, "stages of ranks of their own")
    return mesh


def _mapping(asked: str | tuple[int, ...], hosts: Sequence[Host], network: Network) -> Sequence[int]:
    buildings = [host.building for host in hosts]
    if asked == "scattered":
        index = [buildings[:number].count(building) for number, building in enumerate(buildings)]
        return sorted(range(len(hosts)), key=lambda rank: (index[rank], rank))
    if asked == BY_DISTANCE:
        firsts = {building: buildings.index(building) for building in buildings}
        delays_s = {
            (here, there): network.paths[firsts[here], firsts[there]].delay_s
            for here, there in permutations(firsts, 2)
        }
        way = shortest_way(list(firsts), delays_s)
        return sorted(range(len(hosts)), key=lambda rank: (way.index(buildings[rank]), rank))
    return () if isinstance(asked, str) else asked


def _from_file(file: Path, ranks: int, microbatches: int) -> Schedule:
    try:
        orders = read_csv(file.read_text())
        if len(orders) != ranks:
            raise ScheduleError(got=f"{len(orders)} lines", expected=f"{ranks}, one per rank of the pipeline")
        return schedule_of(file.stem, orders, microbatches)
    except ScheduleError as error:
        raise wrong_workload("schedule.file", f"{file}: {error.found}", error.expected) from None
    except OSError as error:
        raise wrong_workload("schedule.file", f"{file}: {error.strerror}", "a schedule") from None


def _by_name(
    asked: ScheduleSpec,
    mesh: Mesh,
    stages: Sequence[Stage],
    network: Network,
    hosts: Sequence[Host],
    scale: Scale,
    beat_s: float = math.inf,
) -> Schedule:
    """As CrossPipe does, schedules that go by links go by those between buildings alone; a search goes by all."""
    ranks, searched = mesh.outside[PIPELINE], find_schedule(asked.name).searched
    coordinate = dict.fromkeys(mesh.order, 0)
    line = [mesh.rank({**coordinate, PIPELINE: number}) for number in range(ranks)]
    hops = [network.paths[here, there] for here, there in pairwise(line)]
    size = scale.emulated_bytes(max(stage.activation for stage in stages))
    busy_s = [size / min(network.capacities[part] for part in hop.parts) for hop in hops]
    latency_s = [hop.latency_s(size) for hop in hops]
    crossing = [hosts[a].building != hosts[b].building for a, b in pairwise(line)]
    middle = stages[len(stages) // 2]
    forward_s, input_s, weight_s = map(scale.emulated_s, _seconds(middle))
    everywhere = Costs(forward_s, input_s, weight_s, tuple(latency_s), tuple(busy_s))
    costs = replace(everywhere, latency_s=_where(crossing, latency_s), busy_s=_where(crossing, busy_s))
    named = None
    if searched:
        each = [_seconds(stage) for stage in stages]
        costs, named = _rounded(everywhere, each, scale), _rounded(costs, each, scale)
    try:
        return make_schedule(
            asked.name,
            ranks,
            asked.microbatches,
            costs,
            asked.chunks,
            asked.memory,
            asked.time_limit_s,
            beat_s,
            named,
        )
    except ScheduleError as error:
        raise wrong_workload("schedule", error.found, error.expected) from None


def _where(crossing: Sequence[bool], seconds: Sequence[float]) -> tuple[float, ...]:
    """Nothing where a hop stays in its building."""
    return tuple(one if crosses else 0.0 for one, crosses in zip(seconds, crossing, strict=True))


def _rounded(costs: Costs, stages: Sequence[tuple[float, float, float]], scale: Scale) -> Costs:
    """In real time and rounded, so that a search finds the same at every scale, and once is enough."""
    unit_s = float(f"{scale.real_s(costs.forward_s):.6g}") / ROUNDED

    def real(seconds: Sequence[float]) -> tuple[float, ...]:
        return tuple(round(one / unit_s) * unit_s for one in seconds)

    forward_s, input_s, weight_s = real(
        [scale.real_s(one) for one in (costs.forward_s, costs.input_s, costs.weight_s)]
    )
    latency_s, busy_s = (
        real([scale.real_s(one) for one in hops]) for hops in (costs.latency_s, costs.busy_s)
    )
    each = tuple((f, i, w) for f, i, w in map(real, stages))
    return Costs(forward_s, input_s, weight_s, latency_s, busy_s, each)


def _seconds(stage: Stage) -> tuple[float, float, float]:
    return (
        sum(part.forward_s for part in stage.parts),
        sum(part.input_s for part in stage.parts),
        sum(part.weight_s for part in stage.parts),
    )


def _stages(scenario: Scenario, mesh: Mesh, count: int, itemsize: int) -> list[Stage]:
    workload = scenario.workload
    if workload.stage is not None:
        return _given(workload.stage, mesh.outside[PIPELINE], count)
    assert workload.model is not None
    experts, shared_by = dimensions(workload.model).experts, mesh.degrees[EXPERT]
    if shared_by > 1 and (not experts or experts % shared_by):
        expected = (
            f"a divisor of the model's experts ({experts})" if experts else "1, as the model has no experts"
        )
        raise wrong_workload("parallelism.expert_parallel_degree", str(shared_by), expected)
    try:
        return model_stages(workload.model, count, mesh, Sizes.of(workload, itemsize))
    except ParallelismError as error:
        raise wrong_workload("schedule", error.found, error.expected) from None


def _given(spec: StageSpec, ranks: int, count: int) -> list[Stage]:
    """Of several stages per rank, each with its part of the time and all of the message."""
    share = ranks / count
    part = Part(
        spec.forward_s * share,
        spec.backward_input_s * share,
        spec.backward_weight_s * share,
        reduced=spec.gradient_bytes * share,
    )
    return [Stage((part,), spec.activation_bytes, spec.activation_bytes * share)] * count

"""A job before anything is built: every rank's plan, the traffic declared, endpoints and replicas. Figures are
emulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from testbed.caches import IdentityCache
from testbed.comm.collectives import between_groups
from testbed.comm.transport import PROTOCOLS, TRANSPORTS, TrafficClass
from testbed.net.controller import Flow
from testbed.net.paths.congestion import CONGESTION_CONTROLS
from testbed.net.paths.hops import NETEM
from testbed.spec.buildings import Host
from testbed.spec.keywords import PLANNED
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.spec.topology import Topology
from testbed.spec.workload import WorkloadSpec
from testbed.workload.dispatch import Carried, Dispatching
from testbed.workload.job.endpoint_resolution import endpoints_on, resolve_endpoints
from testbed.workload.job.endpoints import THIS_NAMESPACE, JobEndpoints, Planned
from testbed.workload.job.errors import wrong_workload
from testbed.workload.job.fault_resolution import replication_of
from testbed.workload.job.kinds import JobRequest, make_plan
from testbed.workload.job.launch_spec import Replication
from testbed.workload.job.recorded_trace import recorded_trace
from testbed.workload.job.traffic_matrix import Pairs, flows_of, planned_rates, socket_rules_of
from testbed.workload.job.training import Training
from testbed.workload.job.tuning_choice import tuning_of
from testbed.workload.plan import Computing, GroupCollective, JobPlan, Message, Pause
from testbed.workload.plan_volume import plan_elements, plan_traffic
from testbed.workload.plans.validation import check_plugin_algorithms
from testbed.workload.schedules import implied_actions
from testbed.workload.serving import Serving

# a search declares the same plan's traffic to one policy after the other
_declared: IdentityCache[list[Flow]] = IdentityCache(8)


@dataclass(frozen=True)
class Job:
    """Of one scenario without variants, or of one variant. hosts: of the ranks, in their order.

    link_engine: which is to carry it.
    """

    scenario: Scenario
    scale: Scale
    topology: Topology
    hosts: Sequence[Host]
    workload: Workload
    link_engine: str = NETEM
    _flows: dict[str, list[Flow]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def flows(self) -> list[Flow]:
        """What is declared to the policy: the traffic of the first of the algorithms."""
        return self.flows_of(self.scenario.algorithms[0])

    def flows_of(self, algorithm: str) -> list[Flow]:
        """Who will send how much on which ports."""
        if algorithm not in self._flows:
            things = self.workload.plan, self.scenario.transport, self.topology, *self.hosts
            by = algorithm, self.scale, self.scenario.seed
            self._flows[algorithm] = _declared.of(things, partial(self._flows_of, algorithm), by)
        return self._flows[algorithm]

    def _flows_of(self, algorithm: str) -> list[Flow]:
        return [
            flow
            for dscp, pairs in self.workload.pairs(algorithm).items()
            for flow in flows_of(self._joined, pairs, TrafficClass(dscp))
        ]

    @cached_property
    def wiring(self) -> JobEndpoints:
        """Between the ranks, in no namespace yet; sockets with the rates that the policy plans, where that is asked."""
        specs = self.scenario.transport.sockets
        planned: list[Planned] = []
        if any(entry.pacing == PLANNED for entry in specs):
            detours = self.scenario.policy.detours or 0
            planned = planned_rates(self._joined, self.topology, self.flows, detours)
        rules = socket_rules_of(specs, self.scale, self.topology, self.hosts, planned, self.link_engine)
        return replace(self._joined, sockets=rules)

    @cached_property
    def _joined(self) -> JobEndpoints:
        spec = self.scenario.transport
        return resolve_endpoints(
            spec,
            self.scale,
            self.topology,
            endpoints_on(self.topology, self.hosts, {host.name: THIS_NAMESPACE for host in self.hosts}),
            self.scenario.seed,
            congestion_control=spec.congestion_control,
        )

    @cached_property
    def replication(self) -> Replication | None:
        """Replicas that come and go, where the scenario has that. ConfigError."""
        training = self.workload.training
        if training is None:
            return None
        return replication_of(self.scenario, training, self.scale, [host.name for host in self.hosts])

    def as_carried(self, carried: Carried | None) -> Job:
        """With what was done in the end, where that was decided on the way; what was declared stays."""
        return self if carried is None else replace(self, workload=self.workload.as_carried(carried))

    @property
    def survives_kills(self) -> bool:
        """Whether the job goes on when a rank's process is killed."""
        dispatching = self.workload.dispatching
        return self.replication is not None or (
            dispatching is not None and dispatching.rules.retry_s is not None
        )

    @property
    def unmodelled(self) -> tuple[str, ...]:
        """What the scenario asks for and the model knows nothing of; a step with it has no prediction."""
        return unmodelled(self.scenario)

    def wan_bytes(self, algorithm: str) -> int:
        """Payload bytes between buildings per step, all directions, by the algorithm's formula."""
        pairs = self.workload.pairs(algorithm).values()
        return sum(between_groups(part, self.workload.buildings) for part in pairs)


def unmodelled(scenario: Scenario) -> tuple[str, ...]:
    """What a scenario asks for and the model of a step knows nothing of, by name."""
    transport, lossy = scenario.transport, scenario.topology.resolve().lossy
    protocol = PROTOCOLS.find(transport.protocol)
    controls = [transport.congestion_control, *(entry.congestion_control for entry in transport.sockets)]
    known = {*CONGESTION_CONTROLS, *(transport.congestion_models or {})}
    unknown = [name for name in dict.fromkeys(controls) if name and name not in known and lossy]
    kind = TRANSPORTS.find(transport.kind)
    asked = {
        "events": bool(scenario.events),
        "failures": bool(scenario.failures),
        "background_traffic": bool(scenario.background_traffic),
        f"transport.kind: {transport.kind}": not kind.modelled,
        f"transport.protocol: {transport.protocol} over {transport.kind}": kind.writes and protocol.copies,
        f"transport.protocol: {transport.protocol}": not protocol.modelled,
        **{f"transport.congestion_control: {name} on links that lose packets": True for name in unknown},
    }
    return tuple(name for name, there in asked.items() if there)


def job_of(scenario: Scenario, scale: Scale, link_engine: str = NETEM) -> Job:
    """ConfigError where parallelism does not fit."""
    topology = scenario.topology.resolve(scale)
    workload = workload_of(scenario, topology, scale, link_engine)
    return Job(scenario, scale, topology, scenario.rank_hosts(topology), workload, link_engine)


@dataclass(frozen=True)
class Workload:
    """Every rank's plan. training: how it came about, where the scenario spreads a model over ranks.

    serving: the requests that it answers, where it does.
    """

    itemsize: int
    plan: JobPlan
    training: Training | None = None
    serving: Serving | None = None

    @property
    def buildings(self) -> tuple[int, ...]:
        """Of the ranks."""
        return self.plan.buildings

    @property
    def message_bytes(self) -> float:
        """Of the largest messages between two ranks; a ring sends a bucket in as many parts as there are ranks."""
        sizes = []
        for operation in (operation for own in self.plan.ranks for operation in own):
            if isinstance(operation, Message):
                sizes.append(float(operation.numel))
            elif isinstance(operation, GroupCollective):
                sizes.append(operation.numel / len(self.plan.groups[operation.group][1]))
        return max(sizes, default=1) * self.itemsize

    @property
    def rank_bytes(self) -> float:
        """What the busiest rank has to send, or to reduce, in a step; its arrays are about as large."""
        sizes = [
            sum(op.numel for op in own if isinstance(op, Message | GroupCollective))
            for own in self.plan.ranks
        ]
        return float(max(sizes) * self.itemsize)

    @property
    def array_bytes(self) -> float:
        """Of all ranks' arrays together."""
        return float(plan_elements(self.plan) * self.itemsize)

    @property
    def compute_s(self) -> float:
        """Computing of the busiest rank in a step."""
        return max(sum(op.duration_s for op in own if isinstance(op, Computing)) for own in self.plan.ranks)

    @property
    def start(self) -> JobPlan:
        """What is known of the plan before a step begins."""
        dispatching = self.dispatching
        return self.plan if dispatching is None else replace(self.plan, ranks=dispatching.start.ranks)

    @property
    def dispatching(self) -> Dispatching | None:
        """What decides who serves requests, where that is not known beforehand."""
        return None if self.serving is None else self.serving.dispatching

    def as_carried(self, carried: Carried) -> Workload:
        """With what was done in the end, where that was decided on the way."""
        assert self.serving is not None
        plan = replace(self.plan, ranks=carried.plan.ranks)
        serving = self.serving.as_carried(replace(carried, plan=plan))
        return Workload(self.itemsize, plan, self.training, serving)

    def pairs(self, algorithm: str) -> dict[int, Pairs]:
        """Payload bytes per ordered pair of ranks, by DSCP; algorithm: of what names none."""
        return self.plan.cached(("pairs", algorithm, self.itemsize), lambda: self._pairs(algorithm))

    def _pairs(self, algorithm: str) -> dict[int, Pairs]:
        plan = self.plan.with_algorithm(algorithm)
        classes = sorted({0, *plan.dscps.values()})
        return {dscp: plan_traffic(plan, self.itemsize, dscp) for dscp in classes}


def workload_of(scenario: Scenario, topology: Topology, scale: Scale, link_engine: str = NETEM) -> Workload:
    """Of a scenario on its topology, both in figures of `scale`. ConfigError where parallelism does not fit.

    PluginError where an algorithm that was added does not do what its collective promises.
    """
    workload = _workload_of(scenario, topology, scale, link_engine)
    check_plugin_algorithms(workload.plan, scenario.algorithms)
    return workload


def _workload_of(scenario: Scenario, topology: Topology, scale: Scale, link_engine: str) -> Workload:
    spec, request = scenario.workload, JobRequest.of(scenario, topology, scale, link_engine)
    made = make_plan(spec.kind, request, spec.options or {})
    training = made if isinstance(made, Training) else None
    serving = made if isinstance(made, Serving) else None
    plan = made if isinstance(made, JobPlan) else made.plan
    if serving is None and _is_idle(plan):
        expected = "computing or communication, of one rank at least"
        raise wrong_workload(
            "plan" if spec.plan else spec.kind, "a job in which nobody does anything", expected
        )
    tuning = tuning_of(spec.tuning, scenario.name, "workload.tuning", scale)
    plan = plan.with_placement(request.building_indices, tuning, plan.near)
    return Workload(
        request.itemsize,
        plan,
        training and replace(training, plan=plan),
        serving and replace(serving, plan=plan),
    )


def _is_idle(plan: JobPlan) -> bool:
    """Return whether nothing in a plan takes any time."""
    own = {id(operations): operations for operations in plan.ranks}.values()
    return all(
        isinstance(one, Computing | Pause) and not one.duration_s for operations in own for one in operations
    )


def unused_inputs(scenario: Scenario) -> list[str]:
    """Return in words what of its traces and schedule files is not used, by any variant. TraceError, OSError."""
    own = [scenario] if scenario.variants is None else [scenario.variant(name) for name in scenario.variants]
    return list(dict.fromkeys(what for one in own for what in _of(one.workload)))


def _of(spec: WorkloadSpec) -> list[str]:
    found: list[str] = []
    if spec.recorded:
        found += recorded_trace(spec).left_out
    if spec.schedule is not None and spec.schedule.file is not None:
        file = Path(spec.schedule.file)
        counts = implied_actions(file.read_text("utf-8"))
        if counts:
            kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
            found.append(f"{kinds} of {file.name}: messages and gathers follow from the order of computing")
    return found

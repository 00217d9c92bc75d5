"""A job before anything is built: every rank's plan, the declared traffic, endpoints and replicas.

All figures are emulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from testbed.workload.dispatch import Dispatching, ExecutedPlan
from testbed.workload.job.endpoint_resolution import (
    Pairs,
    endpoints_on,
    flows_of,
    planned_rates,
    resolve_endpoints,
    socket_rules_of,
)
from testbed.workload.job.endpoints import THIS_NAMESPACE, JobEndpoints, Planned
from testbed.workload.job.errors import wrong_workload
from testbed.workload.job.fault_resolution import replication_of
from testbed.workload.job.kinds import JobRequest, make_plan
from testbed.workload.job.kinds.trace import recorded_trace
from testbed.workload.job.launch_spec import Replication
from testbed.workload.job.training import Training
from testbed.workload.job.tuning_choice import tuning_of
from testbed.workload.plan import Computing, GroupCollective, JobPlan, Message, Pause
from testbed.workload.plan_volume import plan_elements, plan_traffic
from testbed.workload.plans.validation import check_plugin_algorithms
from testbed.workload.schedules import implied_actions
from testbed.workload.serving.request_plan import Serving

# a search declares the traffic of one plan to many policies
_flows_cache: IdentityCache[list[Flow]] = IdentityCache(8)


@dataclass(frozen=True)
class Job:
    """The job of a scenario without variants, or of one variant.

    Attributes:
        scenario: The scenario.
        scale: Scale of the emulation.
        topology: The emulated topology.
        hosts: Hosts of the ranks, in rank order.
        workload: Every rank's plan.
        link_engine: Link engine on which the job will run.
    """

    scenario: Scenario
    scale: Scale
    topology: Topology
    hosts: Sequence[Host]
    workload: Workload
    link_engine: str = NETEM

    @property
    def flows(self) -> list[Flow]:
        """The flows declared to the policy: those of the first algorithm."""
        return self.flows_of(self.scenario.algorithms[0])

    def flows_of(self, algorithm: str) -> list[Flow]:
        """Return the flows that ranks will send with this algorithm, with ports and bytes."""
        objects = self.workload.plan, self.scenario.transport, self.topology, *self.hosts
        parameters = algorithm, self.scale, self.scenario.seed
        return _flows_cache.of(objects, partial(self._flows_of, algorithm), parameters)

    def _flows_of(self, algorithm: str) -> list[Flow]:
        return [
            flow
            for dscp, pairs in self.workload.pairs(algorithm).items()
            for flow in flows_of(self._joined, pairs, TrafficClass(dscp))
        ]

    @cached_property
    def wiring(self) -> JobEndpoints:
        """The endpoints of the ranks, before they are in a namespace.

        Sockets that request it get the rates that the policy plans.
        """
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
        """Replicas that fail and return, if the scenario has them; raises ConfigError if they are not supported."""
        training = self.workload.training
        if training is None:
            return None
        return replication_of(self.scenario, training, self.scale, [host.name for host in self.hosts])

    def as_executed(self, executed: ExecutedPlan | None) -> Job:
        """Return the job with the plan that ranks executed, if the plan was decided during the step.

        Declared traffic stays the same.
        """
        return self if executed is None else replace(self, workload=self.workload.as_executed(executed))

    @property
    def survives_kills(self) -> bool:
        """Whether the job continues when a rank's process is killed."""
        dispatching = self.workload.dispatching
        return self.replication is not None or (
            dispatching is not None and dispatching.rules.retry_s is not None
        )

    @property
    def unmodelled(self) -> tuple[str, ...]:
        """Features of the scenario that the simulation does not model; a step with such a feature has no prediction."""
        return unmodelled(self.scenario)

    def wan_bytes(self, algorithm: str) -> int:
        """Return the payload bytes between buildings per step, over all directions."""
        pairs = self.workload.pairs(algorithm).values()
        return sum(between_groups(part, self.workload.buildings) for part in pairs)


def unmodelled(scenario: Scenario) -> tuple[str, ...]:
    """Return the features of a scenario that the simulation does not model, by name."""
    transport, lossy = scenario.transport, scenario.topology.resolve().lossy
    protocol = PROTOCOLS.find(transport.protocol)
    controls = [transport.congestion_control, *(entry.congestion_control for entry in transport.sockets)]
    known = {*CONGESTION_CONTROLS, *(transport.congestion_models or {})}
    unknown = [name for name in dict.fromkeys(controls) if name and name not in known and lossy]
    kind = TRANSPORTS.find(transport.kind)
    features = {
        "events": bool(scenario.events),
        "failures": bool(scenario.failures),
        "background_traffic": bool(scenario.background_traffic),
        f"transport.kind: {transport.kind}": not kind.modelled,
        f"transport.protocol: {transport.protocol} over {transport.kind}": kind.writes and protocol.copies,
        f"transport.protocol: {transport.protocol}": not protocol.modelled,
        **{f"transport.congestion_control: {name} on links that lose packets": True for name in unknown},
    }
    return tuple(name for name, present in features.items() if present)


def job_of(scenario: Scenario, scale: Scale, link_engine: str = NETEM) -> Job:
    """Return the job of a scenario; raise ConfigError if parallelism does not fit."""
    topology = scenario.topology.resolve(scale)
    workload = workload_of(scenario, topology, scale, link_engine)
    return Job(scenario, scale, topology, scenario.rank_hosts(topology), workload, link_engine)


@dataclass(frozen=True)
class Workload:
    """Every rank's plan.

    Attributes:
        itemsize: Bytes of an element on the wire.
        plan: The plans.
        training: How the plan was made, if the scenario spreads a model over ranks.
        serving: The requests that the plan answers, if any.
    """

    itemsize: int
    plan: JobPlan
    training: Training | None = None
    serving: Serving | None = None

    @property
    def buildings(self) -> tuple[int, ...]:
        """The building of each rank."""
        return self.plan.buildings

    @property
    def message_bytes(self) -> float:
        """The size of the largest messages between two ranks.

        A ring divides an array into one part per member.
        """
        sizes = []
        for operation in (operation for own in self.plan.ranks for operation in own):
            if isinstance(operation, Message):
                sizes.append(float(operation.numel))
            elif isinstance(operation, GroupCollective):
                sizes.append(operation.numel / len(self.plan.groups[operation.group][1]))
        return max(sizes, default=1) * self.itemsize

    @property
    def rank_bytes(self) -> float:
        """The bytes that the busiest rank sends or reduces in a step; its arrays are about as large."""
        sizes = [
            sum(op.numel for op in own if isinstance(op, Message | GroupCollective))
            for own in self.plan.ranks
        ]
        return float(max(sizes) * self.itemsize)

    @property
    def array_bytes(self) -> float:
        """The bytes of all ranks' arrays."""
        return float(plan_elements(self.plan) * self.itemsize)

    @property
    def compute_s(self) -> float:
        """The compute time of the busiest rank in a step."""
        return max(sum(op.duration_s for op in own if isinstance(op, Computing)) for own in self.plan.ranks)

    @property
    def start(self) -> JobPlan:
        """The part of the plan that is known when a step starts."""
        dispatching = self.dispatching
        return self.plan if dispatching is None else replace(self.plan, ranks=dispatching.start.ranks)

    @property
    def dispatching(self) -> Dispatching | None:
        """The dispatcher's inputs, if servers are chosen when requests arrive."""
        return None if self.serving is None else self.serving.dispatching

    def as_executed(self, executed: ExecutedPlan) -> Workload:
        """Return the workload with the plan that ranks executed, if the plan was decided during the step."""
        assert self.serving is not None
        plan = replace(self.plan, ranks=executed.plan.ranks)
        serving = self.serving.as_executed(replace(executed, plan=plan))
        return Workload(self.itemsize, plan, self.training, serving)

    def pairs(self, algorithm: str) -> dict[int, Pairs]:
        """Return the payload bytes per ordered pair of ranks, by DSCP.

        Collectives that do not name an algorithm use `algorithm`.
        """
        return self.plan.cached(("pairs", algorithm, self.itemsize), lambda: self._pairs(algorithm))

    def _pairs(self, algorithm: str) -> dict[int, Pairs]:
        plan = self.plan.with_algorithm(algorithm)
        classes = sorted({0, *plan.dscps.values()})
        return {dscp: plan_traffic(plan, self.itemsize, dscp) for dscp in classes}


def workload_of(scenario: Scenario, topology: Topology, scale: Scale, link_engine: str = NETEM) -> Workload:
    """Return the workload of a scenario; scenario and topology are both in figures of `scale`.

    Raises:
        ConfigError: If parallelism does not fit.
        PluginError: If a plug-in algorithm does not do what its collective promises.
    """
    workload = _make_workload(scenario, topology, scale, link_engine)
    check_plugin_algorithms(workload.plan, scenario.algorithms)
    return workload


def _make_workload(scenario: Scenario, topology: Topology, scale: Scale, link_engine: str) -> Workload:
    spec, request = scenario.workload, JobRequest.of(scenario, topology, scale, link_engine)
    made = make_plan(spec.kind, request, spec.options or {})
    training = made if isinstance(made, Training) else None
    serving = made if isinstance(made, Serving) else None
    plan = made if isinstance(made, JobPlan) else made.plan
    if serving is None and _is_idle(plan):
        expected = "computation or communication, on at least one rank"
        raise wrong_workload("plan" if spec.plan else spec.kind, "a job without any work", expected)
    tuning = tuning_of(spec.tuning, scenario.name, "workload.tuning", scale)
    plan = plan.with_placement(request.building_indices, tuning, plan.near)
    return Workload(
        request.itemsize,
        plan,
        training and replace(training, plan=plan),
        serving and replace(serving, plan=plan),
    )


def _is_idle(plan: JobPlan) -> bool:
    """Return whether no operation of a plan takes time."""
    own = {id(operations): operations for operations in plan.ranks}.values()
    return all(
        isinstance(one, Computing | Pause) and not one.duration_s for operations in own for one in operations
    )


def unused_inputs(scenario: Scenario) -> list[str]:
    """Describe the content of traces and schedule files that no variant uses; may raise TraceError or OSError."""
    own = [scenario] if scenario.variants is None else [scenario.variant(name) for name in scenario.variants]
    return list(dict.fromkeys(item for one in own for item in _unused_of(one.workload)))


def _unused_of(spec: WorkloadSpec) -> list[str]:
    found: list[str] = []
    if spec.is_recorded:
        found += recorded_trace(spec).left_out
    if spec.schedule is not None and spec.schedule.file is not None:
        file = Path(spec.schedule.file)
        counts = implied_actions(file.read_text("utf-8"))
        if counts:
            kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
            found.append(f"{kinds} of {file.name}: messages and gathers follow from the order of computing")
    return found

"""What a job is going to do on a network, as everybody knows it before anything is built. Figures are emulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

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
from testbed.workload.dispatch import Carried
from testbed.workload.job.endpoint_resolution import endpoints_on, wiring_of
from testbed.workload.job.endpoints import THIS_NAMESPACE, Wiring
from testbed.workload.job.plan_source import Workload, workload_of
from testbed.workload.job.replica_plan import replication_of
from testbed.workload.job.replication import Replication
from testbed.workload.job.socket_rules import Planned
from testbed.workload.job.traffic_matrix import flows_of, planned_rates, socket_rules_of

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
    def wiring(self) -> Wiring:
        """Between the ranks, in no namespace yet; sockets with the rates that the policy plans, where that is asked."""
        specs = self.scenario.transport.sockets
        planned: list[Planned] = []
        if any(entry.pacing == PLANNED for entry in specs):
            detours = self.scenario.policy.detours or 0
            planned = planned_rates(self._joined, self.topology, self.flows, detours)
        rules = socket_rules_of(specs, self.scale, self.topology, self.hosts, planned, self.link_engine)
        return replace(self._joined, sockets=rules)

    @cached_property
    def _joined(self) -> Wiring:
        spec = self.scenario.transport
        return wiring_of(
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

"""What a scenario's ranks have to do and to send, whichever way the scenario says it. Figures are those of a scale."""

from __future__ import annotations

from dataclasses import dataclass, replace

from testbed.net.paths.hops import NETEM
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.spec.topology import Topology
from testbed.workload.dispatch import Carried, Dispatching
from testbed.workload.job.errors import wrong_workload
from testbed.workload.job.kinds import JobRequest, make_plan
from testbed.workload.job.traffic_matrix import Pairs
from testbed.workload.job.training import Training
from testbed.workload.job.tuning_choice import tuning_of
from testbed.workload.plan import Computing, GroupCollective, JobPlan, Message, Pause
from testbed.workload.plan_arrays import plan_elements
from testbed.workload.plan_traffic import plan_traffic
from testbed.workload.plugin_algorithms import check_added
from testbed.workload.serving import Serving


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
        return self.plan.remembered(("pairs", algorithm, self.itemsize), lambda: self._pairs(algorithm))

    def _pairs(self, algorithm: str) -> dict[int, Pairs]:
        plan = self.plan.using(algorithm)
        classes = sorted({0, *plan.dscps.values()})
        return {dscp: plan_traffic(plan, self.itemsize, dscp) for dscp in classes}


def workload_of(scenario: Scenario, topology: Topology, scale: Scale, link_engine: str = NETEM) -> Workload:
    """Of a scenario on its topology, both in figures of `scale`. ConfigError where parallelism does not fit.

    PluginError where an algorithm that was added does not do what its collective promises.
    """
    workload = _workload_of(scenario, topology, scale, link_engine)
    check_added(workload.plan, scenario.algorithms)
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
    plan = plan.placed(request.building_indices, tuning, plan.near)
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

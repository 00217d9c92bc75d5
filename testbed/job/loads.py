"""What a scenario's ranks have to do and to send, whichever way the scenario says it. Figures are those of a scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from testbed.collectives import traffic
from testbed.config import Scenario, Topology
from testbed.job.declared import Pairs, total
from testbed.job.training import Training, training_of
from testbed.paths.hops import NETEM
from testbed.scale import Scale
from testbed.workload import Action, Collective, Compute, Exchange, step_program
from testbed.workload.plan import Computing, GroupCollective, JobPlan, Message, Operation
from testbed.workload.plan_traffic import exchange_traffic, plan_traffic, uneven_traffic

ITEMSIZES = {"float32": 4, "int32": 4, "float64": 8, "int64": 8}


@dataclass(frozen=True)
class Load:
    """One program for all ranks, or a plan for each. buildings: of the ranks."""

    itemsize: int
    buildings: tuple[int, ...]
    program: tuple[Action, ...] = ()
    training: Training | None = None
    _pairs: dict[str, dict[int, Pairs]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def plan(self) -> JobPlan:
        """Of the ranks; empty where one program is for all."""
        return JobPlan() if self.training is None else self.training.plan

    @property
    def message_bytes(self) -> float:
        """Of the largest messages between two ranks; a ring sends a bucket in as many parts as there are ranks."""
        sizes = [action.numel / len(self.buildings) for action in self._sending()]
        for operation in self._operations():
            if isinstance(operation, Message):
                sizes.append(operation.numel)
            elif isinstance(operation, GroupCollective):
                sizes.append(operation.numel / len(self.plan.groups[operation.group][1]))
        return max(sizes, default=1) * self.itemsize

    @property
    def rank_bytes(self) -> float:
        """What the busiest rank has to send, or to reduce, in a step; its arrays are about as large."""
        sizes = [sum(action.numel for action in self._sending())]
        sizes += [
            sum(op.numel for op in own if isinstance(op, Message | GroupCollective))
            for own in self.plan.ranks
        ]
        return float(max(sizes) * self.itemsize)

    @property
    def compute_s(self) -> float:
        """Computing of the busiest rank in a step."""
        times = [sum(action.duration_s for action in self.program if isinstance(action, Compute))]
        times += [sum(op.duration_s for op in own if isinstance(op, Computing)) for own in self.plan.ranks]
        return max(times)

    def pairs(self, algorithm: str) -> dict[int, Pairs]:
        """Payload bytes per ordered pair of ranks, by DSCP; algorithm: of what names none."""
        if algorithm not in self._pairs:
            self._pairs[algorithm] = self._count_pairs(algorithm)
        return self._pairs[algorithm]

    def _count_pairs(self, algorithm: str) -> dict[int, Pairs]:
        found: dict[int, list[Pairs]] = {}
        for action in self._sending():
            found.setdefault(action.dscp, []).append(self._pairs_of(action, algorithm))
        for dscp in {0, *self.plan.dscps.values()} if self.plan.ranks else ():
            found.setdefault(dscp, []).append(plan_traffic(self.plan, self.itemsize, dscp))
        return {dscp: total(parts) for dscp, parts in found.items()}

    def _sending(self) -> list[Collective | Exchange]:
        return [action for action in self.program if isinstance(action, Collective | Exchange)]

    def _operations(self) -> list[Operation]:
        return [operation for own in self.plan.ranks for operation in own]

    def _pairs_of(self, action: Collective | Exchange, algorithm: str) -> Mapping[tuple[int, int], int]:
        ranks = len(self.buildings)
        if isinstance(action, Exchange):
            return exchange_traffic(self.buildings, action, self.itemsize)
        if action.collective == "all_to_all_v":
            return uneven_traffic(action.numel, ranks, self.itemsize, action.algorithm == "padded")
        numel = action.numel // (1 if action.collective == "all_reduce" else ranks)
        return traffic(
            action.collective, action.algorithm or algorithm, numel, self.itemsize, list(self.buildings)
        )


def load_of(scenario: Scenario, topology: Topology, scale: Scale, link_engine: str = NETEM) -> Load:
    """Of a scenario on its topology, both in figures of `scale`. ConfigError where parallelism does not fit."""
    hosts = scenario.rank_hosts(topology)
    buildings = tuple(topology.building(host.building).index for host in hosts)
    itemsize = ITEMSIZES[scenario.workload.gradient_dtype]
    if scenario.workload.parallelism is None:
        return Load(itemsize, buildings, step_program(scenario.workload, scenario.ranks, scale))
    training = training_of(scenario, topology, hosts, scale, itemsize, link_engine)
    return Load(itemsize, buildings, training=training)

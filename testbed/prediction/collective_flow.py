"""A collective as a single flow, with the load that all its messages together put on each part of the network.

This is exact if nothing else uses the network: the flow takes as long as the simulation of each message. Other traffic
shares the network with the flow's bytes as it would with the real connections. The rest of the time (latency, software,
waiting for each other) follows after the bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from testbed.comm.transport import Software
from testbed.net.paths.network import Ends, Members, Network, PartShares, Path
from testbed.prediction.fluid import fair_rates
from testbed.workload.plan import GroupCollective, JobPlan, RankPlan
from testbed.workload.plan_volume import group_traffic


class Isolated(NamedTuple):
    """The time of a collective with nothing else on the network, and each rank's software share of that time.

    `burst_bytes` is the most that any connection has to send at once.
    """

    seconds: float
    software_s: Sequence[float]
    burst_bytes: float


def software_part(rank: int) -> str:
    """Return the network part that models a rank's software: its capacity is one second of work per second."""
    return f"software of rank {rank}"


@dataclass(frozen=True, eq=False)
class CollectiveFlow:
    """A collective as a single message.

    `size_bytes` is the size of its busiest connection's data. `shares` is the load on each part per byte of that
    connection. `rest_s` is the isolated time beyond that of the bytes. `burst_bytes` is the data that it has to send at
    once.
    """

    size_bytes: float
    shares: PartShares
    rest_s: float
    burst_bytes: float


def isolated_key(plan: JobPlan, operation: GroupCollective, members: Members, dscp: int) -> Hashable:
    """Return a key that is equal for collectives with the same isolated time, regardless of group number and plan."""
    _, *sending = operation.exchange_key
    return *sending, members, plan.locality_of(operation.group), plan.tuning, dscp


def isolated_plan(plan: JobPlan, operation: GroupCollective, members: Members, dscp: int) -> JobPlan:
    """Return a plan with only this collective."""
    alone: RankPlan = (replace(operation, group=0, after=(), stream=""),)
    ranks = tuple(alone if rank in members else () for rank in range(len(plan.ranks)))
    groups, near = (("alone", members),), plan.near or plan.buildings
    return JobPlan(ranks, groups, dscps={operation.kind: dscp}, tuning=plan.tuning, near=near)


def isolated_software(software: Software) -> Software:
    """Return the software costs of only a collective; its caller has accounted for launch and completion."""
    return replace(software, launch_s=0.0, completion_s=0.0)


class FlowBuilder:
    """A builder of flows for a plan's collectives, once for equal ones; `alone` simulates one message by message."""

    def __init__(
        self,
        network: Network,
        itemsize: int,
        alone: Callable[[GroupCollective, Members, int], Isolated],
    ) -> None:
        self.network, self.itemsize, self.alone = network, itemsize, alone
        self._known: dict[object, CollectiveFlow | None] = {}

    def flow(self, operation: GroupCollective, plan: JobPlan) -> CollectiveFlow | None:
        """Return the flow of a collective of one of the plan's groups; None if it sends nothing."""
        key = operation.exchange_key, plan.dscp(operation)
        if key not in self._known:
            self._known[key] = self._fold(operation, plan)
        return self._known[key]

    def _fold(self, operation: GroupCollective, plan: JobPlan) -> CollectiveFlow | None:
        _, members = plan.groups[operation.group]
        near, dscp = plan.locality_of(operation.group), plan.dscp(operation)
        pairs = group_traffic(operation, members, self.itemsize, near, plan.tuning)
        if not any(pairs.values()):
            return None
        loads: Counter[str] = Counter()
        most = 0.0
        for path, size_bytes in self._paths(pairs, dscp):
            most = max(most, size_bytes)
            loads.update(dict.fromkeys(path.parts, size_bytes))
        alone = self.alone(operation, members, dscp)
        bytes_s = max(load / self.network.capacities[part] for part, load in loads.items())
        software = {software_part(rank): work_s for rank, work_s in enumerate(alone.software_s) if work_s}
        busy_s = max(bytes_s, *software.values(), 0.0)
        shares = {part: load / most for part, load in (*loads.items(), *software.items())}
        return CollectiveFlow(most, shares, max(0.0, alone.seconds - busy_s), alone.burst_bytes)

    def _paths(self, pairs: Mapping[Ends, int], dscp: int) -> Iterator[tuple[Path, float]]:
        """Yield every path of the pairs with its bytes; a pair's paths share bytes in proportion to their rates."""
        taken = {ends: self.network.paths_of(ends, dscp) for ends in pairs}
        rates: Iterator[float] = iter(())
        if any(len(paths) > 1 for paths in taken.values()):
            each = [path.shares for paths in taken.values() for path in paths]
            rates = iter(fair_rates(self.network.capacities, each))
        for ends, paths in taken.items():
            own = [next(rates, 1.0) for _ in paths]
            for path, rate in zip(paths, own, strict=True):
                yield path, self.network.loading_bytes(ends, pairs[ends]) * rate / sum(own)

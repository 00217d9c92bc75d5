"""Closed form for the step of a recorded job; it takes about a millisecond per configuration.

Every rank runs its operations along its streams, by their dependencies. An operation takes as long as its kind of
traffic does when all groups of that kind are busy at once (`idle_rates`). Ranks do not wait for each other. The result
is the time of the slowest rank, or the load of the busiest network part over all kinds of traffic if that is longer.
Paths are shortest paths; policies make no difference.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from testbed.prediction.closed_form import ChangedNetworks, Changes
from testbed.prediction.idle_rates import IdleCost, collective_cost, pairs_cost
from testbed.spec.errors import ConfigError
from testbed.spec.scale import UNSCALED
from testbed.spec.scenario import Scenario
from testbed.workload.dependency_tracker import waits
from testbed.workload.job.job import workload_of
from testbed.workload.job.kinds.trace import (
    Pairs,
    accepts_algorithm,
    check_choices,
    rank_order,
    recorded_trace,
)
from testbed.workload.plan import Computing, GroupCollective, JobPlan, Message, Operation, Pause
from testbed.workload.plan_volume import plan_traffic

PLACEMENT, MAPPING, ALGORITHMS = "workload.placement", "workload.mapping", "workload.algorithms"


@dataclass(frozen=True)
class _Traffic:
    """A kind of traffic; `collective` is "" for messages, and `algorithm` is "" for the scenario's."""

    kind: str
    collective: str = ""
    algorithm: str = ""


@dataclass
class _Use:
    """The use of a kind of traffic: the bytes of the busiest rank, and the groups or (sender, receiver) pairs."""

    size_bytes: float
    joined: set[tuple[int, ...]]


@dataclass(frozen=True)
class _Action:
    """An operation: its dependencies by number, and either its duration or the bytes of a kind of traffic."""

    waits: tuple[int, ...]
    seconds: float = 0.0
    traffic: _Traffic | None = None
    size_bytes: float = 0.0


class RecordedScreener:
    """An estimator of step times for a scenario with a trace; `most` and `coarse` are as in `Screener`."""

    most = 20_000
    coarse = (PLACEMENT, MAPPING, "topology", "algorithms")

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._trace = recorded_trace(scenario.workload)
        self._networks = ChangedNetworks(scenario)
        self._orders: dict[str, tuple[int, ...]] = {}
        self._costs: dict[str, IdleCost] = {}

    def looks_at(self, path: str) -> bool:
        """Return whether the estimate depends on the value at this path of a scenario."""
        named = (PLACEMENT, MAPPING, ALGORITHMS, "algorithms")
        return path in named or path.startswith((f"{ALGORITHMS}.", "topology"))

    def step_s(self, changes: Changes) -> float | None:
        """Return the estimate in seconds; None for an invalid configuration."""
        seen = {path: value for path, value in changes.items() if self.looks_at(path)}
        try:
            costs = {traffic: self._cost(traffic, seen) for traffic in self._traffic_uses}
        except ConfigError:
            return None
        busy: dict[str, float] = {}
        for traffic, cost in costs.items():
            for part, byte_s in cost.parts.items():
                busy[part] = busy.get(part, 0.0) + byte_s * self._traffic_uses[traffic].size_bytes
        return max(*(_program_s(own, costs) for own in self._programs), *busy.values(), 0.0)

    @cached_property
    def _plan(self) -> JobPlan:
        """The plan as recorded, before the scenario's choices."""
        given = {"placement": None, "mapping": None, "algorithms": None}
        workload = self._scenario.workload.model_copy(update=given)
        alone = self._scenario.model_copy(update={"workload": workload, "explore": None})
        return workload_of(alone, alone.topology.resolve(), UNSCALED).plan

    @cached_property
    def _programs(self) -> list[tuple[_Action, ...]]:
        """The distinct programs of all ranks."""
        return list(dict.fromkeys(self._program(own) for own in self._plan.ranks))

    def _program(self, own: Sequence[Operation]) -> tuple[_Action, ...]:
        return tuple(self._action(one, before) for one, before in zip(own, waits(own), strict=True))

    def _action(self, operation: Operation, before: tuple[int, ...]) -> _Action:
        itemsize = self._scenario.workload.itemsize
        if isinstance(operation, Computing | Pause):
            return _Action(before, operation.duration_s)
        assert isinstance(operation, GroupCollective | Message)
        return _Action(before, 0.0, _traffic_of(operation), float(operation.numel * itemsize))

    @cached_property
    def _traffic_uses(self) -> dict[_Traffic, _Use]:
        found: dict[_Traffic, _Use] = {}
        for rank, own in enumerate(self._plan.ranks):
            sizes: Counter[_Traffic] = Counter()
            for one in own:
                if isinstance(one, GroupCollective):
                    ends = self._plan.groups[one.group][1]
                elif isinstance(one, Message) and one.sends:
                    ends = (rank, one.peer)
                else:
                    continue
                traffic = _traffic_of(one)
                sizes[traffic] += one.numel * self._scenario.workload.itemsize
                found.setdefault(traffic, _Use(0.0, set())).joined.add(ends)
            for traffic, size in sizes.items():
                found[traffic].size_bytes = max(found[traffic].size_bytes, float(size))
        return found

    def _cost(self, traffic: _Traffic, seen: Changes) -> IdleCost:
        """Return the cost of a kind of traffic; raise ConfigError for changes that the scenario does not accept."""
        algorithm = self._algorithm(traffic, seen)
        where = {path: value for path, value in seen.items() if not path.startswith(ALGORITHMS)}
        key = json.dumps([traffic.kind, traffic.collective, algorithm, where], sort_keys=True)
        if key not in self._costs:
            network, hosts = self._networks.of(seen)
            buildings = [host.building for host in hosts]
            places = {rank: place for place, rank in enumerate(self._order(where))}
            groups = [
                tuple(places[rank] for rank in members)
                for members in sorted(self._traffic_uses[traffic].joined)
            ]
            if traffic.collective:
                self._costs[key] = collective_cost(network, groups, traffic.collective, algorithm, buildings)
            else:
                self._costs[key] = pairs_cost(network, [(source, target) for source, target in groups])
        return self._costs[key]

    def _algorithm(self, traffic: _Traffic, seen: Changes) -> str:
        if traffic.collective == "all_to_all":
            known = traffic.algorithm or "direct"
        else:
            known = traffic.algorithm or str(seen.get("algorithms", self._scenario.algorithms)[0])
        named = seen.get(ALGORITHMS, self._scenario.workload.algorithms) or {}
        asked = seen.get(f"{ALGORITHMS}.{traffic.kind}", named.get(traffic.kind))
        fits = asked is not None and traffic.collective and accepts_algorithm(traffic.collective, asked)
        return str(asked) if fits else known

    def _order(self, where: Changes) -> tuple[int, ...]:
        key = json.dumps(where, sort_keys=True)
        if key not in self._orders:
            own = {path: value for path, value in where.items() if path in (PLACEMENT, MAPPING)}
            changed = self._scenario.changed(own, "a configuration") if own else self._scenario
            check_choices(self._trace, changed.workload, "a configuration")
            hosts = changed.rank_hosts(changed.topology.resolve())
            self._orders[key] = rank_order(
                self._trace, changed.workload, hosts, lambda: self._networks.of(where)[0], lambda: self._pairs
            )
        return self._orders[key]

    @cached_property
    def _pairs(self) -> Pairs:
        plan = self._plan.with_algorithm(self._scenario.algorithms[0])
        return plan_traffic(plan, self._scenario.workload.itemsize)


def _traffic_of(operation: GroupCollective | Message) -> _Traffic:
    if isinstance(operation, Message):
        return _Traffic(operation.kind)
    # uneven rows are counted as if they were even
    if operation.uneven:
        return _Traffic(operation.kind, "all_to_all")
    return _Traffic(operation.kind, operation.collective, operation.algorithm)


def _program_s(program: Sequence[_Action], costs: Mapping[_Traffic, IdleCost]) -> float:
    """Return when the last of a rank's operations ends."""
    ends: list[float] = []
    for action in program:
        begin_s = max([ends[number] for number in action.waits], default=0.0)
        seconds = costs[action.traffic].seconds(action.size_bytes) if action.traffic else action.seconds
        ends.append(begin_s + seconds)
    return max(ends, default=0.0)

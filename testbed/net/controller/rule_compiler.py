"""From a policy and what it knows to the rules of every edge and the queues of every link. Pure, and checked.

Whatever a policy says is looked at before a switch hears of it: that links are there and lead on from where they are
named, that shares add up, that no packet runs in circles or is dropped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from testbed.errors import did_you_mean
from testbed.net.controller.edges import (
    BUILDING_PRIORITY,
    DROP_PRIORITY,
    EdgePorts,
    check_edges,
    fixed_rules,
    link_ports,
)
from testbed.net.controller.policies import POLICIES, Mark, Policy, Route
from testbed.net.controller.policies.base import MAX_RANK
from testbed.net.controller.policy_view import View, both_ways
from testbed.net.controller.rules import (
    MAX_DSCP,
    MAX_SEED,
    Action,
    Ecmp,
    FastFailover,
    Goto,
    Match,
    Output,
    Packet,
    Rule,
    SetDscp,
)
from testbed.net.controller.table_simulator import AmbiguousRulesError, Network, wires
from testbed.net.errors import ControllerError, PolicyError
from testbed.plugins import PluginError, describe_exception
from testbed.spec.link_direction import QueueClass
from testbed.spec.topology import Topology

ROUTES_AFTER_MARKS = 1
"""The table of the routes where another one before it marks packets."""


@dataclass(frozen=True)
class PolicyChoice:
    """A policy by name, or `FILE:CLASS` for one's own, and its options. `replan`: None as the policy has it."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    replan: bool | None = None

    def to_data(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    @property
    def goes_by_sizes(self) -> bool:
        """Whether paths may be others where flows carry more, or less. PolicyError."""
        return bool(vars(self._kind).get("goes_by_sizes", True))  # what is derived says it for itself

    @property
    def _kind(self) -> type[Policy]:
        try:
            return POLICIES.find(self.name)
        except PluginError as error:
            raise PolicyError(str(error)) from error

    def make(self) -> Policy:
        """The policy itself. PolicyError."""
        kind = self._kind
        with _errors_of(self.name):
            policy = kind(**self.options)
        if self.replan is not None:
            policy.replan = self.replan
        return policy


@dataclass(frozen=True)
class CompiledPolicy:
    """What a policy comes to: rules by datapath id, queues of every WAN link; empty for one queue."""

    rules: Mapping[int, Sequence[Rule]]
    classes: tuple[QueueClass, ...] = ()
    notes: Mapping[str, float] = field(default_factory=dict)


@contextlib.contextmanager
def _errors_of(name: str) -> Iterator[None]:
    """What a policy raises becomes one PolicyError that names it and its line."""
    try:
        yield
    except PolicyError as error:
        if str(error).startswith("policy "):
            raise
        raise PolicyError(f"policy {name}: {error}") from error
    except ControllerError as error:
        raise PolicyError(f"policy {name}: {error}") from error
    except Exception as error:
        raise PolicyError(
            f"policy {name}: {describe_exception(error, Path(name.rpartition(':')[0]))}"
        ) from error


def compute(choice: PolicyChoice | Policy, view: View, edges: Sequence[EdgePorts]) -> CompiledPolicy:
    """What a policy comes to in this network, now.

    NoPathError when two buildings are not joined though no link is down; PolicyError when what the policy says does not
    fit the network; ControllerError when ports do not.
    """
    check_edges(view.topology, edges)
    if not view.down:
        view.check_connected()
    policy = choice if isinstance(choice, Policy) else choice.make()
    name = type(policy).__name__ if isinstance(choice, Policy) else choice.name
    with _errors_of(name):
        marks = list(policy.marks(view))
        routes = list(policy.routes(view))
        classes = tuple(policy.classes(view))
        _check_classes(classes)
        rules = _rules(view, edges, routes, marks)
        _check_journeys(view, edges, rules)
        notes = {
            key: value for key in ("bound", "reached") if (value := getattr(policy, key, None)) is not None
        }
    return CompiledPolicy(rules, classes, notes)


def compute_rules(
    policy: str, topology: Topology, edges: Sequence[EdgePorts], seed: int = 0
) -> dict[int, Sequence[Rule]]:
    """The rules of every edge, by datapath id, where nothing is declared; see `compute`."""
    return dict(compute(PolicyChoice(policy), View(topology, seed=seed), edges).rules)


def _rules(
    view: View, edges: Sequence[EdgePorts], routes: Iterable[Route], marks: Iterable[Mark]
) -> dict[int, list[Rule]]:
    ports = {edge.building: link_ports(view.topology, edge) for edge in edges}
    by_building: dict[str, list[Rule]] = {edge.building: [] for edge in edges}
    marked = _marks(view, marks)
    table = ROUTES_AFTER_MARKS if marked else 0
    seen: dict[tuple[str, int, Match], Route] = {}
    for route in routes:
        if route.at not in by_building:
            raise PolicyError(
                f"route {route.comment!r}: at {route.at!r}, expected a building: "
                + did_you_mean(route.at, list(by_building))
            )
        if not 0 <= route.rank <= MAX_RANK:
            raise PolicyError(f"route {route.comment!r}: rank {route.rank}, expected 0 to {MAX_RANK}")
        key = route.at, route.rank, route.match
        if key in seen:
            if seen[key] == route:
                continue
            raise PolicyError(f"two routes at {route.at} for {route.match}: rank tells which one counts")
        seen[key] = route
        action = _action(view, route, ports[route.at])
        priority = BUILDING_PRIORITY + route.rank
        by_building[route.at].append(Rule(priority, route.match, (action,), route.comment, table))
    rules: dict[int, list[Rule]] = {}
    for edge in edges:
        own = [
            rule if not table else Rule(rule.priority, rule.match, rule.actions, rule.comment, table)
            for rule in fixed_rules(view.topology, edge)
        ]
        first = [
            Rule(
                BUILDING_PRIORITY,
                Match(edge.local, ipv4_src=f"{address}/32"),
                (SetDscp(dscp), Goto(table)),
                f"{host} is marked {dscp}",
            )
            for host, building, address, dscp in marked
            if building == edge.building
        ]
        if table:
            first.append(Rule(DROP_PRIORITY, Match(), (Goto(table),), "everything else as it is"))
        # the last of the fixed rules drops what is left
        rules[edge.dpid] = [*first, *own[:-1], *by_building[edge.building], own[-1]]
    return rules


def _action(view: View, route: Route, ports: Mapping[str, int]) -> Action:
    if not route.links:
        raise PolicyError(f"route at {route.at} for {route.match}: no links")
    for link in route.links:
        if link not in ports:
            expected = f"one of {route.at}'s links: {did_you_mean(link, list(ports))}"
            raise PolicyError(f"route at {route.at} for {route.match}: got {link!r}, expected {expected}")
    numbers = tuple(ports[link] for link in route.links)
    if len(set(numbers)) == 1:
        return Output(numbers[0])
    return FastFailover(numbers) if route.first_up else Ecmp(numbers, view.seed % (MAX_SEED + 1))


def _marks(view: View, marks: Iterable[Mark]) -> list[tuple[str, str, str, int]]:
    hosts = {host.name: host for host in view.topology.hosts}
    found = []
    for mark in marks:
        if mark.host not in hosts:
            raise PolicyError(
                f"mark: got {mark.host!r}, expected a host: {did_you_mean(mark.host, list(hosts))}"
            )
        host = hosts[mark.host]
        found.append((host.name, host.building, host.ip, mark.dscp))
    return found


def _check_journeys(view: View, edges: Sequence[EdgePorts], rules: Mapping[int, Sequence[Rule]]) -> None:
    """Every pair of buildings with hosts and every declared flow arrives, once: tried in the in-memory network.

    With links down what has no way may be dropped, but nothing may run in circles.
    """
    network = Network(rules, wires(view.topology, edges))
    by_building = {edge.building: edge for edge in edges}
    first = {building.name: building.hosts[0].ip for building in view.topology.populated}
    tries = [
        (f"packets from {here} to {there}", here, there, Packet(first[here], first[there]))
        for here in first
        for there in first
        if here != there
    ]
    tries += [(f"flow {flow}", *view.ends(flow), view.packet(flow)) for flow in both_ways(view.crossing)]
    for what, here, there, packet in tries:
        start, end = by_building[here].entry, by_building[there].entry
        try:
            journey = network.forward(packet, start)
        except AmbiguousRulesError as error:
            raise PolicyError(f"{what}: two rules of one rank: {error}") from error
        if journey.looped:
            raise PolicyError(f"{what} would run in circles")
        wrong = set(journey.delivered) - {end}
        if wrong or len(journey.delivered) > 1 or not (journey.delivered or view.down):
            raise PolicyError(f"{what} would {'come out elsewhere' if journey.delivered else 'be dropped'}")


def _check_classes(classes: Sequence[QueueClass]) -> None:
    names, dscps = [entry.name for entry in classes], [dscp for entry in classes for dscp in entry.dscps]
    if not classes:
        return
    if len(set(names)) != len(names):
        raise PolicyError(f"classes: names {names} are not all different")
    for dscp in dscps:
        if not 0 <= dscp <= MAX_DSCP or dscps.count(dscp) > 1:
            raise PolicyError(f"classes: got DSCP {dscp}, expected 0 to {MAX_DSCP}, in one class only")
    if sum(not entry.dscps for entry in classes) != 1:
        raise PolicyError("classes: expected exactly one without DSCPs, for whatever the others do not name")
    for entry in classes:
        if not (0.0 <= entry.share <= 1.0 and 0.0 < entry.limit <= 1.0 and entry.share <= entry.limit):
            raise PolicyError(
                f"class {entry.name}: got share {entry.share:.4g} and limit {entry.limit:.4g}, "
                "expected 0 to 1, the share at most the limit"
            )
    total = sum(entry.share for entry in classes)
    if total > 1.0 + 1e-9:
        raise PolicyError(f"classes: got shares of {total:.4%} in all, expected at most 100 %")

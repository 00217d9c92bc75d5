"""The compiler from a policy and a view of the network to the rules of every edge and the queues of every link.

It is pure, and checks a policy's result before a switch gets it: links exist at their buildings, shares add up, and no
packet loops or is dropped.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from testbed.net.controller.policy_view import View, with_reverse_flows
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
"""The flow table of the routes when table 0 marks packets."""


@dataclass(frozen=True)
class PolicyChoice:
    """A policy by name, or by `FILE:CLASS` for a user-defined one, with its options.

    `replan` overrides the policy's own attribute unless it is None.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    replan: bool | None = None

    @property
    def goes_by_sizes(self) -> bool:
        """Whether paths depend on the sizes of flows; raises PolicyError for an unknown policy."""
        return bool(vars(self._kind).get("goes_by_sizes", True))  # not inherited

    @property
    def _kind(self) -> type[Policy]:
        try:
            return POLICIES.find(self.name)
        except PluginError as error:
            raise PolicyError(str(error)) from error

    def make(self) -> Policy:
        """Instantiate the policy; raises PolicyError if its name or options are invalid."""
        kind = self._kind
        with _wrap_errors(self.name):
            policy = kind(**self.options)
        if self.replan is not None:
            policy.replan = self.replan
        return policy


@dataclass(frozen=True)
class CompiledPolicy:
    """The result of a policy: rules by datapath id, and the queues of every WAN link (empty for a single queue)."""

    rules: Mapping[int, Sequence[Rule]]
    classes: tuple[QueueClass, ...] = ()
    notes: Mapping[str, float] = field(default_factory=dict)


@contextlib.contextmanager
def _wrap_errors(name: str) -> Iterator[None]:
    """Turn any exception of a policy into one PolicyError with the policy's name and line."""
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
    """Compile a policy for a network's current state.

    Raises:
        NoPathError: Two buildings are not connected although no link is down.
        PolicyError: The policy's result does not fit the network.
        ControllerError: The edges' ports do not fit the topology.
    """
    check_edges(view.topology, edges)
    if not view.down:
        view.check_connected()
    policy = choice if isinstance(choice, Policy) else choice.make()
    name = type(policy).__name__ if isinstance(choice, Policy) else choice.name
    with _wrap_errors(name):
        marks = list(policy.marks(view))
        routes = list(policy.routes(view))
        classes = tuple(policy.classes(view))
        _check_classes(classes)
        rules = _compile_rules(view, edges, routes, marks)
        _check_forwarding(view, edges, rules)
        notes = {
            key: value for key in ("bound", "reached") if (value := getattr(policy, key, None)) is not None
        }
    return CompiledPolicy(rules, classes, notes)


def compute_rules(
    policy: str, topology: Topology, edges: Sequence[EdgePorts], seed: int = 0
) -> dict[int, Sequence[Rule]]:
    """Compile a policy without declared traffic and return the rules of every edge by datapath id; see `compute`."""
    return dict(compute(PolicyChoice(policy), View(topology, seed=seed), edges).rules)


def _compile_rules(
    view: View, edges: Sequence[EdgePorts], routes: Iterable[Route], marks: Iterable[Mark]
) -> dict[int, list[Rule]]:
    ports = {edge.building: link_ports(view.topology, edge) for edge in edges}
    by_building: dict[str, list[Rule]] = {edge.building: [] for edge in edges}
    marking = _marking_rules(view, edges, marks)
    table = ROUTES_AFTER_MARKS if marking else 0
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
            raise PolicyError(f"two routes at {route.at} for {route.match}: expected different ranks")
        seen[key] = route
        action = _compile_action(view, route, ports[route.at])
        priority = BUILDING_PRIORITY + route.rank
        by_building[route.at].append(Rule(priority, route.match, (action,), route.comment, table))
    rules: dict[int, list[Rule]] = {}
    for edge in edges:
        own = [replace(rule, table=table) for rule in fixed_rules(view.topology, edge)]
        first = marking.get(edge.building, [])
        if table:
            first.append(Rule(DROP_PRIORITY, Match(), (Goto(table),), "everything else is not marked"))
        drop = Rule(DROP_PRIORITY, Match(), comment="everything else", table=table)
        rules[edge.dpid] = [*first, *own, *by_building[edge.building], drop]
    return rules


def _compile_action(view: View, route: Route, ports: Mapping[str, int]) -> Action:
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


def _marking_rules(view: View, edges: Sequence[EdgePorts], marks: Iterable[Mark]) -> dict[str, list[Rule]]:
    """Return the rules that mark packets, by building; empty without marks."""
    hosts = {host.name: host for host in view.topology.hosts}
    local = {edge.building: edge.local for edge in edges}
    found: dict[str, list[Rule]] = defaultdict(list)
    for mark in marks:
        if mark.host not in hosts:
            raise PolicyError(
                f"mark: got {mark.host!r}, expected a host: {did_you_mean(mark.host, list(hosts))}"
            )
        host = hosts[mark.host]
        match = Match(local[host.building], ipv4_src=f"{host.ip}/32")
        actions = SetDscp(mark.dscp), Goto(ROUTES_AFTER_MARKS)
        comment = f"{host.name} is marked {mark.dscp}"
        found[host.building].append(Rule(BUILDING_PRIORITY, match, actions, comment))
    return found


def _check_forwarding(view: View, edges: Sequence[EdgePorts], rules: Mapping[int, Sequence[Rule]]) -> None:
    """Check in the table simulator that every pair of buildings and every declared flow is delivered once.

    With links down, packets without a path may be dropped, but none may loop.
    """
    network = Network(rules, wires(view.topology, edges))
    by_building = {edge.building: edge for edge in edges}
    first = {building.name: building.hosts[0].ip for building in view.topology.populated}
    probes = [
        (f"packets from {here} to {there}", here, there, Packet(first[here], first[there]))
        for here in first
        for there in first
        if here != there
    ]
    flows = with_reverse_flows(view.crossing)
    probes += [(f"flow {flow}", *view.ends(flow), view.packet(flow)) for flow in flows]
    for what, here, there, packet in probes:
        start, end = by_building[here].entry, by_building[there].entry
        try:
            trace = network.forward(packet, start)
        except AmbiguousRulesError as error:
            raise PolicyError(f"{what}: two rules of the same rank match: {error}") from error
        if trace.looped:
            raise PolicyError(f"{what} would loop")
        wrong = set(trace.delivered) - {end}
        if wrong or len(trace.delivered) > 1 or not (trace.delivered or view.down):
            raise PolicyError(f"{what} would {'arrive elsewhere' if trace.delivered else 'be dropped'}")


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
        raise PolicyError("classes: expected exactly one without DSCPs, for packets of no other class")
    for entry in classes:
        if not (0.0 <= entry.share <= 1.0 and 0.0 < entry.limit <= 1.0 and entry.share <= entry.limit):
            raise PolicyError(
                f"class {entry.name}: got share {entry.share:.4g} and limit {entry.limit:.4g}, "
                "expected 0 to 1, the share at most the limit"
            )
    total = sum(entry.share for entry in classes)
    if total > 1.0 + 1e-9:
        raise PolicyError(f"classes: got shares of {total:.4%} in total, expected at most 100 %")

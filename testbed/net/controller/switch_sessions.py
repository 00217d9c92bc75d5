"""The state of each connected switch: desired and installed rules, their difference, and port reports."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from testbed.net.controller.openflow import (
    FlowMod,
    flow_removal,
    group_mod,
    group_removal,
    groups_of,
    parse_match,
    parse_rule,
)
from testbed.net.controller.rules import FastFailover, Match, Rule, ports_of

Rules = Mapping[int, Sequence[Rule]]
"""The rules of every switch, by datapath id."""


@dataclass
class Session:
    """One OpenFlow connection of one switch."""

    datapath: Any
    bridge: str = ""
    sent: dict[int, Rule | None] = field(default_factory=dict)  # by transaction id; None: not a rule
    ports: dict[int, bool] = field(default_factory=dict)  # port number -> whether it is up
    flows: list[Any] = field(default_factory=list)
    groups: dict[int, FastFailover | None] = field(default_factory=dict)
    desired: DesiredState | None = None
    writes: int = 0
    busy: bool = False  # from requesting the rules until they match the desired ones
    refused: bool = False
    bundles: int = 0

    def __str__(self) -> str:
        return f"bridge {self.bridge} (datapath id {self.datapath.id:016x})"

    def missing_port(self, rules: Sequence[Rule]) -> str | None:
        """Return a message about a port that rules name but the switch lacks; None if it has all."""
        missing = sorted(ports_of(rules) - set(self.ports))
        if not missing:
            return None
        return f"{self}: no port {missing[0]}, which the rules name; it has {sorted(self.ports)}"


@dataclass
class Change:
    """A change of all switches' rules that is in progress, and its completion callback."""

    former: Rules
    pending: set[int]
    done: Callable[[str | None], None]
    changed: int = 0
    begun_s: float = field(default_factory=time.monotonic)


MAX_DESCRIBED = 5


@dataclass(frozen=True)
class Difference:
    """The difference between a switch's flows and the desired rules; false if there is none."""

    missing: tuple[Rule, ...]
    foreign: tuple[Any, ...]  # flow entries as received

    def __bool__(self) -> bool:
        return bool(self.missing or self.foreign)

    def overwrites(self, flow: Any) -> bool:
        """Return whether a missing rule replaces a foreign flow, with the same table, priority and match."""
        try:
            key = (flow.table_id, flow.priority, parse_match(flow.match))
        except ValueError:
            return False
        return key in self._keys

    @cached_property
    def _keys(self) -> set[tuple[int, int, Match]]:
        return {(rule.table, rule.priority, rule.match) for rule in self.missing}

    def describe(self, datapath: Any) -> str:
        """Describe the first few differences for people."""
        items = [f"missing: {rule}" for rule in self.missing[:MAX_DESCRIBED]]
        items += [f"not ours: {_describe_flow(datapath, flow)}" for flow in self.foreign[:MAX_DESCRIBED]]
        more = len(self.missing) + len(self.foreign) - MAX_DESCRIBED
        return "; ".join([*items[:MAX_DESCRIBED], *([f"and {more} more"] if more > 0 else [])])


class DesiredState:
    """The rules that a switch should hold, encoded once."""

    def __init__(self, datapath: Any, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self.groups = groups_of(rules)
        self._messages = {
            message.key: message for message in (FlowMod(datapath, rule) for rule in self.rules)
        }
        self._rules = dict(zip(self._messages, self.rules, strict=True))

    def changes(
        self, datapath: Any, difference: Difference, groups: Mapping[int, FastFailover | None]
    ) -> Iterator[tuple[Any, Rule | None]]:
        """Yield the messages that bring a switch to this state, in order, each with the rule it adds or None.

        Args:
            datapath: The switch.
            difference: How its flows differ from this state.
            groups: The groups that it has, by group id.
        """
        for number, group in self.groups.items():
            if groups.get(number) != group:
                if number in groups:
                    yield group_removal(datapath, number), None
                yield group_mod(datapath, group), None
        added = set(map(id, difference.missing))
        yield from ((self._messages[key], rule) for key, rule in self._rules.items() if id(rule) in added)
        for flow in difference.foreign:
            if not difference.overwrites(flow):
                yield flow_removal(datapath, flow), None
        for number in groups:
            if number not in self.groups:
                yield group_removal(datapath, number), None

    def compare(self, datapath: Any, flows: Sequence[Any], groups: Mapping[int, FastFailover]) -> Difference:
        """Compare the flows of a statistics reply with the desired rules.

        Most flows are recognised by their bytes; only the others are parsed.
        """
        missing = dict(self._rules)
        foreign, unrecognised = [], []
        for flow in flows:
            key = flow.key
            rule = self._rules.get(key)
            if rule is None or not self._groups_installed(rule, groups):
                unrecognised.append(flow)
            elif key in missing:
                del missing[key]
            else:
                foreign.append(flow)
        by_rule = {rule: key for key, rule in missing.items()} if unrecognised else {}
        for flow in unrecognised:
            try:
                key = by_rule.pop(parse_rule(datapath, flow, groups), None)
            except ValueError:
                key = None
            if key is None:
                foreign.append(flow)
            else:
                del missing[key]
        return Difference(tuple(missing.values()), tuple(foreign))

    def counts(self, flows: Sequence[Any]) -> list[tuple[Rule, int, int]]:
        """Return (rule, packets, bytes) for the flows of a statistics reply that match a desired rule."""
        return [
            (self._rules[flow.key], flow.packet_count, flow.byte_count)
            for flow in flows
            if flow.key in self._rules
        ]

    def _groups_installed(self, rule: Rule, groups: Mapping[int, FastFailover]) -> bool:
        return all(
            groups.get(action.group_id) == action
            for action in rule.actions
            if isinstance(action, FastFailover)
        )


def _describe_flow(datapath: Any, flow: Any) -> str:
    try:
        return str(parse_rule(datapath, flow))
    except ValueError as error:
        return f"priority {flow.priority}, {error}"


@dataclass(frozen=True)
class PortReport:
    """The ports (datapath id, number) that were down at a time, as the switches reported."""

    time_s: float
    ports_down: frozenset[tuple[int, int]]


class PortReports:
    """A queue of port reports; each is due `reaction_s` after its arrival.

    Reports that become due while the controller is busy are taken together; only the latest counts.
    """

    def __init__(self, reaction_s: float) -> None:
        self._reaction_s = reaction_s
        self._reports: deque[PortReport] = deque()

    def add(self, report: PortReport) -> None:
        """Add a report that has just arrived."""
        self._reports.append(report)

    def wait_s(self, now_s: float) -> float | None:
        """Return the seconds until the next report is due; None if there is none."""
        return max(0.0, self._reports[0].time_s + self._reaction_s - now_s) if self._reports else None

    def take(self, now_s: float) -> PortReport | None:
        """Remove all due reports and return the latest; None if none is due."""
        found = None
        while self._reports and self._reports[0].time_s + self._reaction_s <= now_s:
            found = self._reports.popleft()
        return found

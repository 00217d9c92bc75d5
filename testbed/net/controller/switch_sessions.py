"""State of each connected switch: desired and installed rules, their difference, port reports."""

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
    match_of,
    rule_of,
)
from testbed.net.controller.rules import FastFailover, Match, Rule

Rules = Mapping[int, Sequence[Rule]]
"""Every switch's rules, by datapath id."""


@dataclass
class Session:
    """One connection of one switch."""

    datapath: Any
    bridge: str = ""
    sent: dict[int, Rule | None] = field(default_factory=dict)  # by transaction id; None: not a rule
    ports: dict[int, bool] = field(default_factory=dict)  # whether each is up
    flows: list[Any] = field(default_factory=list)
    groups: dict[int, FastFailover | None] = field(default_factory=dict)
    wanted: DesiredState | None = None
    written: int = 0
    busy: bool = False  # between asking for what is there and knowing that all is well
    refused: bool = False
    bundles: int = 0

    def __str__(self) -> str:
        return f"bridge {self.bridge} (datapath id {self.datapath.id:016x})"


@dataclass
class Change:
    """Rules on their way into the switches, and who wants to know."""

    former: Rules
    waiting: set[int]
    done: Callable[[str | None], None]
    changed: int = 0
    begun_s: float = field(default_factory=time.monotonic)


MAX_WORDS = 5


@dataclass(frozen=True)
class Difference:
    """How the flows of a switch differ from the rules it should hold; false when they do not."""

    missing: tuple[Rule, ...]
    foreign: tuple[Any, ...]  # flows as they came

    def __bool__(self) -> bool:
        return bool(self.missing or self.foreign)

    def replaced(self, flow: Any) -> bool:
        """Whether adding the missing rules overwrites a foreign flow: same table, priority and match."""
        try:
            key = (flow.table_id, flow.priority, match_of(flow.match))
        except ValueError:
            return False
        return key in self._keys

    @cached_property
    def _keys(self) -> set[tuple[int, int, Match]]:
        return {(rule.table, rule.priority, rule.match) for rule in self.missing}

    def words(self, datapath: Any) -> str:
        """For people; only the first few of many."""
        words = [f"missing: {rule}" for rule in self.missing[:MAX_WORDS]]
        words += [f"not ours: {_flow_words(datapath, flow)}" for flow in self.foreign[:MAX_WORDS]]
        more = len(self.missing) + len(self.foreign) - MAX_WORDS
        return "; ".join([*words[:MAX_WORDS], *([f"and {more} more"] if more > 0 else [])])


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
        """What brings a switch with these groups to what is wanted, in order, with the rule that each message adds."""
        for number, group in self.groups.items():
            if groups.get(number) != group:
                if number in groups:
                    yield group_removal(datapath, number), None
                yield group_mod(datapath, group), None
        yield from self.messages(difference)
        for flow in difference.foreign:
            if not difference.replaced(flow):
                yield flow_removal(datapath, flow), None
        for number in groups:
            if number not in self.groups:
                yield group_removal(datapath, number), None

    def messages(self, difference: Difference) -> Iterator[tuple[FlowMod, Rule]]:
        """What adds the missing rules."""
        missing = set(map(id, difference.missing))
        for key, rule in self._rules.items():
            if id(rule) in missing:
                yield self._messages[key], rule

    def compare(self, datapath: Any, flows: Sequence[Any], groups: Mapping[int, FastFailover]) -> Difference:
        """Compare the flows of a statistics reply with the rules that should be there, and nothing else."""
        missing = dict(self._rules)
        foreign, strange = [], []
        for flow in flows:
            key = flow.key
            rule = self._rules.get(key)
            if rule is None or not self._groups_stand(rule, groups):
                strange.append(flow)
            elif key in missing:
                del missing[key]
            else:
                foreign.append(flow)
        by_rule = {rule: key for key, rule in missing.items()} if strange else {}
        for flow in strange:
            try:
                key = by_rule.pop(rule_of(datapath, flow, groups), None)
            except ValueError:
                key = None
            if key is None:
                foreign.append(flow)
            else:
                del missing[key]
        return Difference(tuple(missing.values()), tuple(foreign))

    def counts(self, flows: Sequence[Any]) -> list[tuple[Rule, int, int]]:
        """(rule, packets, bytes) of those flows of a statistics reply that are among the rules."""
        return [
            (self._rules[flow.key], flow.packet_count, flow.byte_count)
            for flow in flows
            if flow.key in self._rules
        ]

    def _groups_stand(self, rule: Rule, groups: Mapping[int, FastFailover]) -> bool:
        return all(
            groups.get(action.group_id) == action
            for action in rule.actions
            if isinstance(action, FastFailover)
        )


def _flow_words(datapath: Any, flow: Any) -> str:
    try:
        return str(rule_of(datapath, flow))
    except ValueError as error:
        return f"priority {flow.priority}, {error}"


@dataclass(frozen=True)
class PortReport:
    """Which ports (datapath id, number) were down at a time, as the switches said."""

    time_s: float
    ports_down: frozenset[tuple[int, int]]


class PortReports:
    """Reports in the order in which they came. Each is acted on `reaction_s` after it came, not before.

    One that comes while another is waiting is acted on after it; those that fall due while the controller is at work
    are taken together, and the latest counts.
    """

    def __init__(self, reaction_s: float) -> None:
        self._reaction_s = reaction_s
        self._reports: deque[PortReport] = deque()

    def add(self, report: PortReport) -> None:
        """Keep a report that came just now."""
        self._reports.append(report)

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until one is due; None where there is none."""
        return max(0.0, self._reports[0].time_s + self._reaction_s - now_s) if self._reports else None

    def take(self, now_s: float) -> PortReport | None:
        """The report to act on now, None if none is due; those before it are dropped."""
        found = None
        while self._reports and self._reports[0].time_s + self._reaction_s <= now_s:
            found = self._reports.popleft()
        return found

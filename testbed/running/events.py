"""A scenario's events: when what begins and ends, what condition follows, and carrying it out while a job runs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.config import Topology
from testbed.config.events import EventSpec
from testbed.config.wan import change_direction
from testbed.directions import DIRECTIONS, Direction
from testbed.fabric.faults import Condition, Faults
from testbed.scale import UNSCALED, Scale


@dataclass(frozen=True)
class Change:
    """An event begins, or ends, so many real seconds after the start of a variant's first measured step."""

    at_s: float
    event: int
    begins: bool


def changes(events: Sequence[EventSpec]) -> list[Change]:
    """All that happens in one variant, in order; what ends at the moment at which something begins ends first."""
    found = []
    for index, event in enumerate(events):
        for number in range(event.times):
            begin_s = event.at_s + number * (event.every_s or 0.0)
            found.append(Change(begin_s, index, begins=True))
            if event.for_s is not None:
                found.append(Change(begin_s + event.for_s, index, begins=False))
    return sorted(found, key=lambda change: (change.at_s, change.begins, change.event))


def condition(active: Iterable[EventSpec], topology: Topology, scale: Scale) -> Condition:
    """What the network is like while these events last; of several that change a setting the last one counts."""
    links: set[str] = set()
    switches: set[str] = set()
    changed: dict[tuple[str, str], Direction] = {}
    for event in active:
        if event.action == "link_down":
            links.add(str(event.target))
        elif event.action == "plane_down":
            links |= {link.name for link in topology.wan if link.plane == event.target}
        elif event.action == "switch_down":
            switches.add(str(event.target))
        elif event.action == "degrade":
            assert event.settings is not None
            (link,) = (link for link in topology.wan if link.name == event.target)
            for direction in DIRECTIONS if event.direction == "both" else (event.direction,):
                now = changed.get((link.name, direction), getattr(link, direction))
                changed[link.name, direction] = change_direction(now, event.settings, topology.mtu, scale)
    return Condition(frozenset(links), frozenset(switches), changed)


def touched(events: Sequence[EventSpec], topology: Topology) -> tuple[set[str], set[str]]:
    """(links, buildings) whose packet counts do not add up by design when these events happen."""
    links: set[str] = set()
    for event in events:
        now = condition([event], topology, UNSCALED)
        links |= now.links_down | {name for name, _ in now.changed}
        for switch in now.switches_down:
            building = switch.split("-")[0]
            links |= {link.name for link in topology.wan if building in (link.a, link.b)}
    buildings = {end for link in topology.wan if link.name in links for end in (link.a, link.b)}
    switched = {str(event.target).split("-")[0] for event in events if event.action == "switch_down"}
    return links, buildings | switched


def changed_by(events: Sequence[EventSpec], topology: Topology) -> tuple[set[str], set[str]]:
    """(links, switches) whose settings these events change."""
    every = [condition([event], topology, UNSCALED) for event in events]
    links = {name for now in every for name in (*now.links_down, *(link for link, _ in now.changed))}
    return links, {name for now in every for name in now.switches_down}


class EventPlayer:
    """Carries a scenario's events out, anew for each variant. Times are CLOCK_MONOTONIC, log entries in real seconds.

    Call `step` before every step starts, `play` at `due_s` or later, `finish` after the last step.
    """

    def __init__(
        self,
        events: Sequence[EventSpec],
        topology: Topology,
        scale: Scale,
        faults: Faults,
        pid_of_host: Callable[[str], int],
        pid_of_rank: Callable[[int], int],
    ) -> None:
        self._events = events
        self._topology = topology
        self._scale = scale
        self._faults = faults
        self._pid_of_host = pid_of_host
        self._pid_of_rank = pid_of_rank
        self._variant = ""
        self._origin_s = 0.0
        self._changes: list[Change] = []
        self._active: list[int] = []
        self._paused: dict[str, int] = {}
        self.killed_s: float | None = None
        self.log: list[dict[str, Any]] = []

    @property
    def due_s(self) -> float | None:
        """When the next change comes, or switches see what an earlier one did; None when there is none."""
        change_s = self._planned_s(self._changes[0]) if self._changes else None
        return min((due_s for due_s in (change_s, self._faults.due_s) if due_s is not None), default=None)

    def _planned_s(self, change: Change) -> float:
        return self._origin_s + self._scale.emulated_s(change.at_s)

    def step(self, variant: str, trial: int, start_s: float) -> None:
        """A step is about to start: the variant's first measured one sets its events' clock going."""
        if variant != self._variant:
            self.finish()
            self._variant = variant
        if trial == 0:
            self._origin_s = start_s
            self._changes = changes(self._events)

    def play(self) -> None:
        """Carry out what is due; what is seen when something new happens is seen first."""
        self._faults.play()
        while self._changes and self._planned_s(self._changes[0]) <= time.monotonic():
            change = self._changes.pop(0)
            if change.begins:
                self._active.append(change.event)
            elif change.event in self._active:
                self._active.remove(change.event)
            self._carry_out()
            self._note(change, time.monotonic())
            if change.begins and self._events[change.event].action == "rank_kill":
                self.killed_s = time.monotonic()
                os.kill(self._pid_of_rank(int(self._events[change.event].target)), signal.SIGKILL)

    def _carry_out(self) -> None:
        active = [self._events[index] for index in self._active]
        wanted = {str(event.target) for event in active if event.action == "host_pause"}
        for host in wanted - set(self._paused):
            self._paused[host] = self._pid_of_host(host)
            os.kill(self._paused[host], signal.SIGSTOP)
        for host in set(self._paused) - wanted:
            os.kill(self._paused.pop(host), signal.SIGCONT)
        self._faults.apply(condition(active, self._topology, self._scale))

    def _note(self, change: Change, now_s: float | None) -> None:
        event = self._events[change.event]
        entry: dict[str, Any] = {
            "variant": self._variant,
            "event": change.event,
            "action": event.action,
            "target": event.target,
            "begins": change.begins,
            "planned_s": change.at_s,
            "actual_s": None if now_s is None else self._scale.real_s(now_s - self._origin_s),
            "time_s": now_s,
        }
        self.log.append(entry)

    def finish(self) -> None:
        """The variant's last step is over: everything is undone; what never came stands in the log without a time."""
        for change in self._changes:
            if change.begins:
                self._note(change, None)
        self._changes = []
        if self._active:
            self._active.clear()
            self._carry_out()
        self._faults.settle()


def events_record(log: Sequence[Mapping[str, Any]], variant: str) -> dict[str, Any]:
    """What a summary says of a variant's events: how many changes were planned and came, how late at most, real s."""
    own = [entry for entry in log if entry["variant"] == variant]
    late = [entry["actual_s"] - entry["planned_s"] for entry in own if entry["actual_s"] is not None]
    return {"planned": len(own), "came": len(late), "late_max_s": max(late, default=0.0)}

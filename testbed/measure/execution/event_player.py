"""Applies a scenario's events while a job runs, and works out what they change and when."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.net.fabric.bridges import Cable, nic_cables
from testbed.net.fabric.faults import Condition, Faults
from testbed.net.paths.hops import NETEM
from testbed.processes import suppress_tcp_close
from testbed.spec.events import CARD_DIRECTIONS, CARD_EVENTS, DrawnEvent, EventSpec
from testbed.spec.link_direction import DIRECTIONS, Direction
from testbed.spec.links import change_direction
from testbed.spec.scale import UNSCALED, Scale
from testbed.spec.topology import Topology


class EventPlayer:
    """Carries a scenario's events out, anew for each variant. Times are CLOCK_MONOTONIC, log entries in real seconds.

    hosts: by rank. pid_of_rank: None for one that is gone. told: has it known that a rank's process was killed, where
    that would not show. return_ranks: has those that were killed start anew, each in a process of its own. seed: of the
    moments that are drawn. Call `step` before every step starts, `play` at `due_s` or later, `finish` after the last
    step. What ranks do to themselves is only noted.
    """

    def __init__(
        self,
        events: Sequence[EventSpec],
        topology: Topology,
        scale: Scale,
        faults: Faults,
        hosts: Sequence[str],
        pid_of_rank: Callable[[int], int | None],
        told: Callable[[int], None],
        return_ranks: Callable[[Collection[int]], None],
        seed: int = 1,
    ) -> None:
        self._events = events
        self._topology = topology
        self._scale = scale
        self._faults = faults
        self._hosts = hosts
        self._pid_of_rank = pid_of_rank
        self._told = told
        self._return_ranks = return_ranks
        self._seed = seed
        self._variant = ""
        self._origin_s = 0.0
        self._changes: list[Change] = []
        self._started: set[int] = set()  # measured steps of this variant
        self._to_come: list[int] = []  # events whose step has not started
        self._active: list[int] = []
        self._paused: dict[int, int] = {}  # by rank, its process
        self._dead: frozenset[int] = frozenset()
        self._deaths: Counter[int] = Counter()  # that nobody has told of yet
        self.killed_s: float | None = None
        self.log: list[dict[str, Any]] = []

    @property
    def due_s(self) -> float | None:
        """When the next change comes, or switches see what an earlier one did; None when there is none."""
        change_s = self._planned_s(self._changes[0]) if self._changes else None
        return min((due_s for due_s in (change_s, self._faults.due_s) if due_s is not None), default=None)

    def _planned_s(self, change: Change) -> float:
        return self._origin_s + self._scale.emulated_s(change.at_s)

    def explains_death(self, rank: int) -> bool:
        """Whether an event has killed a rank whose death is told now; each explains one."""
        explained = self._deaths[rank] > 0
        self._deaths[rank] -= explained
        return explained

    @property
    def nobody_left(self) -> bool:
        """Whether all ranks were killed, and none is to return."""
        return len(self._dead) == len(self._hosts) and self.due_s is None

    def step(self, variant: str, trial: int, start_s: float) -> None:
        """A step is about to start: the variant's first measured one sets its events' clock going.

        Once: a job that was set back goes through steps again, and its events go on.
        """
        if variant != self._variant:
            self.finish()
            self._variant = variant
            self._started = set()
        if trial >= 0 and not self._started:
            self._origin_s = start_s
            self._to_come = list(range(len(self._events)))
        if trial >= 0 and trial not in self._started:
            self._started.add(trial)
            after_s = self._scale.real_s(start_s - self._origin_s)
            self._changes = in_order([*self._changes, *changes(self._events, self._seed, trial, after_s)])
            self._to_come = [index for index in self._to_come if (self._events[index].step or 0) > trial]

    def play(self) -> None:
        """Carry out what is due; what is seen when something new happens is seen first."""
        self._faults.apply_due()
        while self._changes and self._planned_s(self._changes[0]) <= time.monotonic():
            change = self._changes.pop(0)
            if change.begins:
                self._active.append(change.event)
            elif change.event in self._active:
                self._active.remove(change.event)
            self._carry_out()
            self._note(change.event, change.begins, change.at_s, time.monotonic())

    def _carry_out(self) -> None:
        active = [self._events[index] for index in self._active]
        self._pause({str(event.target) for event in active if event.action == "host_pause"})
        self._faults.apply(condition(active, self._topology, self._scale))
        silenced = {str(event.target) for event in active if event.action == "host_kill"}
        dead = {int(event.target) for event in active if event.action == "rank_kill"}
        dead |= {rank for rank, host in enumerate(self._hosts) if host in silenced}
        for rank in sorted(dead - self._dead):
            self._kill(rank, silently=self._hosts[rank] in silenced)
        returning = self._dead - dead
        self._dead = frozenset(dead)
        if returning:
            self._return_ranks(returning)

    def _pause(self, hosts: Collection[str]) -> None:
        wanted = {rank for rank, host in enumerate(self._hosts) if host in hosts}
        for rank in wanted - set(self._paused):
            if (pid := self._pid_of_rank(rank)) is not None:
                self._paused[rank] = pid
                os.kill(pid, signal.SIGSTOP)
        for rank in set(self._paused) - wanted:
            with contextlib.suppress(ProcessLookupError):  # it was killed meanwhile
                os.kill(self._paused.pop(rank), signal.SIGCONT)

    def _kill(self, rank: int, silently: bool) -> None:
        """silently: with its connections, as a machine that is gone; else the kernel tells its peers."""
        pid = self._pid_of_rank(rank)
        if pid is None:
            return
        self.killed_s = time.monotonic()
        self._deaths[rank] += 1
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            if silently:
                os.kill(pid, signal.SIGSTOP)
                suppress_tcp_close(pid)
            os.kill(pid, signal.SIGKILL)
        if not silently:
            self._told(rank)

    def _note(self, index: int, begins: bool, planned_s: float | None, now_s: float | None) -> None:
        event = self._events[index]
        entry: dict[str, Any] = {
            "variant": self._variant,
            "event": index,
            "action": event.action,
            "target": event.target,
            "begins": begins,
            "planned_s": planned_s,
            "actual_s": None if now_s is None else self._scale.real_s(now_s - self._origin_s),
            "time_s": now_s,
        }
        self.log.append(entry)

    def finish(self) -> None:
        """The variant's last step is over: everything is undone; what never came stands in the log without a time.

        But for what was drawn, which need not come.
        """
        missed = [(change.event, change.at_s) for change in self._changes if change.begins]
        for index, planned_s in [*missed, *((index, None) for index in self._to_come)]:
            if not isinstance(self._events[index], DrawnEvent):
                self._note(index, True, planned_s, None)
        self._changes, self._to_come = [], []
        if self._active:
            self._active.clear()
            self._carry_out()
        self._faults.flush()


def events_record(log: Sequence[Mapping[str, Any]], variant: str) -> dict[str, Any]:
    """What a summary says of a variant's events: how many changes were planned and came, how late at most, real s."""
    own = [entry for entry in log if entry["variant"] == variant]
    late = [entry["actual_s"] - entry["planned_s"] for entry in own if entry["actual_s"] is not None]
    return {"planned": len(own), "came": len(late), "late_max_s": max(late, default=0.0)}


@dataclass(frozen=True)
class Change:
    """An event begins, or ends, so many real seconds after the start of a variant's first measured step."""

    at_s: float
    event: int
    begins: bool


def changes(events: Sequence[EventSpec], seed: int = 1, step: int = 0, start_s: float = 0.0) -> list[Change]:
    """All that follows, in one variant, from the start of one measured step, `start_s` after the first one's.

    In order; what ends at the moment at which something begins ends first. seed: of the moments that are drawn.
    """
    found = []
    for index, event in enumerate(events):
        if (event.step or 0) != step:
            continue
        first_s = start_s + event.after_s(seed, index)
        for number in range(event.times):
            begin_s = first_s + number * (event.every_s or 0.0)
            found.append(Change(begin_s, index, begins=True))
            if event.for_s is not None:
                found.append(Change(begin_s + event.for_s, index, begins=False))
    return in_order(found)


def in_order(found: Iterable[Change]) -> list[Change]:
    """As they come; what ends at the moment at which something begins ends first."""
    return sorted(found, key=lambda change: (change.at_s, change.begins, change.event))


def condition(active: Iterable[EventSpec], topology: Topology, scale: Scale) -> Condition:
    """What the network is like while these events last; of several that change a setting the last one counts."""
    down: set[str] = set()
    dark: set[str] = set()
    switches: set[str] = set()
    cards: set[str] = set()
    changed: dict[tuple[str, str], Direction] = {}
    for event in active:
        if event.action == "link_down":
            down.add(str(event.target))
        elif event.action == "link_blackhole":
            dark.add(str(event.target))
        elif event.action in ("plane_down", "plane_blackhole"):
            of_plane = {link.name for link in topology.wan if link.plane == event.target}
            (down if event.action == "plane_down" else dark).update(of_plane)
        elif event.action == "switch_down":
            switches.add(str(event.target))
        elif event.action in ("nic_down", "host_kill"):
            cards.add(str(event.target))
        elif (asked := event.changes) is not None:
            for key, healthy in _directions(event, topology).items():
                changed[key] = change_direction(changed.get(key, healthy), asked, topology.mtu, scale)
    return Condition(
        frozenset(down),
        frozenset(switches),
        changed,
        links_dark=frozenset(dark),
        cards_down=frozenset(cards),
    )


def _directions(event: EventSpec, topology: Topology) -> dict[tuple[str, str], Direction]:
    """What an event changes the settings of, as the topology has it."""
    which = CARD_DIRECTIONS.get(event.direction, event.direction)
    chosen = DIRECTIONS if which == "both" else (which,)
    if event.action in CARD_EVENTS:
        cable = card_of(topology, str(event.target))
        assert cable.direction is not None
        return {(cable.name, direction): cable.direction for direction in chosen}
    (link,) = (link for link in topology.wan if link.name == event.target)
    return {(link.name, direction): getattr(link, direction) for direction in chosen}


def card_of(topology: Topology, host: str) -> Cable:
    """The cable between a host's card and its switch."""
    return nic_cables(topology)[host]


def touched(events: Sequence[EventSpec], topology: Topology) -> tuple[set[str], set[str]]:
    """(links, buildings) whose packet counts do not add up by design when these events happen."""
    wan = {link.name for link in topology.wan}
    links: set[str] = set()
    for event in events:
        now = condition([event], topology, UNSCALED)
        links |= (now.links_down | now.links_dark | {name for name, _ in now.changed}) & wan
        for switch in now.switches_down:
            building = switch.split("-")[0]
            links |= {link.name for link in topology.wan if building in (link.a, link.b)}
    buildings = {end for link in topology.wan if link.name in links for end in (link.a, link.b)}
    switched = {str(event.target).split("-")[0] for event in events if event.action == "switch_down"}
    return links, buildings | switched


def cards_touched(events: Iterable[EventSpec]) -> set[str]:
    """Hosts of whose cards, and of the switches that these are plugged into, packet counts do not add up by design."""
    return {str(event.target) for event in events if event.action in CARD_EVENTS}


def beyond_engine(events: Iterable[EventSpec], topology: Topology, link_engine: str) -> list[str]:
    """Hosts to whose cards events give a delay or a loss that this link engine cannot: it does not carry them."""
    if link_engine == NETEM:
        return []
    found = set()
    for event in events:
        asked = event.changes
        if event.action in CARD_EVENTS and asked is not None and (asked.delay_s or asked.loss):
            found.add(str(event.target))
    return sorted(host for host in found if not card_of(topology, host).needs_engine)


def changed_by(events: Sequence[EventSpec], topology: Topology) -> tuple[set[str], set[str], set[str]]:
    """(links, switches, hosts by their cards) whose settings these events change."""
    wan = {link.name for link in topology.wan}
    links: set[str] = set()
    switches: set[str] = set()
    for event in events:
        now = condition([event], topology, UNSCALED)
        links |= now.links_down | now.links_dark | ({name for name, _ in now.changed} & wan)
        switches |= now.switches_down
    return links, switches, cards_touched(events)

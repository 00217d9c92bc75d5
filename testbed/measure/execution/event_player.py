"""Player of a scenario's events while a job runs, and the changes that each event makes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.net.fabric.bridges import nic_cables
from testbed.net.fabric.faults import Condition, Faults
from testbed.net.paths.hops import NETEM
from testbed.processes import suppress_tcp_close
from testbed.spec.events import CARD_DIRECTIONS, CARD_EVENTS, DrawnEvent, EventSpec
from testbed.spec.link_direction import DIRECTIONS, Direction
from testbed.spec.links import change_direction
from testbed.spec.scale import UNSCALED, Scale
from testbed.spec.topology import Topology


class EventPlayer:
    """A player that applies a scenario's events, starting over for each variant.

    Call `step` before every step starts, `play` at `due_s` or later, and `finish` after the last step. Faults that
    ranks inject themselves are only logged. Times are those of CLOCK_MONOTONIC; log entries are in real seconds.

    Args:
        events: The scenario's events.
        topology: The emulated topology.
        scale: The scale in force.
        faults: Applies faults to the fabric.
        hosts: Host of each rank.
        pid_of_rank: Function that returns a rank's process id, or None if the process is gone.
        report_death: Called with each rank that was killed, so that its death is known at once.
        return_ranks: Called with killed ranks that must be restarted, each in its own process.
        seed: Seed of random event times.
    """

    def __init__(
        self,
        events: Sequence[EventSpec],
        topology: Topology,
        scale: Scale,
        faults: Faults,
        hosts: Sequence[str],
        pid_of_rank: Callable[[int], int | None],
        report_death: Callable[[int], None],
        return_ranks: Callable[[Collection[int]], None],
        seed: int = 1,
    ) -> None:
        self._events = events
        self._topology = topology
        self._scale = scale
        self._faults = faults
        self._hosts = hosts
        self._pid_of_rank = pid_of_rank
        self._report_death = report_death
        self._return_ranks = return_ranks
        self._seed = seed
        self._variant = ""
        self._origin_s = 0.0
        self._changes: list[Change] = []
        self._started: set[int] = set()  # measured steps of this variant
        self._pending: list[int] = []  # events of steps that have not started
        self._active: list[int] = []
        self._paused: dict[int, int] = {}  # process id by rank
        self._dead: frozenset[int] = frozenset()
        self._deaths: Counter[int] = Counter()  # kills whose deaths have not been reported yet
        self.killed_s: float | None = None
        self.log: list[dict[str, Any]] = []

    @property
    def due_s(self) -> float | None:
        """The time when the next change is due or switches detect an earlier one; None if nothing is due."""
        change_s = self._planned_s(self._changes[0]) if self._changes else None
        return min((due_s for due_s in (change_s, self._faults.due_s) if due_s is not None), default=None)

    def _planned_s(self, change: Change) -> float:
        return self._origin_s + self._scale.emulated_s(change.at_s)

    def explains_death(self, rank: int) -> bool:
        """Return whether an event caused the reported death of a rank; each kill explains one death."""
        explained = self._deaths[rank] > 0
        self._deaths[rank] -= explained
        return explained

    @property
    def nobody_left(self) -> bool:
        """Whether all ranks were killed and none will return."""
        return len(self._dead) == len(self._hosts) and self.due_s is None

    def step(self, variant: str, trial: int, start_s: float) -> None:
        """Prepare for a step that is about to start; the variant's first measured step starts the clock of the events.

        A job that restarts from a checkpoint repeats steps, but its events continue and are not repeated.
        """
        if variant != self._variant:
            self.finish()
            self._variant = variant
            self._started = set()
        if trial >= 0 and not self._started:
            self._origin_s = start_s
            self._pending = list(range(len(self._events)))
        if trial >= 0 and trial not in self._started:
            self._started.add(trial)
            after_s = self._scale.real_s(start_s - self._origin_s)
            self._changes = sort_changes(
                [*self._changes, *planned_changes(self._events, self._seed, trial, after_s)]
            )
            self._pending = [index for index in self._pending if (self._events[index].step or 0) > trial]

    def play(self) -> None:
        """Apply all changes that are due, after the earlier changes that switches must detect first."""
        self._faults.apply_due()
        while self._changes and self._planned_s(self._changes[0]) <= time.monotonic():
            change = self._changes.pop(0)
            if change.begins:
                self._active.append(change.event)
            elif change.event in self._active:
                self._active.remove(change.event)
            self._apply()
            self._note(change.event, change.begins, change.at_s, time.monotonic())

    def _apply(self) -> None:
        active = [self._events[index] for index in self._active]
        self._pause({str(event.target) for event in active if event.action == "host_pause"})
        self._faults.apply(network_condition(active, self._topology, self._scale))
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
            with contextlib.suppress(ProcessLookupError):  # it was killed in the meantime
                os.kill(self._paused.pop(rank), signal.SIGCONT)

    def _kill(self, rank: int, silently: bool) -> None:
        """Kill a rank; `silently` drops its connections without FIN or RST, as a power loss would."""
        pid = self._pid_of_rank(rank)
        if pid is None:
            return
        self.killed_s = time.monotonic()
        self._deaths[rank] += 1
        with contextlib.suppress(ProcessLookupError):  # it has ended on its own
            if silently:
                os.kill(pid, signal.SIGSTOP)
                suppress_tcp_close(pid)
            os.kill(pid, signal.SIGKILL)
        if not silently:
            self._report_death(rank)

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
        """Undo all events after the variant's last step, and log those that never took place, without a time.

        Events at random times that never took place are not logged, since they are optional.
        """
        missed = [(change.event, change.at_s) for change in self._changes if change.begins]
        for index, planned_s in [*missed, *((index, None) for index in self._pending)]:
            if not isinstance(self._events[index], DrawnEvent):
                self._note(index, True, planned_s, None)
        self._changes, self._pending = [], []
        if self._active:
            self._active.clear()
            self._apply()
        self._faults.flush()


def summarise_events(log: Sequence[Mapping[str, Any]], variant: str) -> dict[str, Any]:
    """Return the fields of `Events` in a summary for one variant; times are in real seconds."""
    own = [entry for entry in log if entry["variant"] == variant]
    late = [entry["actual_s"] - entry["planned_s"] for entry in own if entry["actual_s"] is not None]
    return {"planned": len(own), "came": len(late), "late_max_s": max(late, default=0.0)}


@dataclass(frozen=True)
class Change:
    """The start or end of an event, in real seconds after the start of a variant's first measured step."""

    at_s: float
    event: int
    begins: bool


def planned_changes(
    events: Sequence[EventSpec], seed: int = 1, step: int = 0, start_s: float = 0.0
) -> list[Change]:
    """Return the changes that the start of one measured step triggers, in time order.

    Args:
        events: The scenario's events.
        seed: Seed of random event times.
        step: The measured step.
        start_s: Its start, in real seconds after the start of the first measured step.
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
    return sort_changes(found)


def sort_changes(found: Iterable[Change]) -> list[Change]:
    """Sort changes by time; at the same time, ends come before starts."""
    return sorted(found, key=lambda change: (change.at_s, change.begins, change.event))


TAKES_DOWN = {
    "link_down": "links_down",
    "link_blackhole": "links_dark",
    "switch_down": "switches_down",
    "nic_down": "cards_down",
    "host_kill": "cards_down",
}
TAKES_PLANE_DOWN = {"plane_down": "links_down", "plane_blackhole": "links_dark"}
"""The field of a `Condition` to which an event adds its target, or all links of that plane."""


def network_condition(active: Iterable[EventSpec], topology: Topology, scale: Scale) -> Condition:
    """Return the network's state while these events are active; if several change one setting, the last one wins."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    changed: dict[tuple[str, str], Direction] = {}
    for event in active:
        if (part := TAKES_DOWN.get(event.action)) is not None:
            found[part].add(str(event.target))
        elif (part := TAKES_PLANE_DOWN.get(event.action)) is not None:
            found[part] |= {link.name for link in topology.wan if link.plane == event.target}
        elif (asked := event.changes) is not None:
            for key, healthy in _directions(event, topology).items():
                changed[key] = change_direction(changed.get(key, healthy), asked, topology.mtu, scale)
    parts = {part: frozenset(found[part]) for part in TAKES_DOWN.values()}
    return Condition(changed=changed, **parts)


def _directions(event: EventSpec, topology: Topology) -> dict[tuple[str, str], Direction]:
    """Return the link directions that an event changes, with their settings in the topology."""
    which = CARD_DIRECTIONS.get(event.direction, event.direction)
    chosen = DIRECTIONS if which == "both" else (which,)
    if event.action in CARD_EVENTS:
        cable = nic_cables(topology)[str(event.target)]
        assert cable.direction is not None
        return {(cable.name, direction): cable.direction for direction in chosen}
    (link,) = (link for link in topology.wan if link.name == event.target)
    return {(link.name, direction): getattr(link, direction) for direction in chosen}


def affected_parts(events: Sequence[EventSpec], topology: Topology) -> tuple[set[str], set[str]]:
    """Return the links and buildings whose packet counts cannot add up because of these events."""
    links, switches, _ = parts_changed_by(events, topology)
    switched = {switch.split("-")[0] for switch in switches}
    links |= {link.name for link in topology.wan if switched & {link.a, link.b}}
    return links, switched | {end for link in topology.wan if link.name in links for end in (link.a, link.b)}


def affected_cards(events: Iterable[EventSpec]) -> set[str]:
    """Return the hosts whose NIC (and switch port) packet counts cannot add up because of these events."""
    return {str(event.target) for event in events if event.action in CARD_EVENTS}


def hosts_beyond_engine(events: Iterable[EventSpec], topology: Topology, link_engine: str) -> list[str]:
    """Return the hosts whose NICs get a delay or loss that this link engine cannot apply."""
    if link_engine == NETEM:
        return []
    found, cables = set(), nic_cables(topology)
    for event in events:
        asked = event.changes
        if event.action in CARD_EVENTS and asked is not None and (asked.delay_s or asked.loss):
            found.add(str(event.target))
    return sorted(host for host in found if not cables[host].needs_engine)


def parts_changed_by(events: Sequence[EventSpec], topology: Topology) -> tuple[set[str], set[str], set[str]]:
    """Return the links, switches and hosts of NICs whose settings these events change."""
    wan = {link.name for link in topology.wan}
    links: set[str] = set()
    switches: set[str] = set()
    for event in events:
        now = network_condition([event], topology, UNSCALED)
        links |= now.links_down | now.links_dark | ({name for name, _ in now.changed} & wan)
        switches |= now.switches_down
    return links, switches, affected_cards(events)

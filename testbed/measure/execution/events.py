"""Carrying a scenario's events out while a job runs: network, hosts and ranks, each at its time."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from testbed.measure.execution.event_timeline import Change, changes, condition, in_order
from testbed.net.fabric.faults import Faults
from testbed.processes import suppress_tcp_close
from testbed.spec.events import DrawnEvent, EventSpec
from testbed.spec.scale import Scale
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
        self._faults.play()
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
        self._faults.settle()


def events_record(log: Sequence[Mapping[str, Any]], variant: str) -> dict[str, Any]:
    """What a summary says of a variant's events: how many changes were planned and came, how late at most, real s."""
    own = [entry for entry in log if entry["variant"] == variant]
    late = [entry["actual_s"] - entry["planned_s"] for entry in own if entry["actual_s"] is not None]
    return {"planned": len(own), "came": len(late), "late_max_s": max(late, default=0.0)}

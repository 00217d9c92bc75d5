"""The run of one job on a running fabric: start launchers, track steps, sample the links."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from testbed.clock import CpuTime, clock_here, sleep_until
from testbed.comm.flight_recorder import STALLED
from testbed.measure.execution.event_player import EventPlayer
from testbed.measure.execution.rank_network import Event, RankNetwork, RankRun
from testbed.measure.execution.stalls import Stall, StallWatch
from testbed.net.fabric.change_watch import ChangeWatch
from testbed.net.fabric.running_fabric import FabricCounters, read_counters
from testbed.net.links import LinkError
from testbed.net.links.interfaces import NodeCounts
from testbed.net.links.link_engine import EngineStats
from testbed.net.links.netlink import Netlink
from testbed.workload.job.errors import RunError
from testbed.workload.job.launch_spec import JobSpec

T = TypeVar("T")
END_TIMEOUT_S = 10.0
SETTLE_S, SETTLE_SAMPLES = 0.05, 40
POST_MORTEM_S = 1.0


@dataclass(frozen=True)
class LinkSample:
    """The fabric's counters and the link engine's statistics at one point in time.

    `edge` is "start" or "end" for a sample at the edge of a measured step. In that case, `switches` has the counters of
    the switches inside buildings; for a start, these are read when the step is announced.
    """

    time_s: float
    counters: FabricCounters
    account: EngineStats
    edge: str = ""
    switches: Mapping[str, NodeCounts] = field(default_factory=dict)


class JobRun(RankRun):
    """One job's processes, and the link samples taken while it runs.

    Optional attributes to set before `run`:

    - `player` applies the scenario's events.
    - `watch` detects changes of the network from outside.
    - `stalls` detects stalled steps, which are reported to `on_stall`.
    - `on_sample` receives each link sample.
    - `watch_also` returns the failure of another component, if it has failed.
    """

    spec: JobSpec

    def __init__(
        self,
        network: RankNetwork,
        spec: JobSpec,
        on_step: Callable[[int], None],
        sample_interval_s: float = 0.1,
        look_interval_s: float = 1.0,
    ) -> None:
        super().__init__(network, spec)
        assert network.fabric is not None
        self.fabric = network.fabric
        self.on_step = on_step
        self.sample_interval_s = sample_interval_s
        self.look_interval_s = look_interval_s
        self.player: EventPlayer | None = None
        self.watch: ChangeWatch | None = None
        self.stalls: StallWatch | None = None
        self.on_stall: Callable[[Stall], None] = lambda stall: None
        self.on_sample: Callable[[LinkSample], None] = lambda sample: None
        self.watch_also: Callable[[], str | None] = lambda: None
        self.samples: list[LinkSample] = []
        self.step_clock = StepClock()
        self.rank_pids: dict[int, int] = {}  # of live ranks
        self.background_traffic: list[dict[str, Any]] = []  # what each flow received, emulated
        self.before: dict[str, NodeCounts] = {}  # of hosts and switches, read while no frame was in flight
        self.after: dict[str, NodeCounts] = {}
        self._noticed_s: list[float] = []
        self._stall: Stall | None = None
        self._edges = StepEdges()
        self._step_ended = False  # whether all ranks have just ended a step
        self._switches: Mapping[str, NodeCounts] = {}  # counts at the announcement of the last step
        self._next_sample_s = self._next_look_s = 0.0

    def run(self) -> None:
        """Run the job to its end; raise RunError that names the failed rank, launcher, link engine or controller."""
        with Netlink() as self._root:
            self._settle()
            self.before = self.fabric.counts()
            with self:
                self._next_sample_s = time.monotonic() + self.sample_interval_s
                self._next_look_s = time.monotonic() + self.look_interval_s
                for event in self:
                    self._handle(event)
                self._settle()
            self.after = self.fabric.counts()

    def tell_of_death(self, rank: int) -> None:
        """Report at once that a rank's process was killed, as a closed connection would."""
        if self.launchers is not None and self.spec.survives_kills:
            self.launchers.tell_of_death(rank)

    def return_ranks(self, ranks: Collection[int]) -> None:
        """Restart killed ranks, if the job survives their loss."""
        if self.launchers is not None and self.spec.survives_kills:
            self.launchers.return_ranks(sorted(ranks))

    def wait_s(self) -> float:
        """Return the time until the next sample, network check, event, stall report or step edge is due."""
        waiting = (self.player, self._stall_watch, self._edges)
        dues_s = [own.due_s for own in waiting if own is not None and own.due_s is not None]
        return max(0.0, min(self._next_sample_s, self._next_look_s, *dues_s) - time.monotonic())

    @property
    def _stall_watch(self) -> StallWatch | None:
        return None if self.failures else self.stalls  # a failed job is diagnosed at its end

    def look(self) -> None:
        """Do everything that is due; raise RunError if a part has failed or no rank is left."""
        self._read_at_edges()
        if self.player:
            self.player.play()
            if self.spec.survives_kills and self.player.nobody_left:
                raise RunError("as the scenario planned, all ranks were killed, and none will return")
        if self._stall_watch is not None and (stall := self._stall_watch.look(time.monotonic())):
            self._stall = stall
            assert self.launchers is not None
            self.launchers.dump(STALLED)
        if time.monotonic() >= self._next_sample_s:
            # keep samples apart even after a delay, since rates over very short intervals are meaningless
            least_s = time.monotonic() - self.sample_interval_s / 2
            self._next_sample_s = max(self._next_sample_s, least_s) + self.sample_interval_s
            self._check_parts()
            self._sample()
        if time.monotonic() >= self._next_look_s:
            if self.watch:
                self.watch.look()
            self._next_look_s = time.monotonic() + self.look_interval_s

    def finish(self) -> None:
        """Undo the scenario's events; raise RunError if a part has failed."""
        if self.player:
            self.player.finish()
        self._check_parts()

    def _read_at_edges(self) -> None:
        """Read all counters if a measured step has just ended or is about to start.

        Switches are read well before a start, since reading many namespaces takes a while on the real clock.
        """
        count_switches = partial(self.fabric.counts, of_hosts=False)
        if self._step_ended:
            self._step_ended = False
            self._sample("end")
            self.samples[-1] = replace(self.samples[-1], switches=self._read(count_switches))
        if self._edges.due_s is None:
            return
        if not self._switches:
            self._switches = self._read(count_switches)
        if time.monotonic() >= self._edges.due_s:
            self._edges.wait_for_start()
            self._sample("start")
            self.samples[-1] = replace(self.samples[-1], switches=self._switches)
            self._switches = {}

    def _settle(self) -> None:
        """Take the first or the last sample while no frame is in flight, since such frames would count as missing."""
        self._sample()
        for _ in range(SETTLE_SAMPLES):
            before = self.samples.pop()
            time.sleep(SETTLE_S)
            self._sample()
            if self.samples[-1].counters == before.counters:
                return

    def _check_parts(self) -> None:
        if failure := self.network.failure() or self.watch_also():
            raise RunError(failure)

    def _sample(self, edge: str = "") -> None:
        assert self.fabric.engine is not None
        begun_s = time.monotonic()
        account = self._read(self.fabric.engine.stats)
        # the statistics cover at least the traffic until the read begins, and at most the traffic until it ends
        time_s = begun_s if edge == "end" else time.monotonic()
        counters = self._read(partial(read_counters, self.fabric.plan, self._root))
        self.samples.append(LinkSample(time_s, counters, account, edge))
        if not edge:  # edges may follow each other closely, see above
            self.on_sample(self.samples[-1])

    def _read(self, read: Callable[[], T]) -> T:
        """Read from a part of the fabric; raise RunError if the part has ended."""
        try:
            return read()
        except (LinkError, KeyError) as error:
            # a killed engine stops answering shortly before its exit is visible
            deadline = time.monotonic() + POST_MORTEM_S
            while (failure := self.fabric.failure()) is None and time.monotonic() < deadline:
                time.sleep(0.01)
            raise RunError(failure or f"the WAN links can no longer be read: {error}") from error

    def failure_in(self, event: Event) -> str | None:
        """Return a sentence if an event is the failure of a rank that the scenario does not survive."""
        if event["event"] == "killed" and self._survived(event["ranks"]):
            return None
        if event["event"] == "failed":
            self._noticed_s.append(time.monotonic())
        return super().failure_in(event)

    def _handle(self, event: Event) -> None:
        self.step_clock.record(event)
        if event["event"] in ("started", "returned"):
            self.rank_pids |= {int(rank): pid for rank, pid in event["pids"].items()}
        elif event["event"] == "step":
            self.on_step(event["index"])
            step = event["variant"], event["trial"], event["start_s"]
            if self.player:
                self.player.step(*step)
            if self.stalls:
                self.stalls.began(*step)
            self._edges.began(event)
        elif event["event"] == "ended":
            self._step_ended |= self._edges.ended(event)
        elif event["event"] == "dumped" and self._stall is not None:
            self.on_stall(self._stall)
        elif event["event"] == "background_traffic":
            self.background_traffic.append({key: value for key, value in event.items() if key != "event"})

    def _survived(self, ranks: Sequence[int]) -> bool:
        """Record killed ranks, and return true if the scenario killed them and the job therefore continues."""
        for rank in ranks:
            self.rank_pids.pop(rank, None)
        if self.player is None or not self.spec.survives_kills:
            return False
        explained = [self.player.explains_death(rank) for rank in ranks]
        return bool(explained) and all(explained)

    def headline(self) -> list[str]:
        """Return a headline for failures that follow from an event of the scenario; empty if there was none."""
        if self.player is None or self.player.killed_s is None:
            return []
        headline = "as the scenario planned, a rank was killed"
        noticed_ms = [(noticed_s - self.player.killed_s) * 1e3 for noticed_s in self._noticed_s]
        if noticed_ms:
            span = f"{min(noticed_ms):.3g} to {max(noticed_ms):.3g} ms"
            headline += f"; {len(noticed_ms)} others noticed, {span} later"
        return [f"{headline}:"]


class StepClock:
    """A record of when launchers were notified of each step's start and end, by step number."""

    def __init__(self) -> None:
        self.starts: dict[int, tuple[float, float]] = {}
        """The start announced by rank 0, and when its launcher received it, in seconds of CLOCK_MONOTONIC."""
        self.ends: dict[int, dict[int, float]] = {}
        """When each rank's launcher was notified that the rank had ended the step, by rank."""

    def record(self, event: Mapping[str, Any]) -> None:
        """Record a launcher's event, if it is about a step."""
        if event["event"] == "step" and "heard_s" in event:
            self.starts[event["index"]] = event["start_s"], event["heard_s"]
        elif event["event"] == "ended":
            heard_s = {int(rank): time_s for rank, time_s in event["heard_s"].items()}
            self.ends.setdefault(event["index"], {}).update(heard_s)


NEAR_S = 0.001  # largest delay in waking a process that waits for a launcher's events
EARLY_S: dict[CpuTime | None, float] = {"free": NEAR_S, None: 0.005, "counted": math.inf}
"""How long before a step's start its counters are read, by the accounting of CPU time.

With the real clock, a reading takes several milliseconds, and ranks that start meanwhile would wait for a core. All
ranks have agreed on the start by then, and only their last acknowledgements are in flight. In a guest with counted CPU
time a reading may take longer, so it is due as soon as the start is known.
"""


class StepEdges:
    """The boundaries of measured steps, where counters must be read, from the launchers' events."""

    def __init__(self) -> None:
        self._clock = clock_here()
        self._starts_s: deque[float] = deque()
        self._ended: dict[int, int] = {}  # number of ranks that have ended a step, by step

    @property
    def due_s(self) -> float | None:
        """The time when counters must be read for a start; None while no step is about to start."""
        if not self._starts_s:
            return None
        return self._starts_s[0] - EARLY_S[self._clock]

    def began(self, event: Mapping[str, Any]) -> None:
        """Handle a launcher's event `step`: a step is about to start."""
        if event["trial"] >= 0:
            self._starts_s.append(event["start_s"])

    def ended(self, event: Mapping[str, Any]) -> bool:
        """Handle a launcher's event `ended`, and return whether all ranks have now ended the step."""
        count = self._ended.pop(event["index"], 0) + event["ranks"]
        if count >= event["of"]:
            return True
        self._ended[event["index"]] = count
        return False

    def wait_for_start(self) -> None:
        """Sleep until the due start if readings take no time (the CPU is free); else return at once."""
        start_s = self._starts_s.popleft()
        if self._clock == "free":
            sleep_until(start_s - 2e-9)  # timers fire a nanosecond late

"""Runs one job on a fabric that is up: starts launchers, tracks steps, samples the links."""

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
from testbed.measure.execution.launchers import Launchers
from testbed.measure.execution.stalls import Stall, StallWatch
from testbed.net.fabric.change_watch import ChangeWatch
from testbed.net.fabric.fabric_state import ENVIRONMENT_MARK
from testbed.net.fabric.network import Fabric
from testbed.net.fabric.running_fabric import CounterReader, FabricCounters
from testbed.net.links import LinkError
from testbed.net.links.interfaces import NodeCounts
from testbed.net.links.link_engine import EngineStats
from testbed.workload.job.errors import RunError
from testbed.workload.job.launch_spec import JobSpec

T = TypeVar("T")
END_TIMEOUT_S = 10.0
SETTLE_S, SETTLE_SAMPLES = 0.05, 40
POST_MORTEM_S = 1.0


@dataclass(frozen=True)
class LinkSample:
    """The fabric's counters and the link engine's account at one moment.

    edge: "start" or "end" where it was taken at a measured step's; then switches has what the switches inside the
    buildings had counted, at a start as it was announced.
    """

    time_s: float
    counters: FabricCounters
    account: EngineStats
    edge: str = ""
    switches: Mapping[str, NodeCounts] = field(default_factory=dict)


class JobRun:
    """One job's processes and the link samples taken while it ran.

    May be set before it runs: `watch_also` names a further part that ended, `player` carries out the scenario's events,
    `watch` looks for changes that are nobody's business, `stalls` for steps that do not end, told to `on_stall`;
    `on_sample` is told each reading of the links.
    """

    def __init__(
        self,
        fabric: Fabric,
        spec: JobSpec,
        on_step: Callable[[int], None],
        sample_interval_s: float = 0.1,
        look_interval_s: float = 1.0,
    ) -> None:
        self.fabric = fabric
        self.spec = spec
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
        self.rank_pids: dict[int, int] = {}  # of those that live
        self._launchers: Launchers | None = None
        self.background_traffic: list[dict[str, Any]] = []  # what each has received, emulated
        self.before: dict[str, NodeCounts] = {}  # of hosts and switches, while nothing was under way
        self.after: dict[str, NodeCounts] = {}
        self._noticed_s: list[float] = []
        self._stall: Stall | None = None
        self._edges = StepEdges()
        self._over = False  # whether all ranks have ended a step just now
        self._switches: Mapping[str, NodeCounts] = {}  # counts of the last step that was announced

    def run(self) -> None:
        """Run to the end; RunError names the part that failed: a rank, the launcher, link engine, controller."""
        with CounterReader(self.fabric.plan) as reader:
            self._settle(reader)
            self.before = self.fabric.counts()
            self._run(reader)
            self.after = self.fabric.counts()

    def _run(self, reader: CounterReader) -> None:
        environment = {ENVIRONMENT_MARK: self.fabric.state.id}
        with Launchers(self.fabric, self.spec, environment) as self._launchers:
            self._watch(self._launchers, reader)

    def tell_of_death(self, rank: int) -> None:
        """Have it known at once that a rank's process was killed, as its own end of a connection would tell."""
        if self._launchers is not None and self.spec.survives_kills:
            self._launchers.tell_of_death(rank)

    def return_ranks(self, ranks: Collection[int]) -> None:
        """Have ranks that were killed start anew, where the job goes on without them."""
        if self._launchers is not None and self.spec.survives_kills:
            self._launchers.return_ranks(sorted(ranks))

    def _watch(self, launcher: Launchers, reader: CounterReader) -> None:
        next_sample_s = time.monotonic() + self.sample_interval_s
        next_look_s = time.monotonic() + self.look_interval_s
        failures: list[str] = []
        while True:
            stalls = self.stalls if not failures else None  # else it is over anyway, and will be judged
            waiting = (self.player, stalls, self._edges)
            dues_s = [own.due_s for own in waiting if own is not None and own.due_s is not None]
            wait_s = max(0.0, min(next_sample_s, next_look_s, *dues_s) - time.monotonic())
            events = launcher.events(wait_s)
            if events is None:
                break
            failures += self._events(events)
            self._read_at_edges(reader)
            if self.player:
                self.player.play()
                if self.spec.survives_kills and self.player.nobody_left:
                    raise RunError("as the scenario planned, all ranks were killed, and none is to return")
            if stalls is not None and (stall := stalls.look(time.monotonic())):
                self._stall = stall
                launcher.dump(STALLED)
            if time.monotonic() >= next_sample_s:
                # never two in quick succession, also after a delay: rates would be computed from next to no time
                least_s = time.monotonic() - self.sample_interval_s / 2
                next_sample_s = max(next_sample_s, least_s) + self.sample_interval_s
                self._check_parts()
                self._sample(reader)
            if time.monotonic() >= next_look_s:
                if self.watch:
                    self.watch.look()
                next_look_s = time.monotonic() + self.look_interval_s
        if self.player:
            self.player.finish()
        self._check_parts()
        trouble = launcher.ended(END_TIMEOUT_S)
        if failures:
            raise RunError("\n".join([*self._planned(failures), *failures]))
        if trouble:
            raise RunError(trouble)
        self._settle(reader)

    def _read_at_edges(self, reader: CounterReader) -> None:
        """Read all counters where a measured step has just ended, or is about to begin.

        Of switches well before it begins: dumps of many namespaces take a while by the real clock.
        """
        count_switches = partial(self.fabric.counts, of_hosts=False)
        if self._over:
            self._over = False
            self._sample(reader, "end")
            self.samples[-1] = replace(self.samples[-1], switches=self._read(count_switches))
        if self._edges.due_s is None:
            return
        if not self._switches:
            self._switches = self._read(count_switches)
        if time.monotonic() >= self._edges.due_s:
            self._edges.wait_for_start()
            self._sample(reader, "start")
            self.samples[-1] = replace(self.samples[-1], switches=self._switches)
            self._switches = {}

    def _settle(self, reader: CounterReader) -> None:
        """The first sample, and the last one: taken while nothing is under way, or frames would seem to be missing."""
        self._sample(reader)
        for _ in range(SETTLE_SAMPLES):
            before = self.samples.pop()
            time.sleep(SETTLE_S)
            self._sample(reader)
            if self.samples[-1].counters == before.counters:
                return

    def _check_parts(self) -> None:
        if failure := self.fabric.failure() or self.watch_also():
            raise RunError(failure)

    def _sample(self, reader: CounterReader, edge: str = "") -> None:
        assert self.fabric.engine is not None
        begun_s = time.monotonic()
        account = self._read(self.fabric.engine.stats)
        # what it counts was there when it was over, and all that was there when it began is counted
        time_s = begun_s if edge == "end" else time.monotonic()
        counters = self._read(reader.read)
        self.samples.append(LinkSample(time_s, counters, account, edge))
        if not edge:  # else rates would be computed from next to no time
            self.on_sample(self.samples[-1])

    def _read(self, read: Callable[[], T]) -> T:
        """What a part of the fabric's tells. RunError when it is gone."""
        try:
            return read()
        except (LinkError, KeyError) as error:
            # a killed engine stops answering a moment before it can be seen to have ended
            deadline = time.monotonic() + POST_MORTEM_S
            while (failure := self.fabric.failure()) is None and time.monotonic() < deadline:
                time.sleep(0.01)
            raise RunError(failure or f"the WAN links cannot be read any more: {error}") from error

    def _events(self, events: Sequence[dict[str, Any]]) -> list[str]:
        """Handle what the launcher said; returns sentences on ranks that failed."""
        failures = []
        for event in events:
            self.step_clock.hear(event)
            if event["event"] in ("started", "returned"):
                self.rank_pids |= {int(rank): pid for rank, pid in event["pids"].items()}
            elif event["event"] == "step":
                self.on_step(event["index"])
                if self.player:
                    self.player.step(event["variant"], event["trial"], event["start_s"])
                if self.stalls:
                    self.stalls.began(event["variant"], event["trial"], event["start_s"])
                self._edges.began(event)
            elif event["event"] == "ended":
                self._over |= self._edges.ended(event)
            elif event["event"] == "dumped" and self._stall is not None:
                self.on_stall(self._stall)
            elif event["event"] == "background_traffic":
                self.background_traffic.append({key: value for key, value in event.items() if key != "event"})
            elif event["event"] == "killed" and self._survived(event["ranks"]):
                continue
            elif event["event"] in ("failed", "killed"):
                if event["event"] == "failed":
                    self._noticed_s.append(time.monotonic())
                failures.append(f"{event['who']} on {event['host']}: {event['message']}")
        return failures

    def _survived(self, ranks: Sequence[int]) -> bool:
        """Note who is gone; whether the job goes on, as the scenario has killed them."""
        for rank in ranks:
            self.rank_pids.pop(rank, None)
        if self.player is None or not self.spec.survives_kills:
            return False
        explained = [self.player.explains_death(rank) for rank in ranks]
        return bool(explained) and all(explained)

    def _planned(self, failures: Sequence[str]) -> list[str]:
        """A sentence before the failures where they follow from an event of the scenario."""
        if self.player is None or self.player.killed_s is None:
            return []
        words = "as the scenario planned, a rank was killed"
        noticed_ms = [(noticed_s - self.player.killed_s) * 1e3 for noticed_s in self._noticed_s]
        if noticed_ms:
            span = f"{min(noticed_ms):.3g} to {max(noticed_ms):.3g} ms"
            words += f"; {len(noticed_ms)} others noticed, {span} later"
        return [f"{words}:"]


class StepClock:
    """Keeps what launchers' events say of steps' starts and ends, by the number of the step."""

    def __init__(self) -> None:
        self.starts: dict[int, tuple[float, float]] = {}
        """The start that rank 0 announced, and when its launcher heard of it, seconds of CLOCK_MONOTONIC."""
        self.ends: dict[int, dict[int, float]] = {}
        """When each rank's launcher heard that the rank had ended the step, by rank."""

    def hear(self, event: Mapping[str, Any]) -> None:
        """Note one of a launcher's events, if it is about a step."""
        if event["event"] == "step" and "heard_s" in event:
            self.starts[event["index"]] = event["start_s"], event["heard_s"]
        elif event["event"] == "ended":
            heard_s = {int(rank): time_s for rank, time_s in event["heard_s"].items()}
            self.ends.setdefault(event["index"], {}).update(heard_s)


NEAR_S = 0.001  # who waits for a launcher's words wakes up this late at most
EARLY_S: dict[CpuTime | None, float] = {"free": NEAR_S, None: 0.005, "counted": math.inf}
"""How long before a step's start its counters are due to be read, by what computing costs.

By the real clock a reading takes some milliseconds, and ranks that begin meanwhile would wait for a core. All ranks
have agreed on the start by then, and nothing is on its way but their last acknowledgements. In a guest whose computing
counts a reading may take longer: there it is due as soon as the start is known.
"""


class StepEdges:
    """Which edges of measured steps are due, from what the launchers say."""

    def __init__(self) -> None:
        self._clock = clock_here()
        self._starts_s: deque[float] = deque()
        self._ended: dict[int, int] = {}  # ranks that have ended a step, by its number

    @property
    def due_s(self) -> float | None:
        """When somebody should be back to read at a start; None while no step is about to begin."""
        if not self._starts_s:
            return None
        return self._starts_s[0] - EARLY_S[self._clock]

    def began(self, event: Mapping[str, Any]) -> None:
        """A step is going to begin: an event `step` of a launcher's."""
        if event["trial"] >= 0:
            self._starts_s.append(event["start_s"])

    def ended(self, event: Mapping[str, Any]) -> bool:
        """Some ranks have ended a step: an event `ended` of a launcher's. Whether all have now."""
        count = self._ended.pop(event["index"], 0) + event["ranks"]
        if count >= event["of"]:
            return True
        self._ended[event["index"]] = count
        return False

    def wait_for_start(self) -> None:
        """Sleep for what is left until the start that is due, where a reading takes no time; else do so at once."""
        start_s = self._starts_s.popleft()
        if self._clock == "free":
            sleep_until(start_s - 2e-9)  # a timer comes a nanosecond late

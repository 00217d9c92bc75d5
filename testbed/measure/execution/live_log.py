"""Writes down what a run does while it does it, for who watches: see `testbed.measure.results.unfinished_run`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from testbed.measure.execution.assessment import link_key
from testbed.measure.execution.event_player import EventPlayer
from testbed.measure.execution.job_run import LinkSample
from testbed.measure.execution.progress import PartProgress, Progress
from testbed.measure.results.shards import Shard
from testbed.measure.results.unfinished_run import EVENT, LINKS, NETWORK, PARTS, PHASE, RUN, STEP, LiveLog
from testbed.prediction.step_flops import step_work
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario

PARTS_EVERY_S = 0.5


class RunLive:
    """Of a whole run, in its partial folder; `progress` tells all that it hears to another one, too.

    parts: the folder of the shards' folders.
    """

    def __init__(
        self, folder: Path, parts: Path, scenario: Scenario, shards: Sequence[Shard], scale: Scale
    ) -> None:
        self._log = LiveLog(folder)
        self._told: list[dict[str, Any]] = []
        self._told_s = 0.0
        head = {
            "scenario": scenario.name,
            "variants": [
                {"name": name, "work": _work(scenario.variant(name))} for name in scenario.variant_names
            ],
            "ranks": scenario.ranks,
            "scale": asdict(scale),
            "folder": str(parts.resolve()),
            "parts": [
                {
                    "number": shard.number,
                    "name": shard.name,
                    "variant": shard.variant,
                    "first_trial": shard.first_trial,
                }
                for shard in shards
            ],
        }
        self._log.add(RUN, head)

    def progress(self, other: Progress) -> Progress:
        """What tells both."""

        def phase(line: str) -> None:
            self._log.add(PHASE, {"words": line})
            other.phase(line)

        def step(done: int, total: int) -> None:
            self._log.add(STEP, {"done": done, "total": total})
            other.step(done, total)

        def parts(of: Sequence[PartProgress]) -> None:
            self._parts(of)
            other.parts(of)

        return Progress(phase, step, parts)

    def _parts(self, of: Sequence[PartProgress]) -> None:
        """Where something has changed, and not too often."""
        now = [asdict(part) for part in of]
        if now != self._told and time.monotonic() >= self._told_s + PARTS_EVERY_S:
            self._told, self._told_s = now, time.monotonic()
            self._log.add(PARTS, {"parts": now})

    def end(self) -> None:
        """The run is over: what is kept of it says more."""
        self._log.close(remove=True)


class ShardLive:
    """Of one shard, in its own folder. player: of the scenario's events, where it has some."""

    def __init__(self, folder: Path, fabric: Mapping[str, Any]) -> None:
        self._log = LiveLog(folder)
        self._log.add(NETWORK, fabric)
        self.player: EventPlayer | None = None
        self._events = 0

    def sample(self, sample: LinkSample) -> None:
        """One reading of all links, counted from the beginning of time; and the events that came since the last one."""
        directions = []
        for counters in sample.counters.wan:
            account = sample.account.directions[link_key(counters)]
            key = [counters.a, counters.b, counters.plane, counters.direction]
            directions.append(
                [
                    *key,
                    *(account.sent_bytes, account.dropped, account.marked, account.queue_bytes),
                    account.lost + account.cut,
                ]
            )
        self._log.add(LINKS, {"time_s": sample.time_s, "directions": directions})
        if self.player is not None:
            for entry in self.player.log[self._events :]:
                self._log.add(EVENT, entry)
            self._events = len(self.player.log)

    def end(self) -> None:
        """The shard's record says all of it."""
        self._log.close(remove=True)


def _work(variant: Scenario) -> dict[str, Any] | None:
    """Of a step, for rates while the run goes on; None where replicas may be missing, or no model is trained."""
    work = None if variant.has_faults else step_work(variant)
    return None if work is None else asdict(work)

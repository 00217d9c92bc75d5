"""Progress of a run: messages for users, and the live logs that the live page reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed.measure.execution.assessment import link_key
from testbed.measure.execution.event_player import EventPlayer
from testbed.measure.execution.job_run import LinkSample
from testbed.measure.results.shards import Shard
from testbed.measure.results.unfinished_run import EVENT, LINKS, NETWORK, PARTS, PHASE, RUN, STEP, LiveLog
from testbed.prediction.step_flops import step_work
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario


@dataclass
class PartProgress:
    """Progress of a part: steps done out of `total` (0 of 0 before the first step), and its guest's virtual seconds."""

    name: str
    done: int = 0
    total: int = 0
    clock_s: float = 0.0
    finished: bool = False


@dataclass(frozen=True)
class Progress:
    """Callbacks of a run.

    Attributes:
        phase: Called once per phase, with a line of text.
        step: Called before each step, with the number of finished steps and the total.
        parts: Called from time to time.
        begins: Called before each attempt, with the `PreparedRun` and the failed invariants of the previous attempt.
    """

    phase: Callable[[str], None] = lambda line: None
    step: Callable[[int, int], None] = lambda done, total: None
    parts: Callable[[Sequence[PartProgress]], None] = lambda parts: None
    begins: Callable[[Any, Sequence[str]], None] = lambda prepared, reasons: None


def progress_text(parts: Sequence[PartProgress]) -> str:
    """Return a text such as "1 of 3 parts done; ring at 12.3 s, leaders at 9.8 s"; empty if there is only one part."""
    if len(parts) < 2:
        return ""
    running = [part for part in parts if part.clock_s > 0 and not part.finished]
    text = f"{sum(part.finished for part in parts)} of {len(parts)} parts done"
    clocks = ", ".join(f"{part.name} at {part.clock_s:.1f} s" for part in running)
    return text + (f"; {clocks}" if clocks else "")


def time_left_text(elapsed_s: float, parts: Sequence[PartProgress]) -> str:
    """Return a text such as "about 40 s left", extrapolated from the steps so far; empty while nothing is known."""
    current = [part for part in parts if part.clock_s > 0 or not part.finished]  # the others ended earlier
    done = sum(part.total if part.finished else part.done for part in current)
    total = max((part.total for part in current), default=0) * len(current)
    if not done or done >= total:
        return ""
    left_s = elapsed_s / done * (total - done)
    return f"about {left_s:.0f} s left" if left_s < 100 else f"about {left_s / 60:.0f} min left"


PARTS_EVERY_S = 0.5


class RunLive:
    """The live log of a whole run, in the run's partial directory; `parts` is the directory of all shards."""

    def __init__(
        self, folder: Path, parts: Path, scenario: Scenario, shards: Sequence[Shard], scale: Scale
    ) -> None:
        self._log = LiveLog(folder)
        self._logged: list[dict[str, Any]] = []
        self._logged_s = 0.0
        head = {
            "scenario": scenario.name,
            "variants": [
                {"name": name, "work": _work(scenario.variant(name))} for name in scenario.variant_names
            ],
            "ranks": scenario.ranks,
            "scale": asdict(scale),
            "folder": str(parts.resolve()),
            "parts": [
                {key: getattr(shard, key) for key in ("number", "name", "variant", "first_trial")}
                for shard in shards
            ],
        }
        self._log.add(RUN, head)

    def progress(self, other: Progress) -> Progress:
        """Return a progress callback that writes to the log and also calls another one."""

        def phase(line: str) -> None:
            self._log.add(PHASE, {"words": line})
            other.phase(line)

        def step(done: int, total: int) -> None:
            self._log.add(STEP, {"done": done, "total": total})
            other.step(done, total)

        def parts(current: Sequence[PartProgress]) -> None:
            self._parts(current)
            other.parts(current)

        return Progress(phase, step, parts)

    def _parts(self, current: Sequence[PartProgress]) -> None:
        """Log the parts' progress if it has changed, at most every PARTS_EVERY_S."""
        entries = [asdict(part) for part in current]
        if entries != self._logged and time.monotonic() >= self._logged_s + PARTS_EVERY_S:
            self._logged, self._logged_s = entries, time.monotonic()
            self._log.add(PARTS, {"parts": entries})

    def end(self) -> None:
        """Close and remove the log, since the finished run replaces it."""
        self._log.close(remove=True)


class ShardLive:
    """The live log of one shard, in its own directory; `player` is set if the scenario has events."""

    def __init__(self, folder: Path, fabric: Mapping[str, Any]) -> None:
        self._log = LiveLog(folder)
        self._log.add(NETWORK, fabric)
        self.player: EventPlayer | None = None
        self._events = 0

    def sample(self, sample: LinkSample) -> None:
        """Log a reading of all links (cumulative counters), and the events since the last reading."""
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
        """Close and remove the log, since the shard's record replaces it."""
        self._log.close(remove=True)


def _work(variant: Scenario) -> dict[str, Any] | None:
    """Return the work of a step, for live rates; None with elastic replicas, or if no model is trained."""
    work = None if variant.has_faults else step_work(variant)
    return None if work is None else asdict(work)

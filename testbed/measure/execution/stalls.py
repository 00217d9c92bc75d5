"""Detection of stalled steps, and their diagnosis while the run continues."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from testbed.errors import TestbedError
from testbed.measure.diagnosis.diagnose import diagnose
from testbed.measure.diagnosis.dumps import read_stalled
from testbed.measure.diagnosis.verdicts import verdict_line
from testbed.measure.results.shards import Shard

LEAST_TIMES = 5.0  # times the usual duration: steps of a healthy run differ by less
SURE = 0.8  # certainty of a verdict that needs no further check
MOST_LOOKS = 3


@dataclass(frozen=True)
class Stall:
    """A step that takes far longer than the earlier steps of its variant, in emulated seconds."""

    variant: str
    trial: int
    lasted_s: float
    usual_s: float

    @property
    def words(self) -> str:
        """The stall as a readable phrase."""
        times = self.lasted_s / self.usual_s
        step = (
            f"step {self.trial} of {self.variant}" if self.trial >= 0 else f"a warm-up step of {self.variant}"
        )
        return f"{step} has lasted {self.lasted_s:.3g} s, {times:.3g} times the usual duration"


class StallWatch:
    """A detector of stalled steps.

    A step is stalled if two conditions are met. It lasts LEAST_TIMES the median of its variant, and together with the
    stalled steps right before it has lost `least_s` in total. It is reported MOST_LOOKS times, `least_s` / 2 apart,
    unless `settled` is set. The first step of a variant has no usual duration, so only timeouts end it.
    """

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._steps_s: dict[str, list[float]] = {}
        self._lost_s: dict[str, float] = {}  # time lost to consecutive steps that took too long
        self._now: tuple[str, int, float] | None = None
        self._looks = 0
        self._again_s = 0.0
        self.settled = False

    def began(self, variant: str, trial: int, start_s: float) -> None:
        """Record the start of a step, and with it the end of the previous one."""
        if self._now is not None:
            before, _, began_s = self._now
            self._record_duration(before, start_s - began_s)
        self._now = variant, trial, start_s

    def _record_duration(self, variant: str, lasted_s: float) -> None:
        known = self._steps_s.setdefault(variant, [])
        usual_s = median(known) if known else lasted_s
        if lasted_s >= LEAST_TIMES * usual_s:  # does not count towards the usual duration
            self._lost_s[variant] += lasted_s - usual_s
        else:
            self._lost_s[variant] = 0.0
            known.append(lasted_s)

    @property
    def due_s(self) -> float | None:
        """The time when the current step counts as stalled; None if it is unknown or was reported often enough."""
        if self.settled or self._looks == MOST_LOOKS or self._now is None:
            return None
        variant, _, began_s = self._now
        if variant not in self._steps_s:
            return None
        usual_s = median(self._steps_s[variant])
        stalled_s = began_s + max(LEAST_TIMES * usual_s, usual_s + self._least_s - self._lost_s[variant])
        return max(stalled_s, self._again_s)

    def look(self, now_s: float) -> Stall | None:
        """Return the current step if it is stalled and a report is due."""
        if self.due_s is None or now_s < self.due_s:
            return None
        assert self._now is not None
        self._looks += 1
        self._again_s = now_s + self._least_s / 2
        variant, trial, began_s = self._now
        return Stall(variant, trial, now_s - began_s, median(self._steps_s[variant]))


class StallReporter:
    """A reporter that diagnoses flight recorder dumps of a stalled step in a thread, and reports each new verdict.

    Args:
        flight: Directory of the run's dumps.
        say: Called with each report.
        watch: The watch whose `settled` is set once a verdict is certain.
        shard: The shard that is running.
    """

    def __init__(self, flight: Path, say: Callable[[str], None], watch: StallWatch, shard: Shard) -> None:
        self._flight = flight
        self._say = say
        self._watch = watch
        self._shard = shard
        self._reported = ""
        self._thread: threading.Thread | None = None

    def report(self, stall: Stall) -> None:
        """Start diagnosing a stall, after its dumps were written."""
        self.end()
        self._thread = threading.Thread(target=self._report, args=(stall,), daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Wait for the report in progress."""
        if self._thread is not None:
            self._thread.join()

    def _report(self, stall: Stall) -> None:
        try:
            evidence = read_stalled(self._flight)
            verdicts = diagnose(evidence.dumps, evidence.paths).verdicts
        except (TestbedError, OSError) as error:
            verdict = f"the cause is unknown: {error}"
        else:
            verdict = verdict_line(verdicts[0]) if verdicts else "the flight recorders show nothing wrong"
            self._watch.settled = bool(verdicts) and verdicts[0].certainty >= SURE
        if verdict != self._reported:
            self._reported = verdict
            trial = stall.trial + self._shard.first_trial if stall.trial >= 0 else stall.trial
            own = replace(stall, variant=self._shard.variant or stall.variant, trial=trial)
            self._say(f"{own.words}: {verdict}")

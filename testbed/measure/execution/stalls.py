"""A step that does not end: how long is too long, and who it is, said while it still goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from testbed.errors import TestbedError
from testbed.measure.diagnosis import diagnose, read_stalled
from testbed.measure.diagnosis.verdicts import verdict_line
from testbed.measure.results.shards import Shard

LEAST_TIMES = 5.0  # longer than is usual: steps of a healthy run differ by less
SURE = 0.8  # of a verdict after which nobody looks again
MOST_LOOKS = 3


@dataclass(frozen=True)
class Stall:
    """A step that has lasted far longer than those of its variant before. All seconds are emulated."""

    variant: str
    trial: int
    lasted_s: float
    usual_s: float

    @property
    def words(self) -> str:
        """For people."""
        times = self.lasted_s / self.usual_s
        step = (
            f"step {self.trial} of {self.variant}" if self.trial >= 0 else f"a warm-up step of {self.variant}"
        )
        return f"{step} has lasted {self.lasted_s:.3g} s, {times:.3g} times what is usual"


class StallWatch:
    """Says when the step that goes on is stalled: it lasts many times as long as the median of its variant.

    And it, with those right before it that did so too, has cost `least_s` more than is usual. Then twice more, half as
    long apart, unless `settled`. Of a variant's first step nobody knows how long it should take; time-outs end it.
    """

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._steps_s: dict[str, list[float]] = {}
        self._lost_s: dict[str, float] = {}  # to steps in a row that were too long
        self._now: tuple[str, int, float] | None = None
        self._looks = 0
        self._again_s = 0.0
        self.settled = False

    def began(self, variant: str, trial: int, start_s: float) -> None:
        """A step begins, and so the one before it is over."""
        if self._now is not None:
            before, _, began_s = self._now
            self._over(before, start_s - began_s)
        self._now = variant, trial, start_s

    def _over(self, variant: str, lasted_s: float) -> None:
        """A step is."""
        known = self._steps_s.setdefault(variant, [])
        usual_s = median(known) if known else lasted_s
        if lasted_s >= LEAST_TIMES * usual_s:  # and no measure of what is usual
            self._lost_s[variant] += lasted_s - usual_s
        else:
            self._lost_s[variant] = 0.0
            known.append(lasted_s)

    @property
    def due_s(self) -> float | None:
        """When it will be stalled; None where that cannot be said, or has been often enough."""
        if self.settled or self._looks == MOST_LOOKS or self._now is None:
            return None
        variant, _, began_s = self._now
        if variant not in self._steps_s:
            return None
        usual_s = median(self._steps_s[variant])
        stalled_s = began_s + max(LEAST_TIMES * usual_s, usual_s + self._least_s - self._lost_s[variant])
        return max(stalled_s, self._again_s)

    def look(self, now_s: float) -> Stall | None:
        """The step that is stalled now, if it is time to look at it."""
        if self.due_s is None or now_s < self.due_s:
            return None
        assert self._now is not None
        self._looks += 1
        self._again_s = now_s + self._least_s / 2
        variant, trial, began_s = self._now
        return Stall(variant, trial, now_s - began_s, median(self._steps_s[variant]))


class StallReporter:
    """Has dumps judged beside what goes on, and says what they tell, once that is sure, or differs from before.

    flight: the folder of the run's dumps. watch: is settled once a verdict is sure. shard: what of the run goes on.
    """

    def __init__(self, flight: Path, say: Callable[[str], None], watch: StallWatch, shard: Shard) -> None:
        self._flight = flight
        self._say = say
        self._watch = watch
        self._shard = shard
        self._said = ""
        self._thread: threading.Thread | None = None

    def tell(self, stall: Stall) -> None:
        """Once dumps stand there."""
        self.end()
        self._thread = threading.Thread(target=self._tell, args=(stall,), daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Wait until it is said."""
        if self._thread is not None:
            self._thread.join()

    def _tell(self, stall: Stall) -> None:
        try:
            evidence = read_stalled(self._flight)
            verdicts = diagnose(evidence.dumps, evidence.paths).verdicts
        except (TestbedError, OSError) as error:
            said = f"nobody can say why: {error}"
        else:
            said = verdict_line(verdicts[0]) if verdicts else "nothing is wrong that flight recorders tell"
            self._watch.settled = bool(verdicts) and verdicts[0].certainty >= SURE
        if said != self._said:
            self._said = said
            trial = stall.trial + self._shard.first_trial if stall.trial >= 0 else stall.trial
            own = replace(stall, variant=self._shard.variant or stall.variant, trial=trial)
            self._say(f"{own.words}: {said}")

"""What theory says: queues with Poisson arrivals, and TCP's window over given losses.

Reno is Mathis, Semke, Mahdavi and Ott (1997): one segment more each round trip, half of it after a loss. CUBIC is RFC
8312, or RFC 9438, which differs where Reno would be quicker: from the window on that the last loss met it, too, has one
segment more each round trip. All are replayed as a fluid, over the losses that a run met or over those that its queue
makes, so that the luck of the draw does not stand between theory and instrument.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

RENO_DECREASE, CUBIC_DECREASE, CUBIC_C = 0.5, 0.7, 0.4
RANDOM_LOSS, PERIODIC_LOSS = 1.31, math.sqrt(1.5)  # Mathis's constant, every segment acknowledged
STEPS_PER_ROUND_TRIP = 4
LINUX_LOOKS_S = 1 / 32
Rules = Literal["reno", "cubic", "cubic_9438", "cubic_linux"]


def fifo_sojourns(arrivals_s: Sequence[float], service_s: float) -> list[float]:
    """Waiting and service of each, by Lindley's recursion."""
    found, free_s = [], -math.inf
    for arrival_s in arrivals_s:
        free_s = max(free_s, arrival_s) + service_s
        found.append(free_s - arrival_s)
    return found


def pollaczek_khinchine(load: float, service_s: float) -> float:
    """Mean sojourn of M/D/1."""
    return service_s * (1 + load / (2 * (1 - load)))


def reno_share(products: float) -> float:
    """Of the rate that one Reno flow uses over a queue of so many bandwidth-delay products, nothing lost but there."""
    if products >= 1:
        return 1.0
    full = 1 + products
    return 0.75 * full**2 / (1 + products + products**2)


def mathis(loss: float, round_trip_s: float, constant: float = RANDOM_LOSS) -> float:
    """Segments per second of Reno."""
    return constant / (round_trip_s * math.sqrt(loss))


@dataclass(frozen=True)
class Path:
    """One link. Round trip of the idle path, rate in frames a second, queue in frames."""

    round_trip_s: float
    frames_per_s: float
    queue_frames: float

    @property
    def product(self) -> float:
        """Frames that fill it without a queue."""
        return self.round_trip_s * self.frames_per_s

    @property
    def full(self) -> float:
        """Frames that fill it and its queue."""
        return self.product + self.queue_frames

    def waiting_s(self, window: float) -> float:
        """In the queue, with so many frames under way."""
        return max(0.0, min(window, self.full) - self.product) / self.frames_per_s


@dataclass(frozen=True)
class Replayed:
    """Means over the time replayed: frames a second, seconds in the queue; the longest of these."""

    frames_per_s: float
    mean_wait_s: float
    peak_wait_s: float


class Window:
    """A congestion window in segments, as theory moves it."""

    def __init__(self, control: Rules, segments: float) -> None:
        self._control = control
        self.segments = segments
        self._most = segments
        self._before = segments
        self._friendly = segments
        self._start = segments
        self._since_s = 0.0
        self._mending_s = 0.0
        self._looked = (-math.inf, 0)
        self._growth = 0.0

    def wait(self, seconds: float, round_trip_s: float) -> None:
        """So long without a loss; the round trip in which the one before is mended does not count."""
        if self._mending_s > 0:
            self._mending_s -= seconds
            return
        if self._control == "reno":
            self.segments += seconds / round_trip_s
            return
        self._since_s += seconds
        slope = 3 * (1 - CUBIC_DECREASE) / (1 + CUBIC_DECREASE)
        if self._control == "cubic_9438" and self._friendly >= self._before:
            slope = 1.0
        self._friendly += slope * seconds / round_trip_s
        if self._control == "cubic_linux":
            self._grow_as_linux(seconds, round_trip_s)
            return
        self.segments = max(self.segments, self._friendly, min(self._cubic(), 1.5 * self.segments))

    def _cubic(self, ahead_s: float = 0.0) -> float:
        turn_s: float = ((self._most - self._start) / CUBIC_C) ** (1 / 3)
        return CUBIC_C * (self._since_s + ahead_s - turn_s) ** 3 + self._most

    def _grow_as_linux(self, seconds: float, round_trip_s: float) -> None:
        looked_s, window = self._looked
        if int(self.segments) != window or self._since_s - looked_s > LINUX_LOOKS_S:
            self._looked = self._since_s, int(self.segments)
            behind = max(self._cubic(round_trip_s), math.floor(self._friendly)) - self.segments
            self._growth = min(max(behind, 0.01), self.segments / 2)
        self.segments += self._growth * seconds / round_trip_s

    def lose(self, round_trip_s: float) -> None:
        """One congestion event."""
        self._mending_s = round_trip_s
        self._before = before = self.segments
        if self._control == "reno":
            self.segments = max(2.0, RENO_DECREASE * before)
            return
        fast_convergence = before < self._most - 0.5  # windows are kept in whole segments
        self._most = before * (1 + CUBIC_DECREASE) / 2 if fast_convergence else before
        self._start = self._friendly = self.segments = max(2.0, CUBIC_DECREASE * before)
        self._since_s = 0.0
        self._looked = (-math.inf, 0)


def replay(control: Rules, path: Path, losses: Sequence[float], first_s: float | None = None) -> Replayed:
    """Between congestion events, each at its count of delivered segments: from the second to the last.

    With how long the gap after the first one took (`first_s`), the window at that one is what makes it take so long: a
    run's beginning is not theory's business. Without, it is the one that gaps like these make stationary.
    """
    gaps = [after - before for before, after in itertools.pairwise(losses)]
    if first_s is None:
        begin = _stationary(control, path, sum(gaps) / len(gaps))
    else:
        begin = _window_for(control, path, gaps[0], first_s)
    window, sums = Window(control, begin), _Sums()
    for number, gap in enumerate(gaps):
        if number == 1:
            sums = _Sums()
        window.lose(path.round_trip_s + path.waiting_s(window.segments))
        _deliver(window, path, gap, sums)
    return sums.means()


def replay_queue(control: Rules, path: Path, sawteeth: int = 12) -> Replayed:
    """A flow that loses only what its queue has no room for, once settled."""
    window, sums = Window(control, path.full), _Sums()
    for number in range(sawteeth):
        if number == sawteeth // 2:
            sums = _Sums()
        window.lose(path.round_trip_s + path.waiting_s(window.segments))
        _deliver(window, path, math.inf, sums)
    return sums.means()


class _Sums:
    def __init__(self) -> None:
        self.seconds = self.frames = self.waited = self.peak_s = 0.0

    def means(self) -> Replayed:
        return Replayed(self.frames / self.seconds, self.waited / self.seconds, self.peak_s)


def _deliver(window: Window, path: Path, frames: float, sums: _Sums) -> None:
    """Until so many are delivered, or the queue is full."""
    while frames > 0 and (frames < math.inf or window.segments < path.full):
        held, wait_s = min(window.segments, path.full), path.waiting_s(window.segments)
        round_trip_s = path.round_trip_s + wait_s
        rate = held / round_trip_s
        last = frames <= rate * round_trip_s / STEPS_PER_ROUND_TRIP
        seconds = frames / rate if last else round_trip_s / STEPS_PER_ROUND_TRIP
        sums.seconds += seconds
        sums.frames += rate * seconds
        sums.waited += wait_s * seconds
        sums.peak_s = max(sums.peak_s, wait_s)
        frames = 0.0 if last else frames - rate * seconds
        window.wait(seconds, round_trip_s)


def _window_for(control: Rules, path: Path, gap: float, took_s: float) -> float:
    """The window just before a loss after which so many frames took so long, by halving."""
    low, high = 2.0, 2 * path.full
    for _ in range(30):
        middle = (low + high) / 2
        window, sums = Window(control, middle), _Sums()
        window.lose(path.round_trip_s + path.waiting_s(middle))
        _deliver(window, path, gap, sums)
        low, high = (middle, high) if sums.seconds > took_s else (low, middle)
    return low


def _stationary(control: Rules, path: Path, gap: float) -> float:
    """The window just before losses that come so many frames apart."""
    window = Window(control, 10.0)
    for _ in range(60):
        window.lose(path.round_trip_s + path.waiting_s(window.segments))
        _deliver(window, path, gap, _Sums())
    return min(window.segments, path.full)

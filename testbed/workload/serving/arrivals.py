"""When requests arrive, whether or not earlier ones are answered (open loop), and which go together. Real seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

from testbed.spec.serving import BURSTS, EVEN


@dataclass(frozen=True)
class Batch:
    """Requests that go together: those from `first` up to but not with `end`; closed_s: when it goes."""

    first: int
    end: int
    closed_s: float

    @property
    def size(self) -> int:
        """Requests in it."""
        return self.end - self.first


def drawn_arrivals(kind: str, rate_per_s: float, count: int, seed: int, burst: int = 1) -> list[float]:
    """Times of so many arrivals from 0 on; `rate_per_s` on average. burst: of `bursts`, how many at once."""
    if kind == EVEN:
        return [(number + 1) / rate_per_s for number in range(count)]
    together = burst if kind == BURSTS else 1
    draw = Random(f"{seed}/arrivals")
    found: list[float] = []
    now_s = 0.0
    while len(found) < count:
        now_s += draw.expovariate(rate_per_s / together)
        found += [now_s] * min(together, count - len(found))
    return found


def read_arrivals(path: Path) -> list[float]:
    """Of a file with a time in seconds on each line, which do not go back. ValueError says the line, OSError."""
    found: list[float] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            time_s = float(line)
        except ValueError:
            raise ValueError(f"line {number}: {line.strip()!r}, expected a time in seconds") from None
        if not (found[-1] if found else 0.0) <= time_s < float("inf"):
            raise ValueError(f"line {number}: {line.strip()}, expected a time from 0 on, not before the last")
        found.append(time_s)
    if not found:
        raise ValueError("no line, expected a time in seconds on each")
    return found


def closed_batches(arrivals_s: Sequence[float], size: int, wait_s: float) -> list[Batch]:
    """Requests in their order, at most `size` together; a batch goes when it is full, or `wait_s` after its first."""
    starts = [0]
    for number, arrival_s in enumerate(arrivals_s):
        first = starts[-1]
        if number > first and (number - first == size or arrival_s > arrivals_s[first] + wait_s):
            starts.append(number)
    found = []
    for first, end in pairwise([*starts, len(arrivals_s)]):
        full = end - first == size
        found.append(Batch(first, end, arrivals_s[end - 1] if full else arrivals_s[first] + wait_s))
    return found

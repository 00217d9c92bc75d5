"""The front end of serving: when requests arrive, how they are batched, and how batches and answers travel between
ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

from testbed.spec.serving import BURSTS, EVEN
from testbed.workload.plan import QUEUE
from testbed.workload.plans import Mark, PlanBuilder


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


def draw_arrivals(kind: str, rate_per_s: float, count: int, seed: int, burst: int = 1) -> list[float]:
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


def form_batches(arrivals_s: Sequence[float], size: int, wait_s: float) -> list[Batch]:
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


ARRIVALS = "arrivals"


class FrontEnd:
    """Puts a plan together, batch by batch. entry: rank where requests arrive; None: at the host of their node."""

    def __init__(self, builder: PlanBuilder, entry: int | None) -> None:
        self.builder, self.entry = builder, entry
        self._until_s: dict[int, float] = {}

    def at(self, node: Node) -> int:
        """Where the requests of a node arrive."""
        return node.host if self.entry is None else self.entry

    def arrive(self, number: int, batch: Batch, node: Node, size_bytes: float) -> Mark:
        """A batch is closed, and comes to its node's host."""
        here = self.at(node)
        gap_s = batch.closed_s - self._until_s.get(here, 0.0)
        self._until_s[here] = batch.closed_s
        closed = self.builder.pause(here, gap_s, name=f"batch {number}", stream=ARRIVALS)
        return self.send(f"requests {number}", here, node.host, size_bytes, closed)

    def answer(self, name: str, node: Node, size_bytes: float, after: Mark, lane: str = "") -> Mark:
        """Back to where its requests arrived."""
        return self.send(name, node.host, self.at(node), size_bytes, after, lane)

    def send(
        self,
        name: str,
        source: int,
        target: int,
        size_bytes: float,
        after: Mark | Iterable[Mark],
        lane: str = "",
    ) -> Mark:
        """A message, of a kind that is the first word of `name`; its arrival. Nothing where both are one rank.

        Messages of a kind between two ranks come one after the other; those of another `lane` beside them.
        """
        if source == target:
            assert isinstance(after, Mark)
            return after
        kind = name.partition(" ")[0]
        stream = f"{kind} {source}>{target}{lane and f' {lane}'}"
        _, received = self.builder.message(
            source, target, size_bytes, name=name, after=after, stream=stream, kind=kind
        )
        return received

    def by_way(
        self, name: str, way: Iterable[int], size_bytes: float, after: Mark | Iterable[Mark], lane: str = ""
    ) -> Mark:
        """From the first of these ranks to the last, through all between; its arrival."""
        ranks = list(way)
        for source, target in pairwise(ranks):
            after = self.send(name, source, target, size_bytes, after, lane)
        assert isinstance(after, Mark)
        return after

    def compute(self, name: str, card: int, seconds: float, after: Iterable[Mark]) -> Mark:
        """A card's work, one piece after the other in the order in which they can begin."""
        return self.builder.compute(card, seconds, name=name, after=after, stream=QUEUE)


@dataclass(frozen=True)
class Node:
    """A host and its cards, as ranks; building: its name."""

    host: int
    cards: tuple[int, ...]
    building: str = ""

"""The front end of serving: arrival of requests, batching, and messages for batches and answers between ranks."""

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
    """Requests that are served together: from `first` up to `end`, exclusive; sent at `closed_s`."""

    first: int
    end: int
    closed_s: float

    @property
    def size(self) -> int:
        """The number of requests."""
        return self.end - self.first


def draw_arrivals(kind: str, rate_per_s: float, count: int, seed: int, burst: int = 1) -> list[float]:
    """Return arrival times from 0 on, at `rate_per_s` on average (open loop: they do not wait for answers).

    Args:
        kind: Arrival process.
        rate_per_s: Requests per real second.
        count: Number of arrivals.
        seed: Seed of random draws.
        burst: Simultaneous arrivals of the process `bursts`.
    """
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
    """Return the arrival times of a file with one non-decreasing time in seconds per line.

    Raises ValueError, which names the line, and OSError.
    """
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
    """Group requests in order, at most `size` per batch.

    A batch is sent when it is full, or `wait_s` after its first request.
    """
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
    """Builds the plan of serving, batch by batch.

    Attributes:
        builder: Builder of the plan.
        entry: Rank where requests arrive; None for their node's host.
    """

    def __init__(self, builder: PlanBuilder, entry: int | None) -> None:
        self.builder, self.entry = builder, entry
        self._until_s: dict[int, float] = {}

    def at(self, node: Node) -> int:
        """Return the rank where requests for a node arrive."""
        return node.host if self.entry is None else self.entry

    def arrive(self, number: int, batch: Batch, node: Node, size_bytes: float) -> Mark:
        """Add the closing of a batch and its transfer to the node's host; return the handle of its arrival."""
        here = self.at(node)
        gap_s = batch.closed_s - self._until_s.get(here, 0.0)
        self._until_s[here] = batch.closed_s
        closed = self.builder.pause(here, gap_s, name=f"batch {number}", stream=ARRIVALS)
        return self.send(f"requests {number}", here, node.host, size_bytes, closed)

    def answer(self, name: str, node: Node, size_bytes: float, after: Mark, lane: str = "") -> Mark:
        """Add an answer to where its requests arrived."""
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
        """Add a message and return the handle of its arrival; no message within a rank.

        The kind is the first word of `name`. Messages of a kind between two ranks are sent in order, those of different
        lanes concurrently.
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

    def relay(
        self, name: str, path: Iterable[int], size_bytes: float, after: Mark | Iterable[Mark], lane: str = ""
    ) -> Mark:
        """Add messages along a path of ranks; return the handle of the last arrival."""
        ranks = list(path)
        for source, target in pairwise(ranks):
            after = self.send(name, source, target, size_bytes, after, lane)
        assert isinstance(after, Mark)
        return after

    def compute(self, name: str, card: int, seconds: float, after: Iterable[Mark]) -> Mark:
        """Add work of a card, which runs one piece at a time, in the order in which they become ready."""
        return self.builder.compute(card, seconds, name=name, after=after, stream=QUEUE)


@dataclass(frozen=True)
class Node:
    """A host and its cards, as ranks. `building` is the building's name."""

    host: int
    cards: tuple[int, ...]
    building: str = ""

"""The front end of serving: arrival of requests, batching, and the parts of a batch's plan common to all models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

from testbed.spec.serving import BURSTS, EVEN, HOST, InferenceSpec
from testbed.spec.units import format_size
from testbed.workload.plan import QUEUE
from testbed.workload.plans import Mark, PlanBuilder
from testbed.workload.serving.costs import Card, ServingProblem

ARRIVALS = "arrivals"


@dataclass(frozen=True)
class Batch:
    """Requests that are served together: from `first` up to but excluding `end`, sent at `closed_s`."""

    first: int
    end: int
    closed_s: float

    @property
    def size(self) -> int:
        """The number of requests."""
        return self.end - self.first


def draw_arrivals(kind: str, rate_per_s: float, count: int, seed: int, burst: int = 1) -> list[float]:
    """Return arrival times from 0 on, at an average of `rate_per_s` (open loop: they do not wait for answers).

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

    ValueError, which names the line, or OSError is raised on failure.
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

    A batch is sent when it is full, or `wait_s` after its first request arrives.
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


@dataclass(frozen=True)
class Node:
    """A host and its cards, as ranks; `building` is the building's name."""

    host: int
    cards: tuple[int, ...]
    building: str = ""


@dataclass(frozen=True)
class BatchPlanner:
    """A planner of the ranks' operations for one batch; names have the operation's kind and the batch's number.

    Attributes:
        builder: Builder of the plan.
        number: Number of the batch.
        size: Requests of the batch.
        node: Node that serves it.
        entry: Rank where requests arrive; None for their node's host.
    """

    builder: PlanBuilder
    number: int
    size: int
    node: Node
    entry: int | None

    def at(self, node: Node) -> int:
        """Return the rank where requests for a node arrive."""
        return node.host if self.entry is None else self.entry

    def arrive(self, gap_s: float, size_bytes: float) -> Mark:
        """Close the batch this long after the previous one, send it to the node's host, and return its arrival."""
        here = self.at(self.node)
        closed = self.builder.pause(here, gap_s, name=f"batch {self.number}", stream=ARRIVALS)
        return self.send("requests", here, self.node.host, size_bytes, closed)

    def answer(self, kind: str, node: Node, size_bytes: float, after: Mark, *, apart: bool = False) -> Mark:
        """Add the answer, which is sent to the rank where the requests arrived."""
        return self.send(kind, node.host, self.at(node), size_bytes, after, apart=apart)

    def send(
        self,
        kind: str,
        source: int,
        target: int,
        size_bytes: float,
        after: Mark | Iterable[Mark],
        *,
        apart: bool = False,
    ) -> Mark:
        """Add a message and return the handle of its arrival; there is no message within a rank.

        Messages of a kind between two ranks are sent in order; with `apart`, only within each batch.
        """
        if source == target:
            assert isinstance(after, Mark)
            return after
        stream = f"{kind} {source}>{target}" + (f" {self.number}" if apart else "")
        name = f"{kind} {self.number}"
        _, received = self.builder.message(
            source, target, size_bytes, name=name, after=after, stream=stream, kind=kind
        )
        return received

    def relay(
        self,
        kind: str,
        path: Iterable[int],
        size_bytes: float,
        after: Mark | Iterable[Mark],
        *,
        apart: bool = False,
    ) -> Mark:
        """Add messages along a path of ranks; return the handle of the last arrival."""
        for source, target in pairwise(path):
            after = self.send(kind, source, target, size_bytes, after, apart=apart)
        assert isinstance(after, Mark)
        return after

    def compute(
        self, kind: str, card: int, seconds: float, after: Iterable[Mark], part: int | None = None
    ) -> Mark:
        """Add work for a card, which runs one piece at a time, in the order in which pieces become ready."""
        name = f"{kind} {self.number}" if part is None else f"{kind} {self.number}.{part}"
        return self.builder.compute(card, seconds, name=name, after=after, stream=QUEUE)


class ServingModel(ABC):
    """The operations of nodes for a model's batches; the cards of a node take turns unless they serve together.

    Attributes:
        spec: The scenario's settings.
        card: The accelerator card.
    """

    def __init__(self, spec: InferenceSpec, card: Card) -> None:
        self.spec, self.card = spec, card
        self.turns: Counter[int] = Counter()  # by host of a node

    @abstractmethod
    def serve(self, plan: BatchPlanner, gap_s: float) -> list[Mark]:
        """Plan a batch that is closed `gap_s` after the previous one; return the arrivals of the answer's parts."""

    def take_turn(self, node: Node) -> int:
        """Return the number of a batch on its node, which determines the card that serves it."""
        self.turns[node.host] += 1
        return self.turns[node.host] - 1

    def check_memory(self, needed_bytes: float, what: str = "") -> None:
        """Raise ServingProblem if a card's memory is too small."""
        if needed_bytes > self.card.memory_bytes:
            found = f"{self.spec.partition}, which needs {format_size(round(needed_bytes))}{what} on a card"
            expected = f"at most {format_size(round(self.card.memory_bytes))}, a card's memory"
            raise ServingProblem("partition", found, expected)

    def path(self, node: Node, source: int, target: int) -> list[int]:
        """Return the ranks on the path from one of a node's cards to another, which includes a relaying host."""
        return [source, *([node.host] if self.spec.gather == HOST else []), target]

"""Where requests arrive and answers go, and what goes from rank to rank for a batch."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from testbed.workload.plan import QUEUE
from testbed.workload.plans import Mark, PlanBuilder
from testbed.workload.serving.arrivals import Batch
from testbed.workload.serving.nodes import Node

ARRIVALS = "arrivals"


class Front:
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

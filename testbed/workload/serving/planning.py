"""All requests of a step as a plan: each rank's operations, and which of them is the answer to whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from testbed.config.inference import InferenceSpec
from testbed.workload.plan import Computing, JobPlan
from testbed.workload.plans import Mark, PlanBuilder, WorkloadRequest
from testbed.workload.serving.arrivals import Batch, closed_batches
from testbed.workload.serving.costs import Card, ServingProblem, card_of
from testbed.workload.serving.front import Front
from testbed.workload.serving.generation import Generation
from testbed.workload.serving.nodes import Node
from testbed.workload.serving.recommendation import Recommendation


@dataclass(frozen=True)
class Answer:
    """Of a batch: which operations bring it, the first token's, or all of it, first.

    again: the same of a second sending, after the first was given up; what comes earlier counts.
    """

    batch: Batch
    node: Node
    arrives: tuple[Mark, ...]
    again: tuple[Mark, ...] = ()


@dataclass(frozen=True, eq=False)
class Serving:
    """A step of requests as it will be carried out. Times of arrival are real; nodes: all that take part."""

    plan: JobPlan
    spec: InferenceSpec
    card: Card
    nodes: tuple[Node, ...]
    arrivals_s: tuple[float, ...]
    answers: tuple[Answer, ...]

    @property
    def offered_per_s(self) -> float:
        """Requests per second, as they arrived."""
        return len(self.arrivals_s) / self.arrivals_s[-1] if self.arrivals_s[-1] else 0.0

    @cached_property
    def computing_s(self) -> Mapping[int, float]:
        """Of each card in the whole step; emulated."""
        return {
            card: sum(one.duration_s for one in self.plan.ranks[card] if isinstance(one, Computing))
            for node in self.nodes
            for card in node.cards
        }


def plan_serving(
    request: WorkloadRequest,
    spec: InferenceSpec,
    nodes: Sequence[Node],
    arrivals_s: Sequence[float],
    *,
    entry: int | None = None,
    decode: Sequence[Node] = (),
    experts: Sequence[Node] = (),
    names: Mapping[str, Node] | None = None,
) -> Serving:
    """For nodes that serve in turns. decode, experts: nodes for these, where they are others. ServingProblem.

    names: nodes by their hosts, for a failover.
    """
    if not nodes:
        raise ServingProblem("serve", "no node", "a building with nodes")
    card = card_of(spec)
    model: Recommendation | Generation
    if spec.recommendation is not None:
        model = Recommendation(spec, card, nodes)
    else:
        model = Generation(spec, card, nodes, decode, experts)
    builder = PlanBuilder(request)
    front = Front(builder, entry)
    dealt = _dealt(spec, nodes, arrivals_s, entry is None)
    sendings = _sendings(spec, nodes, dealt, names or {})
    marks: dict[int, list[tuple[Mark, ...]]] = {}
    for place, (number, batch, node) in enumerate(sendings):
        marks.setdefault(number, []).append(tuple(model.serve(front, place, batch, node)))
    answers = [Answer(batch, node, *marks[number]) for number, (batch, node) in enumerate(dealt)]
    taking_part = tuple(dict.fromkeys((*nodes, *decode, *experts)))
    return Serving(builder.plan(), spec, card, taking_part, tuple(arrivals_s), tuple(answers))


def _dealt(
    spec: InferenceSpec, nodes: Sequence[Node], arrivals_s: Sequence[float], apart: bool
) -> list[tuple[Batch, Node]]:
    """Batches with the node that each goes to, in turns, in the order in which they are closed.

    apart: requests arrive at the nodes, where none meets those of other nodes.
    """
    batching = spec.batching
    if apart and len(nodes) > 1 and batching.size > 1:
        expected = "1 with several nodes, or an entry where batches are made"
        raise ServingProblem("batching.size", str(batching.size), expected)
    made = closed_batches(arrivals_s, batching.size, batching.wait_s)
    return [(batch, nodes[number % len(nodes)]) for number, batch in enumerate(made)]


def _sendings(
    spec: InferenceSpec,
    nodes: Sequence[Node],
    dealt: Sequence[tuple[Batch, Node]],
    names: Mapping[str, Node],
) -> list[tuple[int, Batch, Node]]:
    """Batches by number as they are sent, in the order of time; once more, or elsewhere, where a failover says so."""
    failover = spec.failover
    if failover is None:
        return [(number, batch, node) for number, (batch, node) in enumerate(dealt)]
    lost, others = names.get(failover.node), [node for node in nodes if node != names.get(failover.node)]
    if lost is None or lost not in nodes or not others:
        found, expected = repr(failover.node), "the host of one of several nodes that serve"
        raise ServingProblem("failover.node", found, expected)
    if spec.entry is None:
        raise ServingProblem("failover", "no entry", "an entry, where it is noticed and sent again")
    sendings = []
    for number, (batch, node) in enumerate(dealt):
        other = others[number % len(others)]
        away = node == lost and failover.avoided(batch.closed_s)
        sendings.append((number, batch, other if away else node))
        if node == lost and failover.caught(batch.closed_s):
            sendings.append((number, replace(batch, closed_s=failover.noticed_s), other))
    return sorted(sendings, key=lambda one: one[1].closed_s)

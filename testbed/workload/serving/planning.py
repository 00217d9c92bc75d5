"""All requests of a step as a plan: each rank's operations, and which of them is the answer to whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    """Of a batch: which operations bring it, the first token's, or all of it, first."""

    batch: Batch
    node: Node
    arrives: tuple[Mark, ...]


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
) -> Serving:
    """For nodes that serve in turns. decode, experts: nodes for these, where they are others. ServingProblem."""
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
    answers: list[Answer] = []
    for batch, node in _dealt(spec, nodes, arrivals_s, entry is None):
        marks = model.serve(front, len(answers), batch, node)
        answers.append(Answer(batch, node, tuple(marks)))
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

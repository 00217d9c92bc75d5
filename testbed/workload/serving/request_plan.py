"""The plan of all requests of a step: fixed in advance, or in pieces whose servers are chosen on arrival."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from testbed.spec.serving import REPLICATE, InferenceSpec
from testbed.workload.dispatch import (
    UNNUMBERED,
    Dispatching,
    DispatchLog,
    DispatchRules,
    ExecutedPlan,
    Piece,
    PieceKey,
    Server,
)
from testbed.workload.plan import Computing, JobPlan
from testbed.workload.plans import Mark, PlanBuilder, WorkloadRequest
from testbed.workload.serving.costs import Card, ServingProblem, card_of
from testbed.workload.serving.frontend import ARRIVALS, Batch, BatchPlanner, Node, ServingModel, form_batches
from testbed.workload.serving.models import Generation, Recommendation


@dataclass(frozen=True)
class Answer:
    """The answer to a batch: the operations that deliver it; the first one delivers the first token or everything."""

    batch: Batch
    node: Node
    arrives: tuple[Mark, ...]


@dataclass(frozen=True, eq=False)
class Serving:
    """A step of requests, ready to run. Arrival times are real.

    Attributes:
        plan: Every rank's plan.
        spec: The scenario's settings.
        card: The accelerator card.
        nodes: All nodes that take part.
        arrivals_s: Arrival time of each request.
        answers: Answer to each batch.
        batches: The batches, if servers are chosen on arrival.
        dispatching: The dispatcher's inputs, if servers are chosen on arrival. In that case `plan` and `answers` are
            those of round-robin until `as_executed` replaces them.
        dispatched: The dispatcher's decisions.
    """

    plan: JobPlan
    spec: InferenceSpec
    card: Card
    nodes: tuple[Node, ...]
    arrivals_s: tuple[float, ...]
    answers: tuple[Answer, ...]
    batches: tuple[Batch, ...] = ()
    dispatching: Dispatching | None = None
    dispatched: DispatchLog | None = None

    def as_executed(self, executed: ExecutedPlan) -> Serving:
        """Return the step with the dispatcher's decisions."""
        assert self.dispatching is not None
        entry, answers = self.dispatching.entry, []
        for batch, number in sorted(executed.dispatched.first.items()):
            server = self.dispatching.servers[executed.dispatched.sendings[number].server]
            arrives = tuple(Mark(entry, index) for index in executed.answers[number])
            answers.append(Answer(self.batches[batch], self.nodes[server.node], arrives))
        return replace(self, plan=executed.plan, answers=tuple(answers), dispatched=executed.dispatched)

    @property
    def offered_per_s(self) -> float:
        """The arrival rate of requests per second."""
        return len(self.arrivals_s) / self.arrivals_s[-1] if self.arrivals_s[-1] else 0.0

    @cached_property
    def computing_s(self) -> Mapping[int, float]:
        """The emulated compute time of each card in the step."""
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
    names: Sequence[str] = (),
) -> Serving:
    """Return the step of requests for these nodes.

    Args:
        request: The request for a plan.
        spec: The scenario's settings.
        nodes: Nodes that serve.
        arrivals_s: Arrival time of each request, in real seconds.
        entry: Rank where requests arrive; None for their node's host.
        decode: Separate nodes for decode.
        experts: Separate nodes for experts.
        names: Host names of the nodes that serve.

    Raises:
        ServingProblem: If the settings do not fit together.
    """
    if not nodes:
        raise ServingProblem("serve", "no node", "a building with nodes")
    card = card_of(spec)

    def make_model() -> ServingModel:
        if spec.recommendation is not None:
            return Recommendation(spec, card, nodes)
        return Generation(spec, card, nodes, decode, experts)

    model, builder, batching = make_model(), PlanBuilder(request), spec.batching
    if entry is None and len(nodes) > 1 and batching.size > 1:
        # batches of different nodes are not mixed
        expected = "1 with several nodes, or an entry where batches are made"
        raise ServingProblem("batching.size", str(batching.size), expected)
    batches = form_batches(arrivals_s, batching.size, batching.wait_s)
    until_s: dict[int, float] = {}
    answers = []
    for number, batch in enumerate(batches):
        plan = BatchPlanner(builder, number, batch.size, nodes[number % len(nodes)], entry)
        here = plan.at(plan.node)
        gap_s, until_s[here] = batch.closed_s - until_s.get(here, 0.0), batch.closed_s
        answers.append(Answer(batch, plan.node, tuple(model.serve(plan, gap_s))))
    participants = tuple(dict.fromkeys((*nodes, *decode, *experts)))
    made = Serving(builder.plan(), spec, card, participants, tuple(arrivals_s), tuple(answers))
    if not spec.on_arrival:
        return made
    dispatching = plan_dispatching(request, spec, nodes, batches, entry, names, make_model)
    return replace(made, batches=tuple(batches), dispatching=dispatching)


def plan_dispatching(
    request: WorkloadRequest,
    spec: InferenceSpec,
    nodes: Sequence[Node],
    batches: Sequence[Batch],
    entry: int | None,
    names: Sequence[str],
    make_model: Callable[[], ServingModel],
) -> Dispatching:
    """Return the dispatcher's inputs for batches that arrive at `entry`, or at the host of the only node.

    ServingProblem is raised if there are several nodes and no entry.
    """
    if entry is None and len(nodes) > 1:
        got = spec.dispatch if spec.retry is None else f"{spec.dispatch} with retry"
        raise ServingProblem("dispatch", got, "an entry, where it is decided, or one node")
    here = nodes[0].host if entry is None else entry
    replicas = spec.partition == REPLICATE
    most = max(len(node.cards) for node in nodes)
    servers = [
        Server(number, (turn,) if replicas else tuple(range(len(node.cards))))
        for turn in range(most if replicas else 1)
        for number, node in enumerate(nodes)
        if turn < len(node.cards)
    ]
    retry = spec.retry
    rules = DispatchRules(
        spec.dispatch,
        None if retry is None else request.seconds(retry.after_s),
        0 if retry is None else retry.most,
        # behind a host's connection, the failing card is unknown
        by_node=entry is not None,
        seed=request.seed,
    )
    pieces = tuple(
        _piece(request, make_model(), node, (size, number, turn), entry)
        for size in sorted({batch.size for batch in batches})
        for number, node in enumerate(nodes)
        for turn in range(len(node.cards))
    )
    return Dispatching(
        rules,
        here,
        tuple((node.host, *node.cards) for node in nodes),
        tuple(names),
        tuple(servers),
        tuple(batch.size for batch in batches),
        _arrival_plan(request, batches, here),
        pieces,
    )


def _piece(
    request: WorkloadRequest,
    model: ServingModel,
    node: Node,
    key: PieceKey,
    entry: int | None,
) -> Piece:
    size, _, turn = key
    model.turns[node.host] = turn
    builder = PlanBuilder(request)
    marks = model.serve(BatchPlanner(builder, UNNUMBERED, size, node, entry), 0.0)
    return Piece(key, builder.plan(), tuple(mark.number for mark in marks))


def _arrival_plan(request: WorkloadRequest, batches: Sequence[Batch], here: int) -> JobPlan:
    """Return a plan of pauses until each batch is closed."""
    builder, until_s = PlanBuilder(request), 0.0
    for number, batch in enumerate(batches):
        builder.pause(here, batch.closed_s - until_s, name=f"closed {number}", stream=ARRIVALS)
        until_s = batch.closed_s
    return builder.plan()

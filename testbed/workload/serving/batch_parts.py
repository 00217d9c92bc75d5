"""Makes what ranks need to serve batches of which it is decided on arrival who serves them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from testbed.spec.serving import REPLICATE, InferenceSpec
from testbed.workload.dispatch.batch_execution import UNNUMBERED, Dispatching, Piece, PieceKey
from testbed.workload.dispatch.dispatcher import DispatchRules, Server
from testbed.workload.plan import JobPlan
from testbed.workload.plans import Mark, PlanBuilder, WorkloadRequest
from testbed.workload.serving.arrivals import Batch
from testbed.workload.serving.costs import ServingProblem
from testbed.workload.serving.front import ARRIVALS, Front
from testbed.workload.serving.nodes import Node


class Serves(Protocol):
    """What nodes do for batches to a model."""

    def next_turn(self, node: Node, turn: int) -> None:
        """Have this card of a node be the next whose turn it is."""

    def serve(self, front: Front, number: int, batch: Batch, node: Node) -> list[Mark]:
        """The arrivals of the answer's parts."""


def dispatching_of(
    request: WorkloadRequest,
    spec: InferenceSpec,
    nodes: Sequence[Node],
    batches: Sequence[Batch],
    entry: int | None,
    names: Sequence[str],
    make_model: Callable[[], Serves],
) -> Dispatching:
    """For batches that arrive at `entry`, or at the host of the one node there is. ServingProblem."""
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
        # behind a host's connection nobody can tell which card it was
        by_node=entry is not None,
        seed=request.seed,
    )
    pieces: dict[PieceKey, Piece] = {}
    for size in sorted({batch.size for batch in batches}):
        for number, node in enumerate(nodes):
            for turn in range(len(node.cards)):
                pieces[size, number, turn] = _piece(request, make_model(), (node, turn), size, entry)
    return Dispatching(
        rules,
        here,
        tuple((node.host, *node.cards) for node in nodes),
        tuple(names),
        tuple(servers),
        tuple(batch.size for batch in batches),
        _arrivals(request, batches, here),
        pieces,
    )


def _piece(
    request: WorkloadRequest,
    model: Serves,
    at: tuple[Node, int],
    size: int,
    entry: int | None,
) -> Piece:
    node, turn = at
    model.next_turn(node, turn)
    builder = PlanBuilder(request)
    marks = model.serve(Front(builder, entry), UNNUMBERED, Batch(0, size, 0.0), node)
    return Piece(builder.plan(), tuple(mark.number for mark in marks))


def _arrivals(request: WorkloadRequest, batches: Sequence[Batch], here: int) -> JobPlan:
    """Pauses until each batch is closed, in their order."""
    builder, until_s = PlanBuilder(request), 0.0
    for number, batch in enumerate(batches):
        builder.pause(here, batch.closed_s - until_s, name=f"closed {number}", stream=ARRIVALS)
        until_s = batch.closed_s
    return builder.plan()

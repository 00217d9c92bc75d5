"""What nodes do for requests to a recommendation model: indices to cards, look-ups, pooled vectors, the dense part."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.spec.serving import HOST, PIPELINE, REPLICATE, InferenceSpec
from testbed.workload.plans import Mark
from testbed.workload.serving.costs import Card, RecommendationCosts
from testbed.workload.serving.frontend import BatchPlanner, Node, ServingModel


def shares(tables: int, cards: int) -> list[int]:
    """Return the number of tables on each card, as even as possible."""
    return [tables // cards + (card < tables % cards) for card in range(cards)]


class Recommendation(ServingModel):
    """Serves batches on nodes. Raises ServingProblem where a card's memory is too small."""

    def __init__(self, spec: InferenceSpec, card: Card, nodes: Sequence[Node]) -> None:
        super().__init__(spec, card)
        assert spec.recommendation is not None
        self.tables = spec.recommendation.tables
        self.costs = RecommendationCosts(spec.recommendation, spec.itemsize, spec.partial_tensors)
        for node in nodes:
            cards, most = len(node.cards), max(shares(self.tables, len(node.cards)))
            if spec.partition == REPLICATE:
                self.check_memory(self.costs.weights_bytes(self.tables))
            else:
                share = 1 / cards if spec.partition == PIPELINE else 1.0
                self.check_memory(self.costs.weights_bytes(most, share))

    def request_bytes(self, requests: int) -> int:
        """Return the bytes of requests: all indices and features."""
        return self.costs.indices_bytes(requests, self.tables) + self.costs.features_bytes(requests)

    def serve(self, plan: BatchPlanner, gap_s: float) -> list[Mark]:
        """Plan a batch; return the handle of the answer's arrival."""
        ready = plan.arrive(gap_s, self.request_bytes(plan.size))
        turn = self.take_turn(plan.node)
        strategy = {REPLICATE: self._replicate, PIPELINE: self._pipeline}.get(
            self.spec.partition, self._sharded
        )
        scored, card = strategy(plan, ready, turn)
        scores_bytes = self.costs.scores_bytes(plan.size)
        back = plan.send("scores", card, plan.node.host, scores_bytes, scored)
        return [plan.answer("answer", plan.node, scores_bytes, back)]

    def _lookup(self, plan: BatchPlanner, card: int, tables: int, after: Sequence[Mark]) -> list[Mark]:
        """Plan the look-ups of a card's tables; without tables, return what it waited for."""
        if not tables:
            return list(after)
        seconds = self.card.takes_s(0.0, self.costs.lookup_bytes(plan.size, tables))
        return [plan.compute("lookup", card, seconds, after)]

    def _dense(self, plan: BatchPlanner, card: int, share: float, after: Sequence[Mark]) -> Mark:
        flop = share * self.costs.dense_flop(plan.size)
        seconds = self.card.takes_s(flop, self.costs.weights_bytes(0, share))
        return plan.compute("dense", card, seconds, after)

    def _replicate(self, plan: BatchPlanner, ready: Mark, turn: int) -> tuple[Mark, int]:
        card = plan.node.cards[turn % len(plan.node.cards)]
        arrived = plan.send("indices", plan.node.host, card, self.request_bytes(plan.size), ready)
        looked_up = self._lookup(plan, card, self.tables, [arrived])
        return self._dense(plan, card, 1.0, looked_up), card

    def _sharded(self, plan: BatchPlanner, ready: Mark, turn: int) -> tuple[Mark, int]:
        """Plan a batch on all cards; the card with the dense part uses its own pooled vectors and needs all others'."""
        costs, host, cards, size = self.costs, plan.node.host, plan.node.cards, plan.size
        last = cards[turn % len(cards)]
        own: list[Mark] = []
        pooled: list[Mark] = []
        elsewhere = 0
        for card, tables in zip(cards, shares(self.tables, len(cards)), strict=True):
            features = costs.features_bytes(size) if card == last else 0
            size_bytes = costs.indices_bytes(size, tables) + features
            if not size_bytes:
                continue
            arrived = plan.send("indices", host, card, size_bytes, ready)
            looked_up = self._lookup(plan, card, tables, [arrived])
            if card == last:
                own = looked_up
            elif tables:
                target = host if self.spec.gather == HOST else last
                vectors = costs.pooled_bytes(size, tables)
                pooled.append(plan.send("pooled", card, target, vectors, looked_up))
                elsewhere += vectors
        if pooled and self.spec.gather == HOST:
            pooled = [plan.send("pooled", host, last, elsewhere, pooled)]
        return self._dense(plan, last, 1.0, [*own, *pooled]), last

    def _pipeline(self, plan: BatchPlanner, ready: Mark, turn: int) -> tuple[Mark, int]:
        """Plan a batch as a pipeline: each card adds its pooled vectors and computes its layers."""
        costs, node, size = self.costs, plan.node, plan.size
        count, before = len(node.cards), 0
        done: Mark | None = None
        for place, (card, tables) in enumerate(zip(node.cards, shares(self.tables, count), strict=True)):
            features = costs.features_bytes(size) if place == 0 else 0
            size_bytes = costs.indices_bytes(size, tables) + features
            after: list[Mark] = []
            if size_bytes:
                arrived = plan.send("indices", node.host, card, size_bytes, ready)
                after = self._lookup(plan, card, tables, [arrived])
            if done is not None:
                so_far = costs.pooled_bytes(size, before) + costs.features_bytes(size)
                path = self.path(node, node.cards[place - 1], card)
                after.append(plan.relay("pooled", path, max(so_far, 1), done))
            done = self._dense(plan, card, 1 / count, after)
            before += tables
        assert done is not None
        return done, node.cards[-1]

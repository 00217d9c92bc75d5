"""What nodes do for requests to a recommendation model: indices to cards, look-ups, pooled vectors, the dense part."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.spec.serving import HOST, PIPELINE, REPLICATE, InferenceSpec
from testbed.spec.units import format_size
from testbed.workload.plans import Mark
from testbed.workload.serving.costs import Card, RecommendationCosts, ServingProblem
from testbed.workload.serving.frontend import Batch, FrontEnd, Node


def shares(tables: int, cards: int) -> list[int]:
    """Return the number of tables on each card, as even as possible."""
    return [tables // cards + (card < tables % cards) for card in range(cards)]


class Recommendation:
    """Serves batches on nodes. Raises ServingProblem where a card's memory is too small."""

    def __init__(self, spec: InferenceSpec, card: Card, nodes: Sequence[Node]) -> None:
        assert spec.recommendation is not None
        self.spec, self.card, self.model = spec, card, spec.recommendation
        self.costs = RecommendationCosts(spec.recommendation, spec.itemsize, spec.partial_tensors)
        for node in nodes:
            self._check_memory(len(node.cards))
        self._turns = dict.fromkeys((node.host for node in nodes), 0)

    def next_turn(self, node: Node, turn: int) -> None:
        """Make this card of a node the next to serve."""
        self._turns[node.host] = turn

    def _check_memory(self, cards: int) -> None:
        most = max(shares(self.model.tables, cards))
        if self.spec.partition == REPLICATE:
            needed = self.costs.weights_bytes(self.model.tables)
        else:
            needed = self.costs.weights_bytes(most, 1 / cards if self.spec.partition == PIPELINE else 1.0)
        if needed > self.card.memory_bytes:
            found = f"{self.spec.partition}, which needs {format_size(round(needed))} on a card"
            expected = f"at most {format_size(round(self.card.memory_bytes))}, a card's memory"
            raise ServingProblem("partition", found, expected)

    def request_bytes(self, requests: int) -> int:
        """Return the bytes of requests: all indices and features."""
        return self.costs.indices_bytes(requests, self.model.tables) + self.costs.features_bytes(requests)

    def serve(self, front: FrontEnd, number: int, batch: Batch, node: Node) -> list[Mark]:
        """Plan a batch; return the handle of the answer's arrival."""
        size = batch.size
        ready = front.arrive(number, batch, node, self.request_bytes(size))
        turn = self._turns[node.host]
        self._turns[node.host] += 1
        strategy = {REPLICATE: self._replicate, PIPELINE: self._pipeline}.get(
            self.spec.partition, self._sharded
        )
        scored, card = strategy(front, number, size, node, ready, turn)
        back = front.send(f"scores {number}", card, node.host, self.costs.scores_bytes(size), scored)
        return [front.answer(f"answer {number}", node, self.costs.scores_bytes(size), back)]

    def _lookup(
        self, front: FrontEnd, number: int, size: int, card: int, tables: int, after: Sequence[Mark]
    ) -> list[Mark]:
        """Plan the look-ups of a card's tables; without tables, return what it waited for."""
        if not tables:
            return list(after)
        seconds = self.card.takes_s(0.0, self.costs.lookup_bytes(size, tables))
        return [front.compute(f"lookup {number}", card, seconds, after)]

    def _dense(
        self, front: FrontEnd, number: int, size: int, card: int, share: float, after: Sequence[Mark]
    ) -> Mark:
        flop = share * self.costs.dense_flop(size)
        seconds = self.card.takes_s(flop, self.costs.weights_bytes(0, share))
        return front.compute(f"dense {number}", card, seconds, after)

    def _replicate(
        self, front: FrontEnd, number: int, size: int, node: Node, ready: Mark, turn: int
    ) -> tuple[Mark, int]:
        card = node.cards[turn % len(node.cards)]
        arrived = front.send(f"indices {number}", node.host, card, self.request_bytes(size), ready)
        looked_up = self._lookup(front, number, size, card, self.model.tables, [arrived])
        return self._dense(front, number, size, card, 1.0, looked_up), card

    def _sharded(
        self, front: FrontEnd, number: int, size: int, node: Node, ready: Mark, turn: int
    ) -> tuple[Mark, int]:
        """Plan a batch on all cards; the card with the dense part uses its own pooled vectors and needs all others'."""
        costs, host = self.costs, node.host
        last = node.cards[turn % len(node.cards)]
        own: list[Mark] = []
        pooled: list[Mark] = []
        elsewhere = 0
        for card, tables in zip(node.cards, shares(self.model.tables, len(node.cards)), strict=True):
            features = costs.features_bytes(size) if card == last else 0
            size_bytes = costs.indices_bytes(size, tables) + features
            if not size_bytes:
                continue
            arrived = front.send(f"indices {number}", host, card, size_bytes, ready)
            looked_up = self._lookup(front, number, size, card, tables, [arrived])
            if card == last:
                own = looked_up
            elif tables:
                target = host if self.spec.gather == HOST else last
                vectors = costs.pooled_bytes(size, tables)
                pooled.append(front.send(f"pooled {number}", card, target, vectors, looked_up))
                elsewhere += vectors
        if pooled and self.spec.gather == HOST:
            pooled = [front.send(f"pooled {number}", host, last, elsewhere, pooled)]
        return self._dense(front, number, size, last, 1.0, [*own, *pooled]), last

    def _pipeline(
        self, front: FrontEnd, number: int, size: int, node: Node, ready: Mark, turn: int
    ) -> tuple[Mark, int]:
        """Plan a batch as a pipeline: each card adds its pooled vectors and computes its layers."""
        costs, host = self.costs, node.host
        count = len(node.cards)
        done: Mark | None = None
        before = 0
        for place, (card, tables) in enumerate(
            zip(node.cards, shares(self.model.tables, count), strict=True)
        ):
            features = costs.features_bytes(size) if place == 0 else 0
            size_bytes = costs.indices_bytes(size, tables) + features
            after: list[Mark] = []
            if size_bytes:
                arrived = front.send(f"indices {number}", host, card, size_bytes, ready)
                after = self._lookup(front, number, size, card, tables, [arrived])
            if done is not None:
                so_far = costs.pooled_bytes(size, before) + costs.features_bytes(size)
                path = [node.cards[place - 1], *([host] if self.spec.gather == HOST else []), card]
                after.append(front.relay(f"pooled {number}", path, max(so_far, 1), done))
            done = self._dense(front, number, size, card, 1 / count, after)
            before += tables
        assert done is not None
        return done, node.cards[-1]

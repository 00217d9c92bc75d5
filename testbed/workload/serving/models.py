"""The operations of nodes and their cards for requests to a transformer and to a recommendation model.

A transformer has prefill, a cache of keys and values, and one token after another. A recommendation model has indices
that are sent to cards, look-ups, pooled vectors, and the dense part.
"""

from __future__ import annotations

from collections.abc import Sequence

from testbed.spec.serving import HOST, PIPELINE, REPLICATE, InferenceSpec
from testbed.workload.models import experts_per_token
from testbed.workload.plans import Mark
from testbed.workload.serving.costs import (
    TOKEN_BYTES,
    Card,
    GenerationCosts,
    RecommendationCosts,
    ServingProblem,
)
from testbed.workload.serving.frontend import BatchPlanner, Node, ServingModel


class Generation(ServingModel):
    """A transformer that serves batches on nodes, with separate nodes for `decode` and `experts` if given.

    ServingProblem is raised if a card's memory is too small.
    """

    def __init__(
        self,
        spec: InferenceSpec,
        card: Card,
        nodes: Sequence[Node],
        decode: Sequence[Node] = (),
        experts: Sequence[Node] = (),
    ) -> None:
        super().__init__(spec, card)
        assert spec.generation is not None
        self.model, self.costs = spec.generation, GenerationCosts(spec.generation, spec.itemsize)
        self.decode, self.experts = tuple(decode), tuple(experts)
        self.piped = spec.partition == PIPELINE
        weights = self.costs.weights
        for node in (*nodes, *decode):
            own = weights.parameters - (weights.experts if experts else 0)
            self._check_weights(own / (len(node.cards) if self.piped else 1))
        for node in experts:
            self._check_weights(weights.experts / len(node.cards))
        for node in decode:
            if self.piped and len(node.cards) != len(nodes[0].cards):
                found = f"nodes of {len(node.cards)} cards"
                raise ServingProblem("generation.decode", found, f"of {len(nodes[0].cards)}, as prefill")

    def _check_weights(self, weights: float) -> None:
        self.check_memory(weights * self.costs.itemsize, " of weights")

    def _next_cards(self, node: Node) -> tuple[int, ...]:
        """Return the cards for a batch: all cards, or the next one in turn."""
        return node.cards if self.piped else (node.cards[self.take_turn(node) % len(node.cards)],)

    def serve(self, plan: BatchPlanner, gap_s: float) -> list[Mark]:
        """Plan a batch; return the handles of the tokens' arrivals, in order."""
        size, node, prompt = plan.size, plan.node, self.model.prompt_tokens
        ready = plan.arrive(gap_s, size * prompt * TOKEN_BYTES)
        cards = self._next_cards(node)
        arrived = plan.send("prompt", node.host, cards[0], size * prompt * TOKEN_BYTES, ready)
        done = self._pass(plan, "prefill", cards, node, size * prompt, 0, [arrived])
        tokens = [self._token(plan, cards[-1], node, done[-1])]
        target_node, after = node, [done[-1]]
        if self.decode:
            target_node = self.decode[plan.number % len(self.decode)]
            prefill_cards, cards = cards, self._next_cards(target_node)
            after = self._move_cache(plan, prefill_cards, target_node, cards, done)
        elif len(cards) > 1:
            after = [self._return_token(plan, self.path(node, cards[-1], cards[0]), done[-1])]
        for place in range(1, self.model.output_tokens):
            context = size * (prompt + place)
            done = self._pass(plan, "decode", cards, target_node, size, context, after, place)
            tokens.append(self._token(plan, cards[-1], target_node, done[-1]))
            after = [done[-1]]
            if len(cards) > 1 and place + 1 < self.model.output_tokens:
                after = [self._return_token(plan, self.path(target_node, cards[-1], cards[0]), done[-1])]
        return tokens

    def _token(self, plan: BatchPlanner, card: int, node: Node, after: Mark) -> Mark:
        """Send a token to its requester."""
        out = plan.send("token", card, node.host, plan.size * TOKEN_BYTES, after, apart=True)
        return plan.answer("token", node, plan.size * TOKEN_BYTES, out, apart=True)

    def _return_token(self, plan: BatchPlanner, path: Sequence[int], after: Mark) -> Mark:
        """Send the last card's token to the first card, which continues from it."""
        return plan.relay("next", path, plan.size * TOKEN_BYTES, after, apart=True)

    def _move_cache(
        self,
        plan: BatchPlanner,
        cards: Sequence[int],
        target_node: Node,
        target_cards: Sequence[int],
        done: Sequence[Mark],
    ) -> list[Mark]:
        """Move each card's part of the cache to its counterpart in the decode node.

        The first card of the decode node also gets the token.
        """
        part = self.costs.cache_bytes(plan.size * self.model.prompt_tokens) / len(cards)
        hosts = [plan.node.host, target_node.host] if self.spec.gather == HOST else []
        arrived = [
            plan.relay("cache", [card, *hosts, other], part, done[place])
            for place, (card, other) in enumerate(zip(cards, target_cards, strict=True))
        ]
        # the first stage needs the last stage's token
        if len(cards) > 1:
            token = self._return_token(plan, [cards[-1], *hosts, target_cards[0]], done[-1])
            return [arrived[0], token, *arrived[1:]]
        return arrived

    def _pass(
        self,
        plan: BatchPlanner,
        kind: str,
        cards: Sequence[int],
        node: Node,
        tokens: int,
        context: int,
        after: Sequence[Mark],
        part: int | None = None,
    ) -> list[Mark]:
        """Plan a pass of tokens through all layers; the pass reads the cache of `context` tokens.

        The result has the handle of each card's last operation.
        """
        if self.experts:
            return [self._layers(plan, kind, cards[0], tokens, context, after, part)]
        stages = len(cards)
        seconds = self.card.takes_s(
            2 * self.costs.weights.active * tokens / stages, self.costs.read_bytes(tokens, context) / stages
        )
        activations, hidden = self.costs.activation_bytes(tokens), "hidden" if context else "prompted"
        done: list[Mark] = []
        for place, card in enumerate(cards):
            waits = [mark for mark in after if mark.rank == card]
            if place:
                path = self.path(node, cards[place - 1], card)
                waits.append(plan.relay(hidden, path, activations, done[-1], apart=bool(context)))
            done.append(plan.compute(kind, card, seconds, waits, part))
        return done

    def _layers(
        self,
        plan: BatchPlanner,
        kind: str,
        card: int,
        tokens: int,
        context: int,
        after: Sequence[Mark],
        part: int | None,
    ) -> Mark:
        """Plan a pass layer by layer: attention on the node's card, experts on the expert node's cards."""
        costs, node = self.costs, self.experts[plan.number % len(self.experts)]
        layers, count = costs.layers, len(node.cards)
        copies = costs.activation_bytes(tokens) * experts_per_token(self.model.model) / count
        weights = costs.weights
        dense = weights.parameters - weights.experts
        own_bytes = dense * costs.itemsize + costs.cache_bytes(context)
        flop = 2 * (weights.active - weights.active_experts) * tokens
        here_s = self.card.takes_s(flop / layers, own_bytes / layers)
        read = (costs.touched(tokens) - dense) * costs.itemsize
        flop = 2 * weights.active_experts * tokens
        there_s = self.card.takes_s(flop / layers / count, read / layers / count)
        waits = list(after)
        for _ in range(layers):
            attended = plan.compute(kind, card, here_s, waits, part)
            waits = []
            for other in node.cards:
                sent = plan.send("routed", card, other, copies, attended, apart=True)
                worked = plan.compute("experts", other, there_s, [sent])
                waits.append(plan.send("routed", other, card, copies, worked, apart=True))
        return plan.compute(kind, card, self.card.launch_s, waits, part)


def shares(tables: int, cards: int) -> list[int]:
    """Return the number of tables on each card, as evenly divided as possible."""
    return [tables // cards + (card < tables % cards) for card in range(cards)]


class Recommendation(ServingModel):
    """A recommendation model that serves batches on nodes; raises ServingProblem if a card's memory is too small."""

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
        """Plan the look-ups of a card's tables; without tables, return the handle that it would wait for."""
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
        """Plan a batch on all cards; the card with the dense part uses its own and all others' pooled vectors."""
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

"""What nodes do for requests to a transformer: prefill, the cache of keys and values, and one token after the other."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.spec.serving import HOST, PIPELINE, InferenceSpec
from testbed.spec.units import format_size
from testbed.workload.plans import Mark
from testbed.workload.serving.costs import TOKEN_BYTES, Card, GenerationCosts, ServingProblem
from testbed.workload.serving.frontend import Batch, FrontEnd, Node


class Generation:
    """Serves batches on nodes, with separate nodes for `decode` and `experts` if given.

    Raises ServingProblem where a card's memory is too small.
    """

    def __init__(
        self,
        spec: InferenceSpec,
        card: Card,
        nodes: Sequence[Node],
        decode: Sequence[Node] = (),
        experts: Sequence[Node] = (),
    ) -> None:
        assert spec.generation is not None
        self.spec, self.card, self.model = spec, card, spec.generation
        self.costs = GenerationCosts(spec.generation, spec.itemsize)
        self.decode, self.experts = tuple(decode), tuple(experts)
        self.piped = spec.partition == PIPELINE
        for node in (*nodes, *decode):
            own = self.costs.weights - (self.costs.expert_weights if experts else 0)
            self._check_memory(own / (len(node.cards) if self.piped else 1))
        for node in experts:
            self._check_memory(self.costs.expert_weights / len(node.cards))
        for node in decode:
            if self.piped and len(node.cards) != len(nodes[0].cards):
                found = f"nodes of {len(node.cards)} cards"
                raise ServingProblem("generation.decode", found, f"of {len(nodes[0].cards)}, as prefill")
        self._turns: dict[int, int] = {}

    def _check_memory(self, weights: float) -> None:
        needed = weights * self.costs.itemsize
        if needed > self.card.memory_bytes:
            found = f"{self.spec.partition}, which needs {format_size(round(needed))} of weights on a card"
            expected = f"at most {format_size(round(self.card.memory_bytes))}, a card's memory"
            raise ServingProblem("partition", found, expected)

    def next_turn(self, node: Node, turn: int) -> None:
        """Make this card of a node the next to serve."""
        self._turns[node.host] = turn - 1

    def _next_cards(self, node: Node) -> tuple[int, ...]:
        """Return the cards for a batch: all, or the next one."""
        if self.piped:
            return node.cards
        turn = self._turns[node.host] = self._turns.get(node.host, -1) + 1
        return (node.cards[turn % len(node.cards)],)

    def serve(self, front: FrontEnd, number: int, batch: Batch, node: Node) -> list[Mark]:
        """Plan a batch; return the handles of the tokens' arrivals, in order."""
        size, prompt = batch.size, self.model.prompt_tokens
        ready = front.arrive(number, batch, node, size * prompt * TOKEN_BYTES)
        cards = self._next_cards(node)
        arrived = front.send(f"prompt {number}", node.host, cards[0], size * prompt * TOKEN_BYTES, ready)
        done = self._pass(front, f"prefill {number}", cards, node, size * prompt, 0, [arrived])
        tokens = [self._token(front, number, size, cards[-1], node, done[-1])]
        target_node, after = node, [done[-1]]
        if self.decode:
            target_node = self.decode[number % len(self.decode)]
            prefill_cards, cards = cards, self._next_cards(target_node)
            after = self._move_cache(front, number, size, (node, prefill_cards), (target_node, cards), done)
        elif len(cards) > 1:
            after = [self._return_token(front, number, size, cards, node, done[-1])]
        for place in range(1, self.model.output_tokens):
            context = size * (prompt + place)
            done = self._pass(front, f"decode {number}.{place}", cards, target_node, size, context, after)
            tokens.append(self._token(front, number, size, cards[-1], target_node, done[-1]))
            after = [done[-1]]
            if len(cards) > 1 and place + 1 < self.model.output_tokens:
                after = [self._return_token(front, number, size, cards, target_node, done[-1])]
        return tokens

    def _token(self, front: FrontEnd, number: int, size: int, card: int, node: Node, after: Mark) -> Mark:
        """Send a token to its requester."""
        lane = str(number)
        out = front.send(f"token {number}", card, node.host, size * TOKEN_BYTES, after, lane)
        return front.answer(f"token {number}", node, size * TOKEN_BYTES, out, lane)

    def _return_token(
        self, front: FrontEnd, number: int, size: int, cards: Sequence[int], node: Node, after: Mark
    ) -> Mark:
        """Send the last card's token to the first card, which continues with it."""
        path = [cards[-1], *([node.host] if self.spec.gather == HOST else []), cards[0]]
        return front.relay(f"next {number}", path, size * TOKEN_BYTES, after, str(number))

    def _move_cache(
        self,
        front: FrontEnd,
        number: int,
        size: int,
        source: tuple[Node, Sequence[int]],
        target: tuple[Node, Sequence[int]],
        done: Sequence[Mark],
    ) -> list[Mark]:
        """Move each card's part of the cache to its counterpart in the decode node.

        The first of these gets the token, too.
        """
        (here, cards), (target_node, target_cards) = source, target
        part = self.costs.cache_bytes(size * self.model.prompt_tokens) / len(cards)
        hosts = [here.host, target_node.host] if self.spec.gather == HOST else []
        arrived = []
        for place, (card, other) in enumerate(zip(cards, target_cards, strict=True)):
            arrived.append(front.relay(f"cache {number}", [card, *hosts, other], part, done[place]))
        # the first stage needs the last stage's token
        if len(cards) > 1:
            path = [cards[-1], *hosts, target_cards[0]]
            token = front.relay(f"next {number}", path, size * TOKEN_BYTES, done[-1], str(number))
            return [arrived[0], token, *arrived[1:]]
        return arrived

    def _pass(
        self,
        front: FrontEnd,
        name: str,
        cards: Sequence[int],
        node: Node,
        tokens: int,
        context: int,
        after: Sequence[Mark],
    ) -> list[Mark]:
        """Plan a pass of tokens through all layers, which reads the cache of `context` tokens.

        Returns the handle of each card's end.
        """
        if self.experts:
            return [self._layers(front, name, cards[0], tokens, context, after)]
        stages = len(cards)
        seconds = self.card.takes_s(
            2 * self.costs.active * tokens / stages, self.costs.read_bytes(tokens, context) / stages
        )
        activations, lane = self.costs.activation_bytes(tokens), name.partition(" ")[2].partition(".")[0]
        kind = "hidden" if context else "prompted"
        done: list[Mark] = []
        for place, card in enumerate(cards):
            waits = [mark for mark in after if mark.rank == card]
            if place:
                path = [cards[place - 1], *([node.host] if self.spec.gather == HOST else []), card]
                hidden = front.relay(f"{kind} {lane}", path, activations, done[-1], lane if context else "")
                waits.append(hidden)
            done.append(front.compute(name, card, seconds, waits))
        return done

    def _layers(
        self, front: FrontEnd, name: str, card: int, tokens: int, context: int, after: Sequence[Mark]
    ) -> Mark:
        """Plan a pass layer by layer: attention on the node's card, experts on the expert node's cards."""
        costs, lane = self.costs, name.partition(" ")[2].partition(".")[0]
        node = self.experts[int(lane) % len(self.experts)]
        layers, count = costs.layers, len(node.cards)
        copies = costs.activation_bytes(tokens) * costs.experts_per_token / count
        own = costs.active - costs.active_expert_weights
        own_bytes = (costs.weights - costs.expert_weights) * costs.itemsize + costs.cache_bytes(context)
        here_s = self.card.takes_s(2 * own * tokens / layers, own_bytes / layers)
        read = (costs.touched(tokens) - (costs.weights - costs.expert_weights)) * costs.itemsize
        flop = 2 * costs.active_expert_weights * tokens
        there_s = self.card.takes_s(flop / layers / count, read / layers / count)
        waits = list(after)
        for _ in range(layers):
            attended = front.compute(name, card, here_s, waits)
            waits = []
            for other in node.cards:
                sent = front.send(f"routed {lane}", card, other, copies, attended, lane)
                worked = front.compute(f"experts {lane}", other, there_s, [sent])
                waits.append(front.send(f"routed {lane}", other, card, copies, worked, lane))
        return front.compute(name, card, self.card.launch_s, waits)

"""Messages that were sent and do not come: where on the network, by covering the bad pairs and sparing the healthy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from testbed.comm.flight_recorder import COMPLETED, NetworkPaths
from testbed.measure.diagnosis import wait_graph
from testbed.measure.diagnosis.limits import UNDER_WAY_TIMES
from testbed.measure.diagnosis.operation_graph import Graph, Key, heard_of
from testbed.measure.diagnosis.set_cover import Crossed, Explanation, Pair, explain
from testbed.measure.diagnosis.verdicts import STUCK_IN_NETWORK, Verdict, ranks_text
from testbed.measure.diagnosis.wait_graph import Felt, Waiting, caused, together, waiters_words

Stuck = Mapping[Pair, tuple[Felt, list[Key]]]
"""Pairs with messages under way: what is felt of it, and in which operations."""


def network_verdicts(
    graph: Graph, found: Waiting, paths: NetworkPaths, clock_error_s: float
) -> list[Verdict]:
    """One for each part of the network that explains stuck pairs, and one for each pair that nothing explains."""
    unexplained = [
        Verdict(
            STUCK_IN_NETWORK,
            ranks,
            since_s=felt.since_s,
            certainty=0.4,
            reason="all have joined; these dumps do not say whose messages are missing",
            felt_by=len(felt.waiters),
            evidence=tuple(waiters_words(graph, felt)),
            look_at=(f"the network between {ranks_text(ranks)}",),
        )
        for ranks, (felt, _) in together(caused(found, wait_graph.UNEXPLAINED)).items()
    ]
    causes = caused(found, wait_graph.NETWORK)
    if not causes:
        return unexplained
    pairs: Stuck = {(ranks[0], ranks[1]): own for ranks, own in together(causes).items()}
    sent_s = {pair: _sent_s(graph, pair, keys) for pair, (_, keys) in pairs.items()}
    stuck: Stuck = {
        pair: own for pair, own in pairs.items() if not _under_way(graph, pair, own, sent_s[pair])
    }
    if not stuck:
        return unexplained
    onset_s = min(sent_s[pair] for pair in stuck)
    lost_s = min(
        sent_s[pair] + usual_s(graph, pair) for pair in stuck
    )  # infinity: nobody is known to be healthy
    since_s = lost_s + 2 * clock_error_s
    healthy = sorted((came_since(graph, since_s) | heard_of(graph, since_s)) - set(stuck))
    crossed = crossed_by(paths)
    explanations, left = explain(list(stuck), healthy, crossed)
    began_s = onset_s if math.isfinite(onset_s) else min(felt.since_s for felt, _ in stuck.values())
    verdicts = [_by_part(graph, own, stuck, began_s, len(explanations)) for own in explanations]
    for pair in left:
        felt, keys = stuck[pair]
        verdicts.append(
            Verdict(
                STUCK_IN_NETWORK,
                pair,
                since_s=began_s,
                certainty=0.7,
                reason="no part of the network explains it" if crossed else "there is no file of paths",
                felt_by=len(felt.waiters),
                evidence=(_stuck_words(graph, pair, keys),),
                look_at=(f"the path from rank {pair[0]} to rank {pair[1]}, and the connection between them",),
                pairs=(pair,),
            )
        )
    return [*verdicts, *unexplained]


def _by_part(graph: Graph, own: Explanation, stuck: Stuck, since_s: float, parts: int) -> Verdict:
    """Of one part that explains stuck pairs, one of so many parts."""
    lines = [_stuck_words(graph, pair, stuck[pair][1]) for pair in own.covers[:4]]
    lines.append(f"of {len(stuck)} pairs with messages under way it explains {len(own.covers)}")
    lines += own.doubts
    if own.part.way:
        lines.append(f"only {own.part.way}: healthy pairs cross it the other way")
    waiters = {waiter for pair in own.covers for waiter in stuck[pair][0].waiters}
    return Verdict(
        STUCK_IN_NETWORK,
        component=own.part.name,
        since_s=since_s,
        certainty=own.certainty(0.95) if parts < 4 else 0.3,
        reason="the fewest parts that all bad pairs cross and no healthy one does",
        felt_by=len(waiters),
        evidence=tuple(lines),
        look_at=(f"counters, carrier and rules of {own.part}",),
        pairs=own.covers,
    )


def crossed_by(paths: NetworkPaths) -> Crossed:
    """The parts that each pair's connections cross."""
    crossed: dict[Pair, list[Sequence[str]]] = {}
    for own in paths.pairs:
        crossed.setdefault((own.source, own.target), []).append(own.components)
    return crossed


def _under_way(graph: Graph, pair: Pair, own: tuple[Felt, list[Key]], sent_s: float) -> bool:
    """Whether a message was sent so shortly before somebody gave up that it is no wonder that it had not come."""
    until_s = max(graph.seen_until_s(node) for node in own[0].direct)
    return math.isfinite(sent_s) and until_s - sent_s < UNDER_WAY_TIMES * usual_s(graph, pair)


def came_since(graph: Graph, since_s: float) -> set[Pair]:
    """Pairs of which a message came after a moment, by the receiver's clock."""
    found = set()
    for rank, dump in graph.dumps.items():
        for entry in dump.entries:
            for peer, own in entry.peers.items():
                if own.received and own.received_last_s is not None and own.received_last_s > since_s:
                    found.add((peer, rank))
    return found


def usual_s(graph: Graph, pair: Pair) -> float:
    """What the last messages of a pair's operations that are over took, in the median; 0 where none is known."""
    times = []
    for entry in graph.dumps[pair[0]].entries if pair[0] in graph.dumps else ():
        there = graph.node(pair[1], (entry.group, entry.sequence)) if entry.sequence else None
        if there is None or entry.state != COMPLETED:
            continue
        sent, received = entry.peers.get(pair[1]), graph.entry(there).peers.get(pair[0])
        if sent and received and sent.sent == received.received and sent.sent_last_s is not None:
            assert received.received_last_s is not None
            times.append(received.received_last_s - sent.sent_last_s)
    return max(0.0, median(times)) if times else 0.0


def _sent_s(graph: Graph, pair: Pair, keys: Sequence[Key]) -> float:
    """When the sender gave the first message that did not come to the network, by its clock; infinity if unknown.

    Of several in one operation only the first's and the last's times are known; they are taken to be even in between,
    and the one after it is taken, so that it is not too early.
    """
    times, messages = [], []
    for entry in graph.dumps[pair[0]].entries:
        own = entry.peers.get(pair[1])
        if (entry.group, entry.sequence) not in keys or own is None or own.sent_last_s is None:
            continue
        assert own.sent_first_s is not None
        there = graph.node(pair[1], (entry.group, entry.sequence)) if entry.sequence else None
        came = graph.entry(there).peers.get(pair[0]) if there else None
        if not entry.sequence:
            messages.append(own.sent_last_s)
            continue
        if own.sent < 2 or came is None:
            times.append(own.sent_last_s)
            continue
        place = min(1.0, (came.received + 1) / (own.sent - 1)) if came.received else 0.0
        times.append(own.sent_first_s + place * (own.sent_last_s - own.sent_first_s))
    # earlier messages of the pair came
    return min([*times, max(messages, default=math.inf)])


def _stuck_words(graph: Graph, pair: Pair, keys: Sequence[Key]) -> str:
    key = min(keys)
    if not key[1]:
        return f"a message of rank {pair[0]} to rank {pair[1]} was sent and has not come"
    sent, received = graph.node(pair[0], key), graph.node(pair[1], key)
    if sent is None or received is None:
        return f"rank {pair[0]} is done with {graph.words(key)}, rank {pair[1]} waits for its messages"
    gave, came = graph.entry(sent).peers.get(pair[1]), graph.entry(received).peers.get(pair[0])
    counts = gave.sent if gave else 0, came.received if came else 0
    return f"{graph.words(key)}: rank {pair[0]} has sent rank {pair[1]} {counts[0]} messages, {counts[1]} have come"

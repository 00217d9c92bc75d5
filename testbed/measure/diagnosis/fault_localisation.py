"""Localisation of network faults: the smallest set of parts that explains all bad pairs.

A part is exonerated if healthy pairs cross it. Among equal explanations the more specific one wins: a NIC before a
link, a link before a plane, a plane before a switch. A single direction of a part is blamed only if no set of whole
parts explains the bad pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median

from testbed.comm.flight_recorder import COMPLETED, NetworkPaths
from testbed.measure.diagnosis import wait_graph
from testbed.measure.diagnosis.operation_graph import Graph, Key, noticed_losses
from testbed.measure.diagnosis.thresholds import UNDER_WAY_TIMES
from testbed.measure.diagnosis.verdicts import STUCK_IN_NETWORK, Verdict, ranks_text
from testbed.measure.diagnosis.wait_graph import (
    Impact,
    Waiting,
    waiters_words,
)

Pair = tuple[int, int]
"""Sending and receiving rank."""

SPECIFICITY = ("nic", "host", "link", "plane", "switch")
MOST_TRIED = 200_000  # combinations of parts; beyond that, the search is greedy


@dataclass(frozen=True)
class Part:
    """A network part, or one direction of it: `direction` is "" for both, or text such as "from switch a-edge"."""

    name: str
    direction: str = ""

    @property
    def order(self) -> tuple[bool, int, str, str]:
        """The sort key that decides which part wins among equal explanations."""
        kind = self.name.split(" ", 1)[0]
        rank = SPECIFICITY.index(kind) if kind in SPECIFICITY else len(SPECIFICITY)
        return bool(self.direction), rank, self.name, self.direction

    def __str__(self) -> str:
        return f"{self.name}, {self.direction}" if self.direction else self.name


@dataclass(frozen=True)
class Explanation:
    """One part of an explanation, with the bad pairs that it covers and the healthy ones that cross it.

    `instead` has the parts that explain the same pairs equally well. `within` has those that every pair across this
    part also crosses.
    """

    part: Part
    covers: tuple[Pair, ...]
    healthy: tuple[Pair, ...]
    instead: tuple[Part, ...]
    within: tuple[Part, ...]

    @property
    def names_instead(self) -> list[str]:
        """The names of the other parts that explain the same pairs."""
        return list(dict.fromkeys(part.name for part in self.instead if part.name != self.part.name))

    @property
    def doubts(self) -> list[str]:
        """Lines of text that name the other possible causes."""
        lines = []
        if others := self.names_instead:
            lines.append(f"it could also be {', '.join(others[:5])}")
        if self.within:
            names = dict.fromkeys(part.name for part in self.within)
            lines.append(f"no pair distinguishes it from {', '.join(names)}")
        return lines

    def certainty(self, most: float) -> float:
        """Return the certainty: `most`, divided by the number of parts that explain the same pairs."""
        return round(max(most / (1 + len(self.names_instead)), 0.1), 2)


Crossed = Mapping[Pair, Sequence[Sequence[str]]]
"""The parts that each pair's messages cross, in order, for each of its connections."""


def explain(
    bad: Sequence[Pair], healthy: Sequence[Pair], crossed: Crossed, tolerated: float = 0.0
) -> tuple[tuple[Explanation, ...], tuple[Pair, ...]]:
    """Return the smallest set of parts that covers all bad pairs, and the pairs that cannot be covered.

    A pair with several connections may be bad because of any one of them, but is healthy only if all of them are.

    Args:
        bad: The bad pairs.
        healthy: The healthy pairs.
        crossed: The parts that pairs cross.
        tolerated: Largest share of healthy pairs across a part that still does not exonerate it.
    """
    found: list[Explanation] = []
    left = [pair for pair in dict.fromkeys(bad) if crossed.get(pair)]
    for directed in (False, True):
        parts = _candidates(left, healthy, crossed, tolerated, directed)
        chosen = _fewest(parts)
        covered = {pair for own in chosen for pair in parts[own][0]}
        for own in chosen:
            covers, through = parts[own]
            others = sorted(
                (o for o in parts if o != own and parts[o][0] == covers), key=lambda part: part.order
            )
            around = {part for part in others if _contains(crossed, part, own)}
            instead = tuple(part for part in others if part not in around)
            within = tuple(part for part in others if part in around)
            found.append(Explanation(own, tuple(sorted(covers)), tuple(sorted(through)), instead, within))
        left = [pair for pair in left if pair not in covered]
    unknown = [pair for pair in dict.fromkeys(bad) if not crossed.get(pair)]
    return tuple(found), tuple(sorted([*left, *unknown]))


def _contains(crossed: Crossed, large: Part, small: Part) -> bool:
    """Return whether all paths across the small part also cross the large one: a link's plane, a host's leaf."""
    return all(
        large.name in components
        for paths in crossed.values()
        for components in paths
        if small.name in components
    )


def parts_of(components: Sequence[str], directed: bool) -> set[Part]:
    """Return the parts on a path, or the directions of them; planes and switches have no directions."""
    if not directed:
        return set(map(Part, components))
    found = set()
    for place, name in enumerate(components):
        kind = name.split(" ", 1)[0]
        if kind in ("nic", "host"):
            found.add(Part(name, "receiving" if place else "sending"))
        elif kind == "link":
            before = next((one for one in components[place - 1 :: -1] if one.startswith("switch")), "")
            found.add(Part(name, f"from {before}" if place and before else "one way"))
    return found


def _candidates(
    bad: Sequence[Pair], healthy: Sequence[Pair], crossed: Crossed, tolerated: float, directed: bool
) -> dict[Part, tuple[set[Pair], set[Pair]]]:
    """Return the parts that are not exonerated, with the bad and the healthy pairs that cross each of them."""
    covers: dict[Part, set[Pair]] = {}
    crossing: dict[Part, set[Pair]] = {}
    for pairs, found in ((bad, covers), (healthy, crossing)):
        for pair in pairs:
            for components in crossed.get(pair, ()):
                for part in parts_of(components, directed):
                    found.setdefault(part, set()).add(pair)
    kept = {}
    for part, own in covers.items():
        through = crossing.get(part, set()) - own
        if len(through) <= tolerated * (len(through) + len(own)):
            kept[part] = (own, through)
    return kept


def _fewest(parts: Mapping[Part, tuple[set[Pair], set[Pair]]]) -> list[Part]:
    """Return the smallest set of parts that covers all pairs; prefer fewer healthy pairs, then specificity."""
    universe = {pair for covers, _ in parts.values() for pair in covers}
    ordered = sorted(parts, key=lambda part: (len(parts[part][1]), part.order))
    # one part represents all parts that cover the same pairs; parts that cover only a subset of another part's pairs
    # are not needed
    useful: list[Part] = []
    for part in ordered:
        own = parts[part][0]
        if not any(own == parts[other][0] for other in useful):
            useful.append(part)
    useful = [part for part in useful if not any(parts[part][0] < parts[other][0] for other in useful)]
    tried = 0
    for size in range(1, len(useful) + 1):
        for chosen in combinations(useful, size):
            tried += 1
            if tried > MOST_TRIED:
                return _greedily(useful, parts, universe)
            if set().union(*(parts[part][0] for part in chosen)) == universe:
                return list(chosen)
    return []


def _greedily(
    useful: Sequence[Part], parts: Mapping[Part, tuple[set[Pair], set[Pair]]], universe: set[Pair]
) -> list[Part]:
    left, chosen = set(universe), []
    while left:
        best = max(useful, key=lambda part: (len(parts[part][0] & left), -useful.index(part)))
        chosen.append(best)
        left -= parts[best][0]
    return chosen


StuckPairs = Mapping[Pair, tuple[Impact, list[Key]]]
"""Pairs with messages in flight: their impact, and the operations that wait."""


def network_verdicts(
    graph: Graph, found: Waiting, paths: NetworkPaths, clock_error_s: float
) -> Iterator[Verdict]:
    """Yield a verdict for each part of the network that explains stuck pairs, and for each unexplained pair."""
    pairs: StuckPairs = {
        (ranks[0], ranks[1]): own for ranks, own in found.by_ranks(wait_graph.NETWORK).items()
    }
    sent_s = {pair: _sent_s(graph, pair, keys) for pair, (_, keys) in pairs.items()}
    stuck = dict(pairs)
    for pair, (felt, _) in pairs.items():
        # sent so shortly before a rank gave up that it may still have been in flight
        until_s = max(graph.seen_until_s(node) for node in felt.direct)
        usual_s = UNDER_WAY_TIMES * usual_travel_s(graph, pair)
        if math.isfinite(sent_s[pair]) and until_s - sent_s[pair] < usual_s:
            del stuck[pair]
    if stuck:
        yield from _stuck_verdicts(graph, stuck, sent_s, crossed_parts(paths), clock_error_s)
    for ranks, (felt, _) in found.by_ranks(wait_graph.UNEXPLAINED).items():
        yield Verdict(
            STUCK_IN_NETWORK,
            ranks,
            since_s=felt.since_s,
            certainty=0.4,
            reason="all have joined; these dumps do not show which messages are missing",
            felt_by=len(felt.waiters),
            evidence=waiters_words(graph, felt),
            look_at=f"the network between {ranks_text(ranks)}",
        )


def _stuck_verdicts(
    graph: Graph, stuck: StuckPairs, sent_s: Mapping[Pair, float], crossed: Crossed, clock_error_s: float
) -> Iterator[Verdict]:
    onset_s = min(sent_s[pair] for pair in stuck)
    # infinite if unknown: then no pair is known to be healthy
    lost_s = min(sent_s[pair] + usual_travel_s(graph, pair) for pair in stuck)
    since_s = lost_s + 2 * clock_error_s
    healthy = sorted((pairs_received_since(graph, since_s) | noticed_losses(graph, since_s)) - set(stuck))
    explanations, left = explain(list(stuck), healthy, crossed)
    began_s = onset_s if math.isfinite(onset_s) else min(felt.since_s for felt, _ in stuck.values())
    for own in explanations:
        lines = [_stuck_words(graph, pair, stuck[pair][1]) for pair in own.covers[:4]]
        lines += [f"it explains {len(own.covers)} of {len(stuck)} pairs with messages in flight", *own.doubts]
        if own.part.direction:
            lines.append(f"only {own.part.direction}: healthy pairs cross it in the other direction")
        yield Verdict(
            STUCK_IN_NETWORK,
            component=own.part.name,
            since_s=began_s,
            certainty=own.certainty(0.95) if len(explanations) < 4 else 0.3,
            reason="the smallest set of parts that all bad pairs cross and no healthy one does",
            felt_by=len({waiter for pair in own.covers for waiter in stuck[pair][0].waiters}),
            evidence=lines,
            look_at=f"counters, carrier and rules of {own.part}",
            pairs=own.covers,
        )
    for pair in left:
        felt, keys = stuck[pair]
        yield replace(
            unexplained_pair(STUCK_IN_NETWORK, pair, crossed),
            since_s=began_s,
            certainty=0.7,
            felt_by=len(felt.waiters),
            evidence=[_stuck_words(graph, pair, keys)],
            pairs=(pair,),
        )


def unexplained_pair(kind: str, pair: Pair, crossed: Crossed) -> Verdict:
    """Return the verdict on a bad pair that no network part explains; the caller adds its observations."""
    return Verdict(
        kind,
        pair,
        reason="no part of the network explains it" if crossed else "the network paths are unknown",
        look_at=f"the path from rank {pair[0]} to rank {pair[1]}, and the connection between them",
    )


def crossed_parts(paths: NetworkPaths) -> Crossed:
    """Return the parts that each pair's connections cross."""
    crossed: dict[Pair, list[Sequence[str]]] = {}
    for own in paths.pairs:
        crossed.setdefault((own.source, own.target), []).append(own.components)
    return crossed


def pairs_received_since(graph: Graph, since_s: float) -> set[Pair]:
    """Return pairs with a message that arrived after `since_s`, on the receiver's clock."""
    found = set()
    for rank, dump in graph.dumps.items():
        for entry in dump.entries:
            for peer, own in entry.peers.items():
                if own.received and own.received_last_s is not None and own.received_last_s > since_s:
                    found.add((peer, rank))
    return found


def usual_travel_s(graph: Graph, pair: Pair) -> float:
    """Return the median travel time of the last messages of a pair's completed operations; 0 if unknown."""
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
    """Return when the first missing message was sent, on the sender's clock; infinity if unknown.

    If an operation has several messages, only the times of the first and the last are known. The others are
    interpolated, and the result is that of the following message, so that it is not too early.
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
    # earlier messages of the pair have arrived
    return min([*times, max(messages, default=math.inf)])


def _stuck_words(graph: Graph, pair: Pair, keys: Sequence[Key]) -> str:
    key = min(keys)
    if not key[1]:
        return f"a message from rank {pair[0]} to rank {pair[1]} was sent and has not arrived"
    sent, received = graph.node(pair[0], key), graph.node(pair[1], key)
    if sent is None or received is None:
        return f"rank {pair[0]} has completed {graph.words(key)}, rank {pair[1]} waits for its messages"
    gave, came = graph.entry(sent).peers.get(pair[1]), graph.entry(received).peers.get(pair[0])
    counts = gave.sent if gave else 0, came.received if came else 0
    return f"{graph.words(key)}: rank {pair[0]} has sent rank {pair[1]} {counts[0]} messages, {counts[1]} have arrived"

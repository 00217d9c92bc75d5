"""Verdicts on pairs of ranks whose messages take longer than before, or longer than those of comparable pairs.

In a ring, all pairs run at the rate of the slowest pair, so rates do not differ. Travel times do: a travel time runs
from when a message was passed to the network until it arrived. It is known for the last message of each operation.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from statistics import median

from testbed.comm.flight_recorder import COMPLETED, Entry, NetworkPaths, PairPath
from testbed.measure.diagnosis.fault_localisation import Pair, crossed_parts, explain, unexplained_pair
from testbed.measure.diagnosis.operation_graph import Graph
from testbed.measure.diagnosis.thresholds import (
    ABROAD_SHARE,
    AWAITED_SHARE,
    HEALTHY_PAIR_TIMES,
    LATE_TIMES,
    LEAST_LAST,
    LEAST_MESSAGE_BYTES,
    LEAST_OPERATIONS,
    MOST_ABROAD_SHARE,
    SLOW_PAIR_TIMES,
    UNSHARED_PAIR_TIMES,
)
from testbed.measure.diagnosis.verdicts import SLOW_NETWORK, Verdict, seconds_text

Kind = tuple[str, int, int]
"""The properties that comparable messages share: name and bytes of the operation, and mean bytes of a message."""


@dataclass(frozen=True)
class Seen:
    """One message: its arrival on the receiver's clock, and its travel time, in seconds.

    `alone` is true if no other operation of the sender was in progress whose messages could have been queued ahead of
    it.
    """

    when_s: float
    travel_s: float
    alone: bool = True


@dataclass(frozen=True)
class Slow:
    """A slow pair: its start (None if it was always slow), its travel time and the usual travel time, in seconds."""

    since_s: float | None
    travel_s: float
    usual_s: float
    against: str


@dataclass(frozen=True)
class Alike:
    """Messages of one kind between pairs with comparable paths.

    `usual_s` is the travel time that a third of the pairs stay below, so it stays valid even if half of the pairs are
    slow. `late` counts very late messages.
    """

    pairs: int
    usual_s: float
    late: int
    messages: int


class TransitTimes:
    """Travel times of all messages that both ends recorded, by pair and kind, in order."""

    def __init__(self, graph: Graph, paths: NetworkPaths, clock_error_s: float) -> None:
        self.apart_s = 2 * clock_error_s
        self._graph = graph
        self.seen: dict[tuple[Pair, Kind], list[Seen]] = defaultdict(list)
        self._paths: dict[Pair, list[PairPath]] = defaultdict(list)
        for own in paths.pairs:
            self._paths[own.source, own.target].append(own)
        self._rates = paths.rates_bps
        for key in sorted(graph.collectives):
            entries = {rank: graph.entry((rank, place)) for rank, place in graph.collectives[key].items()}
            for target, entry in entries.items():
                for source in entry.peers:
                    if source in entries and entry.state == COMPLETED:
                        self._add(source, target, entries[source], entry)
        self._add_messages(graph)
        for kept in self.seen.values():
            kept.sort(key=lambda own: own.when_s)

    def _add(self, source: int, target: int, sending: Entry, receiving: Entry) -> None:
        gave, came = sending.peers.get(target), receiving.peers[source]
        if gave is None or not came.received or gave.sent != came.received:
            return
        if gave.sent_last_s is None or came.received_last_s is None:
            return
        travel_s = came.received_last_s - gave.sent_last_s
        waited_s = came.received_last_s - (came.expected_first_s or came.received_last_s)
        if waited_s < AWAITED_SHARE * travel_s:  # it may have arrived long before the receiver waited for it
            return
        kind = (receiving.name, receiving.size_bytes, round(came.received_bytes / came.received))
        alone = self._alone(source, sending, gave.sent_last_s, gave.sent_last_s + travel_s)
        self.seen[(source, target), kind].append(Seen(came.received_last_s, travel_s, alone))

    def _alone(self, rank: int, own: Entry, begin_s: float, end_s: float) -> bool:
        """Return whether no other operation of a rank was in progress in a span of its clock."""
        return not any(
            entry.scheduled_s < end_s and (entry.ended_s is None or entry.ended_s > begin_s)
            for entry in self._graph.dumps[rank].entries
            if entry is not own
        )

    def _add_messages(self, graph: Graph) -> None:
        """Add point-to-point messages: each arrival matches the last message of its pair and tag sent before it."""
        sent: dict[tuple[int, int, int, int | None], list[Entry]] = defaultdict(list)
        for rank, dump in graph.dumps.items():
            for entry in dump.entries:
                if entry.name == "isend" and entry.peer is not None and entry.peer in entry.peers:
                    sent[rank, entry.peer, entry.group, entry.tag].append(entry)
        for rank, dump in graph.dumps.items():
            for entry in dump.entries:
                peer = entry.peer
                if entry.name != "irecv" or entry.state != COMPLETED or peer is None:
                    continue
                came_s = entry.peers[peer].received_last_s if peer in entry.peers else None
                candidates = [
                    one
                    for one in sent.get((peer, rank, entry.group, entry.tag), ())
                    if came_s is not None and (one.peers[rank].sent_last_s or came_s) < came_s + self.apart_s
                ]
                if candidates:
                    self._add(peer, rank, candidates[-1], entry)

    @cached_property
    def _crossing(self) -> Mapping[str, int]:
        """The number of connections that cross each part."""
        found: dict[str, int] = defaultdict(int)
        for own in self._paths.values():
            for path in own:
                for name in set(path.components):
                    found[name] += 1
        return found

    def likes(self, pair: Pair) -> tuple[object, ...] | None:
        """Return the key that comparable paths share (kinds of parts, rate, delay); None if the path is unknown."""
        if pair not in self._paths:
            return None
        path = self._paths[pair][0]
        kinds = tuple(name.split(" ", 1)[0] for name in path.components)
        return (*kinds, path.rate_bps, None if path.delay_s is None else round(path.delay_s, 6))

    def expected_s(self, pair: Pair, kind: Kind) -> float | None:
        """Return a message's travel time if all connections on its path share every part; None without known rates."""
        own = self._paths.get(pair, ())
        if not own or own[0].rate_bps is None:
            return None
        rate_bps = min(
            [own[0].rate_bps]
            + [self._rates[name] / self._crossing[name] for name in own[0].components if name in self._rates]
        )
        return (own[0].delay_s or 0.0) + 8 * kind[2] / rate_bps

    def judge(self, pair: Pair, kind: Kind) -> Slow | None:
        """Return how a pair is slow compared with its earlier messages, comparable pairs or link rates, if it is."""
        seen = self.seen[pair, kind]
        if changed := self._since(seen):
            return changed
        expected_s = self.expected_s(pair, kind)
        alike_s = self._alike_s(pair, kind)
        if alike_s is not None:
            least_s = SLOW_PAIR_TIMES * (alike_s + self.apart_s)
            if expected_s is not None:
                least_s = max(least_s, HEALTHY_PAIR_TIMES * expected_s)
            last = list(takewhile(lambda own: own.travel_s - self.apart_s > least_s, reversed(seen)))
            if len(last) >= LEAST_LAST:
                since_s = None if len(last) == len(seen) else last[-1].when_s
                now_s = median(own.travel_s for own in last)
                return Slow(since_s, now_s, alike_s, "those of pairs with comparable paths")
            if late := self._late(pair, kind):
                return late
        alone = [own.travel_s for own in seen if own.alone]
        if len(alone) < LEAST_OPERATIONS or kind[2] < LEAST_MESSAGE_BYTES:
            return None
        now_s = median(alone)
        if expected_s is not None and now_s - self.apart_s > UNSHARED_PAIR_TIMES * expected_s:
            return Slow(None, now_s, expected_s, "by its path's rate and delay")
        return None

    def _late(self, pair: Pair, kind: Kind) -> Slow | None:
        """Return whether messages are very late, as after timeouts, more often than those of comparable pairs."""
        alike, own = self._alike[kind, self.likes(pair)], self.seen[pair, kind]
        late = self._very_late(own, alike.usual_s)
        usual = (alike.late - len(late)) / max(1, alike.messages - len(own))
        if len(late) < LEAST_LAST or len(late) < SLOW_PAIR_TIMES * (usual * len(own) + 0.5):
            return None
        return Slow(late[0].when_s, median(one.travel_s for one in late), alike.usual_s, "sometimes; usually")

    def _since(self, seen: Sequence[Seen]) -> Slow | None:
        """Return the time since which a pair is slower than before, if it is."""
        best: Slow | None = None
        least_s = math.inf
        for split in range(LEAST_OPERATIONS, len(seen) - LEAST_OPERATIONS + 1):
            parts = [[own.travel_s for own in part] for part in (seen[:split], seen[split:])]
            before_s, after_s = map(median, parts)
            # the split into two levels with the smallest total deviation
            off_s = sum(
                abs(own - level)
                for part, level in zip(parts, (before_s, after_s), strict=True)
                for own in part
            )
            if off_s < least_s:
                least_s, best = off_s, Slow(seen[split].when_s, after_s, before_s, "its own before that")
        # both have the same clock error, so their difference is exact
        if best and best.travel_s - best.usual_s > (SLOW_PAIR_TIMES - 1) * (
            max(best.usual_s, 0.0) + self.apart_s
        ):
            return best
        return None

    @cached_property
    def _alike(self) -> Mapping[tuple[Kind, object], Alike]:
        """The messages, grouped by kind and by comparable paths."""
        together: dict[tuple[Kind, object], list[list[Seen]]] = defaultdict(list)
        for (pair, kind), seen in self.seen.items():
            if (like := self.likes(pair)) is not None:
                together[kind, like].append(seen)
        found = {}
        for key, each in together.items():
            usual_s = sorted(median(own.travel_s for own in seen) for seen in each)[len(each) // 3]
            late = sum(len(self._very_late(seen, usual_s)) for seen in each)
            found[key] = Alike(len(each), usual_s, late, sum(map(len, each)))
        return found

    def _very_late(self, seen: Sequence[Seen], usual_s: float) -> list[Seen]:
        least_s = LATE_TIMES * (usual_s + self.apart_s)
        return [own for own in seen if own.travel_s - self.apart_s > least_s]

    def _alike_s(self, pair: Pair, kind: Kind) -> float | None:
        alike = self._alike.get((kind, self.likes(pair)))
        return alike.usual_s if alike and alike.pairs > LEAST_OPERATIONS else None

    def healthy(self, pair: Pair, kind: Kind, since_s: float | None) -> bool:
        """Return whether a pair's messages of a kind have had normal travel times since `since_s`."""
        seen = self.seen[pair, kind]
        after = [own.travel_s for own in seen if since_s is None or own.when_s > since_s + self.apart_s]
        if len(after) < 2:
            return False
        before = [own.travel_s for own in seen if since_s is not None and own.when_s <= since_s]
        usual_s = median(before) if len(before) >= LEAST_OPERATIONS else self._alike_s(pair, kind)
        if usual_s is None:
            usual_s = self.expected_s(pair, kind)
        least_s = HEALTHY_PAIR_TIMES * (max(usual_s or 0.0, 0.0) + self.apart_s)
        # a pair with a very late message is not healthy, even if all its other messages are on time
        late_s = LATE_TIMES * (max(usual_s or 0.0, 0.0) + self.apart_s)
        return usual_s is not None and median(after) <= least_s and max(after) <= late_s


def slow_network(
    graph: Graph, paths: NetworkPaths, clock_error_s: float, stuck: Sequence[Pair] = ()
) -> list[Verdict]:
    """Return a verdict for each network part that explains slow pairs, and for each unexplained pair.

    `stuck` are pairs whose messages do not arrive at all; they are explained together with the slow pairs.
    """
    travels = TransitTimes(graph, paths, clock_error_s)
    slow: dict[Pair, tuple[Slow, Kind]] = {}
    for pair, kind in sorted(travels.seen):
        found = travels.judge(pair, kind)
        if found and (pair not in slow or _loss_s(found) > _loss_s(slow[pair][0])):
            slow[pair] = (found, kind)
    if not slow:
        return []
    since_s = _first([own for own, _ in slow.values()])
    size_bytes = median(kind[2] for _, kind in slow.values())
    healthy = sorted(
        {
            pair
            for pair, kind in travels.seen
            if pair not in slow
            and pair not in stuck
            and 2 * kind[2] >= size_bytes
            and travels.healthy(pair, kind, since_s)
        }
    )
    crossed = crossed_parts(paths)
    bad = sorted({*slow, *stuck})
    explanations, left = explain(bad, healthy, crossed, ABROAD_SHARE)
    if (left or len(explanations) > 1) and len(bad) >= LEAST_OPERATIONS:
        # a lossy part may deliver most messages on time: prefer one part that explains all pairs over several that
        # explain some
        one, none = explain(bad, healthy, crossed, MOST_ABROAD_SHARE)
        if len(one) == 1 and not none:
            explanations, left = one, none
    verdicts = []
    for own in explanations:
        lines = [_words(pair, *slow[pair]) for pair in own.covers[:4] if pair in slow]
        lines.append(
            f"it explains {len(own.covers)} of {len(slow)} slow pairs; {len(healthy)} other pairs are healthy"
        )
        lines += own.doubts + ([f"only {own.part.direction}"] if own.part.direction else [])
        verdicts.append(
            Verdict(
                SLOW_NETWORK,
                component=own.part.name,
                since_s=_first([slow[pair][0] for pair in own.covers if pair in slow]),
                certainty=own.certainty(0.9),
                reason="the smallest set of parts that all slow pairs cross and hardly any healthy one does",
                felt_by=len({rank for pair in own.covers for rank in pair}),
                evidence=lines,
                look_at=f"rate, errors, losses and queues of {own.part}",
                pairs=own.covers,
            )
        )
    for pair in (pair for pair in left if pair in slow):
        verdict = unexplained_pair(SLOW_NETWORK, pair, crossed)
        since_s, words = slow[pair][0].since_s, _words(pair, *slow[pair])
        verdicts.append(replace(verdict, since_s=since_s, certainty=0.6, felt_by=2, evidence=[words]))
    return verdicts


def _loss_s(own: Slow) -> float:
    return own.travel_s - own.usual_s


def _first(slow: Iterable[Slow]) -> float | None:
    return min((own.since_s for own in slow if own.since_s is not None), default=None)


def _words(pair: Pair, own: Slow, kind: Kind) -> str:
    return (
        f"rank {pair[0]} to rank {pair[1]}: messages of {kind[2]} bytes take {seconds_text(own.travel_s)},"
        f" {own.against} {seconds_text(own.usual_s)}"
    )

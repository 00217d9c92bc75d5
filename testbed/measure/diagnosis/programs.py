"""Which ranks run the same program, and which of them left it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from testbed.comm.flight_recorder import Entry
from testbed.measure.diagnosis.operation_graph import ABSENT, Graph, Node

Call = tuple[tuple[str, int], str, int, bool]
"""What is the same in the same program of several ranks: the group's family, name, size, whether it is a message."""


Difference = tuple[Call, Call, bool]


@dataclass(frozen=True)
class Strayed:
    """Where a rank did something else than those that run the same program. did, instead: what, and what they did.

    left_out: it went on with what they did next.
    """

    did: str
    instead: str
    left_out: bool


def peers_of(graph: Graph) -> dict[int, set[int]]:
    """Ranks that run the same program: of one group, of which no two are stages of one pipeline.

    Stages are those that send each other point-to-point messages, at any remove; they compute different things.
    """
    stage: dict[int, int] = {rank: rank for rank in graph.dumps}

    def root(rank: int) -> int:
        while stage.setdefault(rank, rank) != rank:
            rank = stage[rank]
        return rank

    for rank, dump in graph.dumps.items():
        for entry in dump.entries:
            if not entry.sequence and entry.peer is not None:
                stage[root(rank)] = root(entry.peer)
    found: dict[int, set[int]] = {rank: set() for rank in graph.dumps}
    used = {entry.group for dump in graph.dumps.values() for entry in dump.entries if entry.sequence}
    for group in sorted(used):
        members = graph.members(group)
        if len({root(rank) for rank in members}) < len(members):
            continue
        for rank in members:
            if rank in found:
                found[rank] |= {other for other in members if other != rank and other in graph.dumps}
    return found


def harmless(graph: Graph) -> set[Node]:
    """Open operations that do not keep their ranks from going on: receives that were posted ahead, for one.

    Of a rank that is missing in an operation: those that a rank of the same program has open as well, which all the
    same has come to that operation.
    """
    found = set()
    for rank, peers in peers_of(graph).items():
        opened = {_alike_call(graph.entry(node)): node for node in graph.open_nodes(rank)}
        for peer in sorted(peers) if opened else ():
            ahead = [
                place
                for place, entry in enumerate(graph.dumps[peer].entries)
                if entry.sequence
                and rank in graph.members(entry.group)
                and graph.standing(rank, (entry.group, entry.sequence)) == ABSENT
            ]
            for _, place in graph.open_nodes(peer):
                own = opened.get(_alike_call(graph.entry((peer, place))))
                if own is not None and ahead and place < ahead[-1]:
                    found.add(own)
    return found


def _alike_call(entry: Entry) -> tuple[str, int, int | None, int]:
    return entry.name, entry.size_bytes, entry.tag, entry.sequence


def strayed(graph: Graph, rank: int, peers: Collection[int]) -> Strayed | None:
    """The first place where a rank's calls differ from those of most of its peers, which agree with each other."""
    votes: Counter[Difference] = Counter()
    same = 0
    for peer in sorted(peers):
        found = _first_difference(graph, rank, peer)
        if found is None:
            same += 1
        else:
            votes[found] += 1
    if not votes:
        return None
    (mine, theirs, left_out), count = votes.most_common(1)[0]
    if count <= same or count < sum(votes.values()) / 2:
        return None
    return Strayed(_words(mine), _words(theirs), left_out)


def _calls(graph: Graph, rank: int, since: int) -> list[Call]:
    return [
        (graph.family(entry.group), entry.name, entry.size_bytes, not entry.sequence)
        for entry in graph.dumps[rank].entries[since:]
    ]


def _first_difference(graph: Graph, rank: int, peer: int) -> Difference | None:
    """From the first operation that both keep: what the one called where the other called something else.

    And whether it goes on as the other did after that, rather than with what the other called, only later.
    """
    starts = [
        (place, graph.collectives[entry.group, entry.sequence][peer])
        for place, entry in enumerate(graph.dumps[rank].entries)
        if entry.sequence and peer in graph.collectives[entry.group, entry.sequence]
    ]
    if not starts:
        return None
    mine, theirs = (_calls(graph, who, since) for who, since in zip((rank, peer), min(starts), strict=True))
    for place, (one, other) in enumerate(zip(mine, theirs, strict=False)):
        if one != other:
            without = _alike(mine[place:], theirs[place + 1 :])
            swapped = _alike(mine[place : place + 2], theirs[place : place + 2][::-1])
            if swapped == 2:
                swapped += _alike(mine[place + 2 :], theirs[place + 2 :])
            return one, other, without > 0 and without >= swapped
    return None


def _alike(mine: list[Call], theirs: list[Call]) -> int:
    """How many calls are the same from the beginning."""
    pairs = enumerate(zip(mine, theirs, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(mine), len(theirs)))


def _words(call: Call) -> str:
    (family, _), name, size_bytes, message = call
    return f"{name} of {size_bytes} bytes" + ("" if message else f" of {family}")

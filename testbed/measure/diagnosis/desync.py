"""Detection of ranks whose programs diverge: different calls, or one operation with different sizes or types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import takewhile
from operator import eq

from testbed.comm.flight_recorder import Entry
from testbed.measure.diagnosis.operation_graph import ABSENT, Graph, Key, Node, Signature, signature
from testbed.measure.diagnosis.verdicts import MISMATCH, RANK_NOT_JOINED, Verdict, ranks_text

PARTS = ("name", "type", "operation", "size")


def find_mismatches(graph: Graph, clock_error_s: float) -> list[Verdict]:
    """Find each group's first mismatch (later ones follow from it), and messages whose ends disagree on their size."""
    found: dict[tuple[int, tuple[int, ...]], Verdict] = {}
    for key in sorted(graph.collectives):
        meant = signatures(graph, key)
        if len(set(meant.values())) < 2:
            continue
        culprits, certainty, reason = _odd_ones(graph, key, meant)
        if not any(group == key[0] for group, _ in found):
            found[key[0], culprits] = _verdict(graph, key, meant, culprits, certainty, reason)
    return [*found.values(), *_of_messages(graph, clock_error_s)]


def signatures(graph: Graph, key: Key) -> dict[int, Signature]:
    """Return each joined rank's signature of an operation (see `signature`)."""
    own = graph.collectives.get(key, {})
    return {rank: signature(graph.entry((rank, place))) for rank, place in sorted(own.items())}


def _odd_ones(graph: Graph, key: Key, meant: dict[int, Signature]) -> tuple[tuple[int, ...], float, str]:
    """Return the ranks at fault, the certainty and the reason, by up to three majority votes.

    The first is among the group's ranks, the second among groups with the same program. The third compares with what
    the group did before.
    """
    for votes, certainty, reason in (
        (Counter(meant.values()), 1.0, "the others of the group agree with each other"),
        (_meanings_of_family(graph, key), 0.95, "groups that run the same program agree with the others"),
        (_before(graph, key), 0.8, "what the group did before matches the others"),
    ):
        right = _majority(votes)
        odd = tuple(rank for rank, own in meant.items() if own != right)
        if right is not None and 0 < len(odd) < len(meant):
            return odd, certainty, reason
    return tuple(meant), 0.5, "nothing shows which of them is right"


def _majority(votes: Counter[Signature]) -> Signature | None:
    common = votes.most_common(2)
    if not common or (len(common) > 1 and common[0][1] == common[1][1]):
        return None
    return common[0][0]


def _meanings_of_family(graph: Graph, key: Key) -> Counter[Signature]:
    """Count the signatures of the operation with this number in the other groups that run the same program."""
    votes: Counter[Signature] = Counter()
    family = graph.family(key[0])
    for group in graph.groups:
        if group != key[0] and graph.family(group) == family:
            votes.update(signatures(graph, (group, key[1])).values())
    return votes


def _before(graph: Graph, key: Key) -> Counter[Signature]:
    """Count which operations followed the longest matching context earlier in a group's history."""
    numbers = sorted(number for group, number in graph.collectives if group == key[0] and number < key[1])
    history = [_majority(Counter(signatures(graph, (key[0], number)).values())) for number in numbers]
    for length in range(min(4, len(history) - 1), 0, -1):
        context = history[-length:]
        votes: Counter[Signature] = Counter()
        for start in range(len(history) - length):
            follower = history[start + length]
            if history[start : start + length] == context and follower is not None:
                votes[follower] += 1
        if votes:
            return votes
    return Counter()


def _verdict(
    graph: Graph,
    key: Key,
    meant: dict[int, Signature],
    culprits: tuple[int, ...],
    certainty: float,
    reason: str,
) -> Verdict:
    others = [own for rank, own in meant.items() if rank not in culprits] or list(meant.values())
    usual = Counter(others).most_common(1)[0][0]
    differing = sorted(
        {
            part
            for own in meant.values()
            for part, one, other in zip(PARTS, own, usual, strict=True)
            if one != other
        }
    )
    evidence = [
        f"{graph.words(key)}: {ranks_text(ranks)}: "
        + ", ".join(filter(None, [*own[:3], f"{own[3]} bytes" if own[3] >= 0 else ""]))
        for own, ranks in _grouped(meant)
    ]
    stray = find_divergence(graph, culprits[0], peers_of(graph)[culprits[0]]) if len(culprits) == 1 else None
    # a rank that skipped an operation is in a later one, which the others also run
    others_meant = {
        signature(entry)
        for dump in graph.dumps.values()
        for entry in dump.entries
        if dump.rank != culprits[0] and entry.sequence
    }
    left_out = bool(stray and stray.left_out) and meant[culprits[0]] in others_meant
    if stray and left_out:
        evidence.append(
            f"first it called {stray.did} where ranks with the same program called {stray.instead}"
        )
    return Verdict(
        RANK_NOT_JOINED if left_out else MISMATCH,
        culprits,
        since_s=min(graph.entry((rank, graph.collectives[key][rank])).scheduled_s for rank in culprits),
        certainty=certainty,
        reason=reason,
        felt_by=len(meant) - len(culprits),
        evidence=evidence,
        look_at=(
            f"the {' and '.join(differing)} that {ranks_text(culprits)} passed to {graph.words(key)},"
            " and the branch of the program that leads there"
        ),
    )


def _grouped(meant: dict[int, Signature]) -> Iterator[tuple[Signature, tuple[int, ...]]]:
    for own in dict.fromkeys(meant.values()):
        yield own, tuple(rank for rank, other in meant.items() if other == own)


def _of_messages(graph: Graph, clock_error_s: float) -> Iterator[Verdict]:
    """Yield a verdict for each open message whose two ends disagree on its size."""
    for rank in graph.dumps:
        for node in graph.open_nodes(rank):
            entry: Entry = graph.entry(node)
            if entry.sequence or entry.peer not in graph.dumps or entry.name != "irecv":
                continue
            there = graph.counterpart(node, clock_error_s)
            if there is None or (theirs := graph.entry(there)).size_bytes == entry.size_bytes:
                continue
            yield Verdict(
                MISMATCH,
                tuple(sorted((rank, there[0]))),
                since_s=entry.scheduled_s,
                certainty=0.5,
                reason="nothing shows which end is right",
                felt_by=1,
                evidence=(
                    f"rank {rank}: {graph.node_words(node)}: {entry.size_bytes} bytes",
                    f"rank {there[0]}: {graph.node_words(there)}: {theirs.size_bytes} bytes",
                ),
                look_at="the size of this message at both ends",
            )


Call = tuple[tuple[str, int], str, int, bool]
"""The identity of a call in the same program of several ranks: family of the group, name, size, whether a message."""


Difference = tuple[Call, Call, bool]


@dataclass(frozen=True)
class Divergence:
    """The point at which a rank deviates from ranks with the same program.

    `did` is its call, and `instead` is the call of the others. `left_out` is true if it skipped their call and made
    their next one.
    """

    did: str
    instead: str
    left_out: bool


def peers_of(graph: Graph) -> dict[int, set[int]]:
    """Return, for each rank, the ranks that run the same program: members of a group that are not pipeline stages.

    Ranks that exchange point-to-point messages, directly or indirectly, are stages of a pipeline and run different
    programs.
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


def nonblocking_operations(graph: Graph) -> set[Node]:
    """Return open operations that do not block their ranks, such as receives posted ahead.

    A rank may be missing in an operation that a peer with the same program has joined. Operations that both have open,
    and that the peer started before that one, do not block.
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


def find_divergence(graph: Graph, rank: int, peers: Collection[int]) -> Divergence | None:
    """Return the first place where a rank's calls differ from those of most peers, provided that these peers agree."""
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
    return Divergence(_call_text(mine), _call_text(theirs), left_out)


def _calls(graph: Graph, rank: int, since: int) -> list[Call]:
    return [
        (graph.family(entry.group), entry.name, entry.size_bytes, not entry.sequence)
        for entry in graph.dumps[rank].entries[since:]
    ]


def _first_difference(graph: Graph, rank: int, peer: int) -> Difference | None:
    """Return the first difference between two ranks' calls, from the first operation that both dumps have.

    The last element is true if the rank skipped the other's call, and false if it makes the call later.
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
            without = _common_prefix(mine[place:], theirs[place + 1 :])
            swapped = _common_prefix(mine[place : place + 2], theirs[place : place + 2][::-1])
            if swapped == 2:
                swapped += _common_prefix(mine[place + 2 :], theirs[place + 2 :])
            return one, other, without > 0 and without >= swapped
    return None


def _common_prefix(mine: list[Call], theirs: list[Call]) -> int:
    """Return the length of the longest common prefix."""
    return sum(takewhile(bool, map(eq, mine, theirs)))


def _call_text(call: Call) -> str:
    (family, _), name, size_bytes, message = call
    return f"{name} of {size_bytes} bytes" + ("" if message else f" of {family}")

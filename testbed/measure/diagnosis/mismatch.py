"""Operations by which ranks mean different things: other names, sizes, types, at the same number of the same group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from testbed.comm.flight_recorder import Entry
from testbed.measure.diagnosis.operation_graph import Graph, Key, Meaning, meaning
from testbed.measure.diagnosis.programs import peers_of, strayed
from testbed.measure.diagnosis.verdicts import MISMATCH, RANK_NOT_JOINED, Verdict, ranks_text

PARTS = ("name", "type", "operation", "size")


def mismatches(graph: Graph, clock_error_s: float) -> list[Verdict]:
    """Of each group the first, for what follows it follows from it; and of messages whose ends differ in size."""
    found: dict[tuple[int, tuple[int, ...]], Verdict] = {}
    for key in sorted(graph.collectives):
        meant = meanings(graph, key)
        if len(set(meant.values())) < 2:
            continue
        culprits, certainty, reason = _odd_ones(graph, key, meant)
        if not any(group == key[0] for group, _ in found):
            found[key[0], culprits] = _verdict(graph, key, meant, culprits, certainty, reason)
    return [*found.values(), *_of_messages(graph, clock_error_s)]


def meanings(graph: Graph, key: Key) -> dict[int, Meaning]:
    """What each rank that has joined means by an operation."""
    own = graph.collectives.get(key, {})
    return {rank: meaning(graph.entry((rank, place))) for rank, place in sorted(own.items())}


def _odd_ones(graph: Graph, key: Key, meant: dict[int, Meaning]) -> tuple[tuple[int, ...], float, str]:
    """Who is wrong, how sure, and why: by most of the group, by groups like it, or by what the group did before."""
    for votes, certainty, reason in (
        (Counter(meant.values()), 1.0, "the others of the group agree with each other"),
        (_alike(graph, key), 0.95, "groups that run the same program agree with the others"),
        (_before(graph, key), 0.8, "what the group did before goes on like the others'"),
    ):
        right = _majority(votes)
        odd = tuple(rank for rank, own in meant.items() if own != right)
        if right is not None and 0 < len(odd) < len(meant):
            return odd, certainty, reason
    return tuple(meant), 0.5, "nothing says which of them is right"


def _majority(votes: Counter[Meaning]) -> Meaning | None:
    common = votes.most_common(2)
    if not common or (len(common) > 1 and common[0][1] == common[1][1]):
        return None
    return common[0][0]


def _alike(graph: Graph, key: Key) -> Counter[Meaning]:
    """What ranks of other groups of the same family mean by their operation of this number."""
    votes: Counter[Meaning] = Counter()
    family = graph.family(key[0])
    for group in graph.groups:
        if group != key[0] and graph.family(group) == family:
            votes.update(meanings(graph, (group, key[1])).values())
    return votes


def _before(graph: Graph, key: Key) -> Counter[Meaning]:
    """What came in a group's history after the same operations, by the longest stretch of them that came before."""
    numbers = sorted(number for group, number in graph.collectives if group == key[0] and number < key[1])
    history = [_majority(Counter(meanings(graph, (key[0], number)).values())) for number in numbers]
    for length in range(min(4, len(history) - 1), 0, -1):
        context = history[-length:]
        votes: Counter[Meaning] = Counter()
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
    meant: dict[int, Meaning],
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
    evidence = [f"{graph.words(key)}: {ranks_text(ranks)}: {_words(own)}" for own, ranks in _grouped(meant)]
    stray = strayed(graph, culprits[0], peers_of(graph)[culprits[0]]) if len(culprits) == 1 else None
    # what follows an operation that was left out is another one than the others', and one that they have, too
    left_out = bool(stray and stray.left_out) and meant[culprits[0]] in _others(graph, culprits[0])
    if stray and left_out:
        evidence.append(
            f"first it called {stray.did} where those that run the same program call {stray.instead}"
        )
    return Verdict(
        RANK_NOT_JOINED if left_out else MISMATCH,
        culprits,
        since_s=min(graph.entry((rank, graph.collectives[key][rank])).scheduled_s for rank in culprits),
        certainty=certainty,
        reason=reason,
        felt_by=len(meant) - len(culprits),
        evidence=tuple(evidence),
        look_at=(
            f"the {' and '.join(differing)} with which {ranks_text(culprits)} came to {graph.words(key)},"
            " and the branch of the program that leads there",
        ),
    )


def _others(graph: Graph, rank: int) -> set[Meaning]:
    """What all operations of other ranks are."""
    entries = [entry for dump in graph.dumps.values() if dump.rank != rank for entry in dump.entries]
    return {meaning(entry) for entry in entries if entry.sequence}


def _grouped(meant: dict[int, Meaning]) -> Iterator[tuple[Meaning, tuple[int, ...]]]:
    for own in dict.fromkeys(meant.values()):
        yield own, tuple(rank for rank, other in meant.items() if other == own)


def _words(own: Meaning) -> str:
    name, dtype, operation, size_bytes = own
    size = f"{size_bytes} bytes" if size_bytes >= 0 else ""
    return ", ".join(part for part in (name, dtype, operation, size) if part)


def _of_messages(graph: Graph, clock_error_s: float) -> Iterator[Verdict]:
    """Messages that are open, whose two ends are of different sizes."""
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
                reason="nothing says which end is right",
                felt_by=1,
                evidence=(
                    f"rank {rank}: {graph.node_words(node)}: {entry.size_bytes} bytes",
                    f"rank {there[0]}: {graph.node_words(there)}: {theirs.size_bytes} bytes",
                ),
                look_at=("the sizes that both ends give to this message",),
            )

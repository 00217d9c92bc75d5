"""Checks, before anything is built, that the ranks of a trace are consistent; errors name the places on both sides.

Members of a group must run the same collectives in the same order, each send needs a receive, and ranks must not
deadlock.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from testbed.workload.traces.trace import (
    ROOTED,
    Collective,
    JobTrace,
    Node,
    PointToPoint,
    TraceError,
    all_dependencies,
    before_cycles,
    previous_of_stream,
)

MAX_SHOWN_RANKS = 4  # ranks shown of a deadlock


def check_matching(trace: JobTrace, *, senders_wait: bool = False) -> None:
    """Check that the ranks of a trace are consistent; raise TraceError, which names the places on both sides.

    With `senders_wait`, a send completes only after its receive has been posted, as with NCCL; otherwise it completes
    at once.
    """
    if (problem := first_mismatch(trace, senders_wait=senders_wait)) is not None:
        raise TraceError(problem)


def first_mismatch(trace: JobTrace, *, senders_wait: bool = False) -> str | None:
    """Describe the first inconsistency; return None if there is none."""
    found = next(_collectives(trace), None) or next(_messages(trace), None)
    return found or _deadlock(trace, senders_wait)


def describe_place(rank: int, node: Node) -> str:
    """Describe a node's rank and, as far as known, its place in the program."""
    module = f" in {node.module}" if node.module else ""
    return f"rank {rank} at {node.site or node.name}{module}"


def _collectives(trace: JobTrace) -> Iterator[str]:
    """Yield the groups whose members run different collectives, with the lowest ranks first."""
    done: dict[str, dict[int, list[Collective]]] = defaultdict(dict)
    for rank, own in enumerate(trace.ranks):
        for node in own:
            if isinstance(node, Collective):
                done[node.group].setdefault(rank, []).append(node)
    for group in sorted(done, key=lambda name: (min(trace.groups[name]), name)):
        first, *others = trace.groups[group]
        theirs = done[group].get(first, [])
        for rank in others:
            if (problem := _difference(group, first, theirs, rank, done[group].get(rank, []))) is not None:
                yield problem
                break


def _difference(
    group: str, first: int, theirs: Sequence[Collective], rank: int, own: Sequence[Collective]
) -> str | None:
    for number, (there, here) in enumerate(zip(theirs, own, strict=False)):
        if _key(there) != _key(here):
            return (
                f"collective {number} of group {group} is {_describe(there)} on {describe_place(first, there)}, "
                f"but {_describe(here)} on {describe_place(rank, here)}"
            )
    if len(theirs) == len(own):
        return None
    more, node, fewer = (
        (first, theirs[len(own)], rank) if len(theirs) > len(own) else (rank, own[len(theirs)], first)
    )
    rest = own if fewer == rank else theirs
    last = f"; its last is at {rest[-1].site or rest[-1].name}" if rest else ""
    return (
        f"collective {len(rest)} of group {group}, {_describe(node)}, is done on {describe_place(more, node)}, "
        f"but rank {fewer} does {len(rest)} in that group{last}"
    )


def _key(node: Collective) -> tuple[object, ...]:
    size = () if node.collective in ("all_to_all_v", "barrier") else (node.numel,)
    return (node.collective, node.dtype, node.root, *size)


def _describe(node: Collective) -> str:
    root = f" of rank {node.root}" if node.collective in ROOTED else ""
    return f"{node.collective}{root} ({node.numel} {node.dtype})"


def _ends(trace: JobTrace) -> dict[tuple[int, int, int], tuple[list[tuple[int, PointToPoint]], ...]]:
    """Return sends and receives by (sender, receiver, tag), each with its index in its rank."""
    found: dict[tuple[int, int, int], tuple[list[tuple[int, PointToPoint]], ...]] = {}
    for rank, own in enumerate(trace.ranks):
        for number, node in enumerate(own):
            if isinstance(node, PointToPoint):
                pair = (rank, node.peer) if node.sends else (node.peer, rank)
                found.setdefault((*pair, node.tag), ([], []))[not node.sends].append((number, node))
    return found


def _messages(trace: JobTrace) -> Iterator[str]:
    for (source, target, tag), (sends, receives) in sorted(_ends(trace).items()):
        tagged = f" with tag {tag}" if tag else ""
        for number, ((_, sent), (_, got)) in enumerate(zip(sends, receives, strict=False)):
            if (sent.numel, sent.dtype) != (got.numel, got.dtype):
                yield (
                    f"message {number}{tagged} from {describe_place(source, sent)} has {sent.numel} {sent.dtype}, "
                    f"but {describe_place(target, got)} receives {got.numel} {got.dtype}"
                )
        if len(sends) > len(receives):
            lone = sends[len(receives)][1]
            yield (
                f"{describe_place(source, lone)} sends {lone.numel} {lone.dtype} to rank {target}{tagged}, "
                f"which receives {len(receives)} of its {len(sends)} messages"
            )
        if len(receives) > len(sends):
            lone = receives[len(sends)][1]
            yield (
                f"{describe_place(target, lone)} receives {lone.numel} {lone.dtype} from rank {source}{tagged}, "
                f"which sends {len(sends)} of its {len(receives)} messages"
            )


NodeIndex = tuple[int, int]
"""A node: its rank, and its number in that one's trace."""


class _Meeting(NamedTuple):
    """A set of nodes that complete once all of `ends` have been reached."""

    ends: Sequence[NodeIndex]
    completes: Sequence[NodeIndex]


def _meetings(trace: JobTrace, senders_wait: bool) -> Iterator[_Meeting]:
    members: dict[tuple[str, int], list[NodeIndex]] = defaultdict(list)
    for rank, own in enumerate(trace.ranks):
        count: Counter[str] = Counter()
        for number, node in enumerate(own):
            if isinstance(node, Collective):
                members[node.group, count[node.group]].append((rank, number))
                count[node.group] += 1
            elif not isinstance(node, PointToPoint):
                yield _Meeting([(rank, number)], [(rank, number)])
    for ends in members.values():
        yield _Meeting(ends, ends)
    for (source, target, _), (sends, receives) in _ends(trace).items():
        for (sent, _), (got, _) in zip(sends, receives, strict=True):
            both = ((source, sent), (target, got))
            yield _Meeting(both if senders_wait else both[:1], both[:1])
            yield _Meeting(both, both[1:])


def _deadlock(trace: JobTrace, senders_wait: bool) -> str | None:
    """Describe which ranks wait for each other forever."""
    # a node is reached, the meeting that completes it takes place, and it is done
    before: dict[Hashable, Iterable[Hashable]] = {}
    meetings: dict[NodeIndex, _Meeting] = {}
    for place, meeting in enumerate(_meetings(trace, senders_wait)):
        before[place] = meeting.ends
        for end in meeting.completes:
            meetings[end], before[end, "done"] = meeting, [place]
    for rank, own in enumerate(trace.ranks):
        for number, previous in enumerate(previous_of_stream(own)):
            dependencies = all_dependencies(own[number].after, previous)
            before[rank, number] = [((rank, earlier), "done") for earlier in dependencies]
    happened = set(before_cycles(before))
    stuck = sorted(end for end in meetings if end in happened and (end, "done") not in happened)
    if len(happened) == len(before):
        return None
    words = []
    for rank, number in stuck[:MAX_SHOWN_RANKS]:
        node = trace.ranks[rank][number]
        others = sorted({one[0] for one in meetings[rank, number].ends if one not in happened})
        whom = f"rank{'s' * (len(others) > 1)} {', '.join(map(str, others[:MAX_SHOWN_RANKS]))}"
        if isinstance(node, Collective):
            what = f"{node.collective} of group {node.group}"
        else:
            assert isinstance(node, PointToPoint)
            what = f"a {'send to' if node.sends else 'receive from'} rank {node.peer}"
        words.append(f"{describe_place(rank, node)} waits in {what} for {whom}")
    more = f"; and {len(stuck) - MAX_SHOWN_RANKS} more" if len(stuck) > MAX_SHOWN_RANKS else ""
    return f"ranks wait for each other forever: {'; '.join(words)}{more}"

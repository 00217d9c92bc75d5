"""Whether what the ranks of a trace do fits together: found before anything is built, named with both sides' places.

Members of a group must do the same collectives in the same order, what is sent must be received, and nobody may wait
for somebody who waits for him.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from testbed.workload.traces.trace import ROOTED, Collective, JobTrace, Node, PointToPoint, TraceError

SHOWN = 4  # ranks of a deadlock that are named


def check_matching(trace: JobTrace, *, senders_wait: bool = False) -> None:
    """TraceError, with both sides' places, where ranks do not fit together.

    senders_wait: a send is over only when its receive has been posted, as with NCCL; otherwise it is at once.
    """
    if (problem := first_mismatch(trace, senders_wait=senders_wait)) is not None:
        raise TraceError(problem)


def first_mismatch(trace: JobTrace, *, senders_wait: bool = False) -> str | None:
    """What does not fit, in words; None where everything does."""
    found = next(_collectives(trace), None) or next(_messages(trace), None)
    return found or _deadlock(trace, senders_wait)


def place(rank: int, node: Node) -> str:
    """For people: the rank, and where in its program the node comes from, as far as known."""
    module = f" in {node.module}" if node.module else ""
    return f"rank {rank} at {node.site or node.name}{module}"


def _collectives(trace: JobTrace) -> Iterator[str]:
    """Groups whose members do different things, first those of the lowest ranks."""
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
                f"collective {number} of group {group} is {_words(there)} on {place(first, there)}, "
                f"but {_words(here)} on {place(rank, here)}"
            )
    if len(theirs) == len(own):
        return None
    more, node, fewer = (
        (first, theirs[len(own)], rank) if len(theirs) > len(own) else (rank, own[len(theirs)], first)
    )
    rest = own if fewer == rank else theirs
    last = f"; its last is at {rest[-1].site or rest[-1].name}" if rest else ""
    return (
        f"collective {len(rest)} of group {group}, {_words(node)}, is done on {place(more, node)}, "
        f"but rank {fewer} does {len(rest)} in that group{last}"
    )


def _key(node: Collective) -> tuple[object, ...]:
    size = () if node.collective in ("all_to_all_v", "barrier") else (node.numel,)
    return (node.collective, node.dtype, node.root, *size)


def _words(node: Collective) -> str:
    root = f" of rank {node.root}" if node.collective in ROOTED else ""
    return f"{node.collective}{root} ({node.numel} {node.dtype})"


def _ends(trace: JobTrace) -> dict[tuple[int, int, int], tuple[list[tuple[int, PointToPoint]], ...]]:
    """Messages by (sender, receiver, tag): sends and receives, each with its number in its rank."""
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
                    f"message {number}{tagged} from {place(source, sent)} has {sent.numel} {sent.dtype}, "
                    f"but {place(target, got)} receives {got.numel} {got.dtype}"
                )
        if len(sends) > len(receives):
            lone = sends[len(receives)][1]
            yield (
                f"{place(source, lone)} sends {lone.numel} {lone.dtype} to rank {target}{tagged}, "
                f"which receives {len(receives)} of its {len(sends)} messages"
            )
        if len(receives) > len(sends):
            lone = receives[len(sends)][1]
            yield (
                f"{place(target, lone)} receives {lone.numel} {lone.dtype} from rank {source}{tagged}, "
                f"which sends {len(sends)} of its {len(receives)} messages"
            )


At = tuple[int, int]
"""A node: its rank, and its number in that one's trace."""


@dataclass
class _Meeting:
    """Once all of `open` have come to their turn, those that it completes are done."""

    open: set[At]
    completes: tuple[At, ...]


class _Play:
    """Who comes how far. come: what has had its turn; done: what is over."""

    def __init__(self, trace: JobTrace, senders_wait: bool) -> None:
        self.trace = trace
        self.meetings: dict[At, list[_Meeting]] = defaultdict(list)
        self.come: set[At] = set()
        self.done: set[At] = set()
        self._collectives()
        self._messages(senders_wait)
        self._needs()
        self._run()

    def awaited(self, at: At) -> list[int]:
        """Ranks that a node waits for."""
        found = {rank for meeting in self.meetings[at] if at in meeting.completes for rank, _ in meeting.open}
        return sorted(found)

    def _meet(self, ends: Sequence[At], completes: Sequence[At]) -> None:
        meeting = _Meeting(set(ends), tuple(completes))
        for end in ends:
            self.meetings[end].append(meeting)

    def _collectives(self) -> None:
        members: dict[tuple[str, int], list[At]] = defaultdict(list)
        for rank, own in enumerate(self.trace.ranks):
            count: Counter[str] = Counter()
            for number, node in enumerate(own):
                if isinstance(node, Collective):
                    members[node.group, count[node.group]].append((rank, number))
                    count[node.group] += 1
        for ends in members.values():
            self._meet(ends, ends)

    def _messages(self, senders_wait: bool) -> None:
        for (source, target, _), (sends, receives) in _ends(self.trace).items():
            for (sent, _), (got, _) in zip(sends, receives, strict=True):
                both = ((source, sent), (target, got))
                if senders_wait:
                    self._meet(both, both)
                else:
                    self._meet(both[:1], both[:1])
                    self._meet(both, both[1:])

    def _needs(self) -> None:
        self.missing: list[list[int]] = []
        self.later: list[list[list[int]]] = []
        for own in self.trace.ranks:
            last: dict[str, int] = {}
            missing, later = [], [list[int]() for _ in own]
            for number, node in enumerate(own):
                needs = {*node.after, *([last[node.stream]] if node.stream in last else [])}
                last[node.stream] = number
                missing.append(len(needs))
                for earlier in needs:
                    later[earlier].append(number)
            self.missing.append(missing)
            self.later.append(later)

    def _run(self) -> None:
        queue = [
            (rank, number)
            for rank, missing in enumerate(self.missing)
            for number, count in enumerate(missing)
            if not count
        ]
        while queue:
            at = queue.pop()
            self.come.add(at)
            for over in self._over(at):
                self.done.add(over)
                rank, number = over
                for later in self.later[rank][number]:
                    self.missing[rank][later] -= 1
                    if not self.missing[rank][later]:
                        queue.append((rank, later))

    def _over(self, at: At) -> Iterator[At]:
        """What is done now that one more has come to its turn."""
        if at not in self.meetings:
            yield at
            return
        for meeting in self.meetings[at]:
            meeting.open.discard(at)
            if not meeting.open:
                yield from meeting.completes


def _deadlock(trace: JobTrace, senders_wait: bool) -> str | None:
    """Who waits for whom for ever."""
    play = _Play(trace, senders_wait)
    if len(play.done) == sum(map(len, trace.ranks)):
        return None
    stuck = sorted(play.come - play.done)
    words = []
    for rank, number in stuck[:SHOWN]:
        node = trace.ranks[rank][number]
        others = play.awaited((rank, number))
        whom = f"rank{'s' * (len(others) > 1)} {', '.join(map(str, others[:SHOWN]))}"
        if isinstance(node, Collective):
            what = f"{node.collective} of group {node.group}"
        else:
            assert isinstance(node, PointToPoint)
            what = f"a {'send to' if node.sends else 'receive from'} rank {node.peer}"
        words.append(f"{place(rank, node)} waits in {what} for {whom}")
    more = f"; and {len(stuck) - SHOWN} more" if len(stuck) > SHOWN else ""
    return f"ranks wait for each other for ever: {'; '.join(words)}{more}"

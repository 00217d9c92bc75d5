"""The operations of all ranks put together: what each joined, passed, has open, and whose message answers whose.

The same group and sequence number on several ranks are one operation. Rings keep the last operations only: what a rank
does not have it may have passed long ago, which later ones of the same group tell.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from itertools import zip_longest

from testbed.comm.flight_recorder import COMPLETED, FAILED, Entry, GroupRecord, RankDump
from testbed.measure.diagnosis.verdicts import ranks_text

Key = tuple[int, int]
"""Of an operation: group and sequence number."""

Node = tuple[int, int]
"""A rank's operation: rank, and place among the entries of its dump."""

JOINED, PASSED, ABSENT, UNKNOWN = "joined", "passed", "absent", "unknown"
RECEIVES = ("irecv", "wait_signal")
"""Ends of messages from one rank to one that wait for the other end."""

SAME_SIZES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "barrier")
"""Collectives in which all ranks' arrays are of one size, by the beginning of their names."""

_OTHER_END = {"isend": "irecv", "irecv": "isend", "signal": "wait_signal", "wait_signal": "signal"}
# as transports word it; what a timer of the own kernel ended is no news from the peer
_LOST = re.compile(r"lost peer (\d+)")
_TIMED_OUT = re.compile(r"not done within ([0-9.e+-]+) s")
_UNHEARD = re.compile(r"timed out|unreachable|no route", re.IGNORECASE)

Meaning = tuple[str, str, str, int]
"""What ranks must agree on: name, type, operation, size in bytes (-1 where it may differ)."""


class Graph:
    """All dumps; of a rank that is there twice the later. Groups have numbers of their own here, see `_renumbered`."""

    def __init__(self, dumps: Iterable[RankDump]) -> None:
        ordered = sorted(dumps, key=lambda dump: (dump.rank, dump.time_s))
        self.dumps = _renumbered({dump.rank: dump for dump in ordered})
        self.groups: dict[int, GroupRecord] = {}
        self.collectives: dict[Key, dict[int, int]] = {}
        self._messages: dict[tuple[int, str, int, int, int | None], list[int]] = {}
        kept: dict[tuple[int, int], list[int]] = {}
        for rank, dump in self.dumps.items():
            for group in dump.groups:
                self.groups.setdefault(group.id, group)
            for place, entry in enumerate(dump.entries):
                if entry.sequence:
                    self.collectives.setdefault((entry.group, entry.sequence), {})[rank] = place
                    kept.setdefault((rank, entry.group), []).append(entry.sequence)
                elif entry.peer is not None:
                    key = (rank, entry.name, entry.peer, entry.group, entry.tag)
                    self._messages.setdefault(key, []).append(place)
        self._spans = {key: (min(own), max(own)) for key, own in kept.items()}

    def entry(self, node: Node) -> Entry:
        """A rank's operation."""
        return self.dumps[node[0]].entries[node[1]]

    def members(self, group: int) -> tuple[int, ...]:
        """A group's ranks; those that are known to be, where no dump describes it."""
        if group in self.groups:
            return self.groups[group].ranks
        return tuple(sorted({rank for rank, own in self._spans if own == group}))

    def group_name(self, group: int) -> str:
        """As people call it; with its ranks where others are called so, too."""
        if group not in self.groups:
            return f"group {group}"
        own = self.groups[group]
        name = own.name or "all ranks"
        alike = sum(other.name == own.name for other in self.groups.values())
        return f"{name} of {ranks_text(own.ranks)}" if alike > 1 else name

    def family(self, group: int) -> tuple[str, int]:
        """Alike for groups that run the same program on other ranks: "tensor 0" and "tensor 1"."""
        name = self.groups[group].name if group in self.groups else ""
        return re.sub(r"\d+", "#", name), len(self.members(group))

    def words(self, key: Key) -> str:
        """An operation for people: "all_reduce #12 of tensor 3"."""
        own = self.collectives.get(key, {})
        names = sorted({self.dumps[rank].entries[place].name for rank, place in own.items()})
        return f"{' or '.join(names) or 'operation'} #{key[1]} of {self.group_name(key[0])}"

    def node_words(self, node: Node) -> str:
        """A rank's operation for people."""
        entry = self.entry(node)
        if entry.sequence:
            return self.words((entry.group, entry.sequence))
        if entry.peer is None:
            return entry.name
        way = "from" if entry.name in RECEIVES else "to"
        which = "tag" if entry.name in ("isend", "irecv") else "window"
        return f"{entry.name} {way} rank {entry.peer}, {which} {entry.tag}"

    def standing(self, rank: int, key: Key) -> str:
        """What a rank has to do with an operation: JOINED, PASSED (and kept no more), ABSENT, UNKNOWN."""
        if rank not in self.dumps:
            return UNKNOWN
        if rank in self.collectives.get(key, {}):
            return JOINED
        least, _ = self._spans.get((rank, key[0]), (-math.inf, -math.inf))
        return PASSED if key[1] < least else ABSENT

    def left_out(self, rank: int, key: Key) -> bool:
        """Whether a rank has gone on in the same group without it."""
        least, most = self._spans.get((rank, key[0]), (math.inf, -math.inf))
        return least < key[1] < most and rank not in self.collectives.get(key, {})

    def open_nodes(self, rank: int) -> list[Node]:
        """A rank's operations that have no result."""
        entries = self.dumps[rank].entries
        return [(rank, place) for place, entry in enumerate(entries) if entry.state != COMPLETED]

    def open_since_s(self, rank: int) -> float:
        """Since when a rank waits, infinity where it does not."""
        return min((self.entry(node).scheduled_s for node in self.open_nodes(rank)), default=math.inf)

    def node(self, rank: int, key: Key) -> Node | None:
        """A rank's part in a collective."""
        place = self.collectives.get(key, {}).get(rank)
        return None if place is None else (rank, place)

    @cached_property
    def first_failure_s(self) -> float:
        """When the first operation of all failed, or a rank gave one up; infinity where none did."""
        ends = [
            entry.ended_s
            for dump in self.dumps.values()
            for entry in dump.entries
            if entry.state == FAILED and entry.ended_s is not None
        ]
        given_up = [since_s + patience_s for since_s, patience_s, _ in self.timed_out() if patience_s]
        return min([*ends, *given_up], default=math.inf)

    def timed_out(self) -> list[tuple[float, float, Node]]:
        """Of ranks that say that something was not done in time: their oldest open operation, and how long it may take.

        That is, when it was asked for, the seconds left of its time when it was waited for, and which it is.
        """
        found = []
        for rank, dump in self.dumps.items():
            said, nodes = _TIMED_OUT.search(dump.ended), self.open_nodes(rank)
            if said and nodes:
                oldest = min(nodes, key=lambda node: (self.entry(node).scheduled_s, node[1]))
                found.append((self.entry(oldest).scheduled_s, float(said[1]), oldest))
        return found

    def seen_until_s(self, node: Node) -> float:
        """Until when a rank's operation was left to itself: when it failed, or any did, or when the dump was made."""
        entry = self.entry(node)
        ended_s = math.inf if entry.ended_s is None else entry.ended_s
        return min(ended_s, self.first_failure_s, self.dumps[node[0]].time_s)

    def last_activity_s(self, rank: int) -> float:
        """When a rank last did anything that its recorder knows of, but for failing."""
        return max((activity_s(entry) for entry in self.dumps[rank].entries), default=-math.inf)

    def counterpart(self, node: Node, clock_error_s: float) -> Node | None:
        """The other end of a point-to-point message that is open; None where its peer has not come to it.

        Messages of one pair and tag are in order, and neither end keeps all of them. An end that is open, too, is it;
        of what a sender is done with, what it began after this end's last one was over, or has more of since.
        """
        rank, place = node
        entry = self.entry(node)
        assert entry.peer is not None
        other = _OTHER_END.get(entry.name, "")
        theirs = self._messages.get((entry.peer, other, rank, entry.group, entry.tag), [])
        own = self.dumps[entry.peer].entries
        if opened := [at for at in theirs if own[at].state != COMPLETED]:
            return entry.peer, opened[0]
        if entry.name not in RECEIVES:
            return None
        mine = self._messages.get((rank, entry.name, entry.peer, entry.group, entry.tag), [])
        over = [self.entry((rank, at)).ended_s for at in mine if at < place]
        ends = [value for value in over if value is not None]
        if not ends:
            since_s = max(self._since_s(rank), self._since_s(entry.peer))
        elif len([at for at in theirs if own[at].scheduled_s > ends[0] + clock_error_s]) >= len(ends):
            since_s = ends[0]
        else:
            since_s = ends[-1]
        later = [at for at in theirs if own[at].scheduled_s > since_s + clock_error_s]
        return (entry.peer, later[-1]) if later else None

    def _since_s(self, rank: int) -> float:
        """From when on a rank's recorder has all."""
        entries = self.dumps[rank].entries
        return entries[0].scheduled_s if entries else -math.inf


def _renumbered(dumps: dict[int, RankDump]) -> dict[int, RankDump]:
    """With a number for each set of ranks: those that are split off at once share one, each rank being in one of them.

    Entries of groups that no dump describes are of numbers below 0.
    """
    known = sorted({(group.id, group.ranks) for dump in dumps.values() for group in dump.groups})
    numbers = {key: number for number, key in enumerate(known)}
    found = {}
    for rank, dump in dumps.items():
        own = {group.id: numbers[group.id, group.ranks] for group in dump.groups}
        groups = tuple(replace(group, id=own[group.id]) for group in dump.groups)
        entries = tuple(
            replace(entry, group=own.get(entry.group, -1 - entry.group)) for entry in dump.entries
        )
        found[rank] = replace(dump, groups=groups, entries=entries)
    return found


def activity_s(entry: Entry) -> float:
    """When an operation last came on: begun, sent, received, over with a result."""
    found = [entry.scheduled_s, entry.started_s]
    if entry.state == COMPLETED:
        found.append(entry.ended_s)
    for own in entry.peers.values():
        found += [own.sent_last_s, own.received_last_s]
    return max(value for value in found if value is not None)


def meaning(entry: Entry) -> Meaning:
    """What an operation is, as all of its ranks must see it."""
    sized = entry.name.startswith(SAME_SIZES)
    return entry.name, entry.dtype, entry.op, entry.size_bytes if sized else -1


def heard_of(graph: Graph, since_s: float) -> set[tuple[int, int]]:
    """Pairs of which the second learnt after a moment that the first had gone: the end of its connection came."""
    found = set()
    for rank, dump in graph.dumps.items():
        for entry in dump.entries:
            if entry.state != FAILED or entry.ended_s is None or entry.ended_s < since_s:
                continue
            heard = _LOST.search(entry.error)
            if heard and not _UNHEARD.search(entry.error):
                found.add((int(heard[1]), rank))
    return found


def longest_s(graph: Graph) -> float:
    """What the longest operation that is over took, at most; 0 where none is.

    One whose recorder does not say when it ended was over when its rank asked for the next.
    """
    longest = 0.0
    for dump in graph.dumps.values():
        for entry, later in zip_longest(dump.entries, dump.entries[1:]):
            ended_s = entry.ended_s if entry.ended_s is not None or later is None else later.scheduled_s
            if entry.state == COMPLETED and ended_s is not None:
                longest = max(longest, ended_s - entry.scheduled_s)
    return longest

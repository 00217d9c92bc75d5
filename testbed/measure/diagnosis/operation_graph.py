"""The combined operations of all ranks: who joined, passed or still has each one open, and which messages match.

Entries of several ranks with the same group and sequence number are one operation. Ring buffers keep only the last
operations, so a rank may have passed an operation that its dump lacks; later operations of the same group show this.
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
"""The key of an operation: group and sequence number."""

Node = tuple[int, int]
"""A rank's operation: rank, and index among the entries of its dump."""

JOINED, PASSED, ABSENT, UNKNOWN = "joined", "passed", "absent", "unknown"
RECEIVES = ("irecv", "wait_signal")
"""Point-to-point operations that wait for the other end."""

SAME_SIZES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "barrier")
"""Prefixes of collectives in which the arrays of all ranks have the same size."""

_OTHER_END = {"isend": "irecv", "irecv": "isend", "signal": "wait_signal", "wait_signal": "signal"}
# error texts of transports; a timeout in the rank's own kernel does not show that the peer is gone
_LOST = re.compile(r"lost peer (\d+)")
_TIMED_OUT = re.compile(r"not done within ([0-9.e+-]+) s")
_UNHEARD = re.compile(r"timed out|unreachable|no route", re.IGNORECASE)

Signature = tuple[str, str, str, int]
"""The properties on which ranks must agree: name, type, reduction, size in bytes (-1 if it may differ)."""


class Graph:
    """All dumps combined, using the later one if a rank has two; groups are renumbered, see `_renumbered`."""

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
        """Return a rank's operation."""
        return self.dumps[node[0]].entries[node[1]]

    def members(self, group: int) -> tuple[int, ...]:
        """Return a group's ranks, or only the ranks that are known if no dump describes it."""
        if group in self.groups:
            return self.groups[group].ranks
        return tuple(sorted({rank for rank, own in self._spans if own == group}))

    def group_name(self, group: int) -> str:
        """Return a group's name, with its ranks if the name is not unique."""
        if group not in self.groups:
            return f"group {group}"
        own = self.groups[group]
        name = own.name or "all ranks"
        alike = sum(other.name == own.name for other in self.groups.values())
        return f"{name} of {ranks_text(own.ranks)}" if alike > 1 else name

    def family(self, group: int) -> tuple[str, int]:
        """Return a key that is equal for groups that run the same program, such as "tensor 0" and "tensor 1"."""
        name = self.groups[group].name if group in self.groups else ""
        return re.sub(r"\d+", "#", name), len(self.members(group))

    def words(self, key: Key) -> str:
        """Describe an operation, such as "all_reduce #12 of tensor 3"."""
        own = self.collectives.get(key, {})
        names = sorted({self.dumps[rank].entries[place].name for rank, place in own.items()})
        return f"{' or '.join(names) or 'operation'} #{key[1]} of {self.group_name(key[0])}"

    def node_words(self, node: Node) -> str:
        """Describe an operation of a rank."""
        entry = self.entry(node)
        if entry.sequence:
            return self.words((entry.group, entry.sequence))
        if entry.peer is None:
            return entry.name
        preposition = "from" if entry.name in RECEIVES else "to"
        label = "tag" if entry.name in ("isend", "irecv") else "window"
        return f"{entry.name} {preposition} rank {entry.peer}, {label} {entry.tag}"

    def standing(self, rank: int, key: Key) -> str:
        """Return a rank's state in an operation: JOINED, PASSED (no longer in the ring buffer), ABSENT or UNKNOWN."""
        if rank not in self.dumps:
            return UNKNOWN
        if rank in self.collectives.get(key, {}):
            return JOINED
        least, _ = self._spans.get((rank, key[0]), (-math.inf, -math.inf))
        return PASSED if key[1] < least else ABSENT

    def left_out(self, rank: int, key: Key) -> bool:
        """Return whether a rank skipped an operation and continued in the same group."""
        least, most = self._spans.get((rank, key[0]), (math.inf, -math.inf))
        return least < key[1] < most and rank not in self.collectives.get(key, {})

    def open_nodes(self, rank: int) -> list[Node]:
        """Return a rank's operations that are not complete."""
        entries = self.dumps[rank].entries
        return [(rank, place) for place, entry in enumerate(entries) if entry.state != COMPLETED]

    def open_since_s(self, rank: int) -> float:
        """Return the time since which a rank has been waiting; infinity if it is not waiting."""
        return min((self.entry(node).scheduled_s for node in self.open_nodes(rank)), default=math.inf)

    def node(self, rank: int, key: Key) -> Node | None:
        """Return a rank's node of a collective."""
        place = self.collectives.get(key, {}).get(rank)
        return None if place is None else (rank, place)

    @cached_property
    def first_failure_s(self) -> float:
        """Return when the first operation failed or was abandoned; infinity if none was."""
        ends = [
            entry.ended_s
            for dump in self.dumps.values()
            for entry in dump.entries
            if entry.state == FAILED and entry.ended_s is not None
        ]
        given_up = [since_s + patience_s for since_s, patience_s, _ in self.timed_out() if patience_s]
        return min([*ends, *given_up], default=math.inf)

    def timed_out(self) -> list[tuple[float, float, Node]]:
        """Return the oldest open operation of every rank that reported a timeout.

        Each entry has the time at which the operation was scheduled, its timeout in seconds, and the operation itself.
        """
        found = []
        for rank, dump in self.dumps.items():
            said, nodes = _TIMED_OUT.search(dump.ended), self.open_nodes(rank)
            if said and nodes:
                oldest = min(nodes, key=lambda node: (self.entry(node).scheduled_s, node[1]))
                found.append((self.entry(oldest).scheduled_s, float(said[1]), oldest))
        return found

    def seen_until_s(self, node: Node) -> float:
        """Return when an operation stopped running undisturbed: when it or any other failed, or at the dump."""
        entry = self.entry(node)
        ended_s = math.inf if entry.ended_s is None else entry.ended_s
        return min(ended_s, self.first_failure_s, self.dumps[node[0]].time_s)

    def last_activity_s(self, rank: int) -> float:
        """Return when a rank's recorder last saw any activity other than a failure."""
        return max((activity_s(entry) for entry in self.dumps[rank].entries), default=-math.inf)

    def counterpart(self, node: Node, clock_error_s: float) -> Node | None:
        """Return the other end of an open point-to-point message; None if the peer has not started it.

        Messages of a pair and tag are in order, and neither dump has all of them. If the peer has an open message, that
        is the counterpart. Otherwise it is one that the sender started after this rank's last completed receive.
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
        """Return the time from which a rank's dump is complete."""
        entries = self.dumps[rank].entries
        return entries[0].scheduled_s if entries else -math.inf


def _renumbered(dumps: dict[int, RankDump]) -> dict[int, RankDump]:
    """Give each set of ranks its own group number, since groups created by one split share an id.

    Groups that no dump describes get negative numbers.
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
    """Return the time of an operation's last progress: started, sent, received or completed."""
    found = [entry.scheduled_s, entry.started_s]
    if entry.state == COMPLETED:
        found.append(entry.ended_s)
    for own in entry.peers.values():
        found += [own.sent_last_s, own.received_last_s]
    return max(value for value in found if value is not None)


def signature(entry: Entry) -> Signature:
    """Return the properties that all ranks of an operation must agree on."""
    sized = entry.name.startswith(SAME_SIZES)
    return entry.name, entry.dtype, entry.op, entry.size_bytes if sized else -1


def noticed_losses(graph: Graph, since_s: float) -> set[tuple[int, int]]:
    """Return pairs in which the second rank noticed, after `since_s`, that the first had closed its connection."""
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
    """Return an upper bound on the duration of the longest completed operation; 0 if there is none.

    An operation without a recorded end counts as complete when its rank started the next one.
    """
    longest = 0.0
    for dump in graph.dumps.values():
        for entry, later in zip_longest(dump.entries, dump.entries[1:]):
            ended_s = entry.ended_s if entry.ended_s is not None or later is None else later.scheduled_s
            if entry.state == COMPLETED and ended_s is not None:
                longest = max(longest, ended_s - entry.scheduled_s)
    return longest

"""A plan as columns: what its operations are and wait for, what they send; whatever network carries it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.workload.operations import COMPUTE, QUEUE, Block, Computing, GroupCollective
from testbed.workload.plan import JobPlan
from testbed.workload.plan_patterns import Pattern, Using, sent_alike
from testbed.workload.send_tokens import TokenPattern

TIMED, SENDS, RECEIVES, COLLECTIVE = range(4)

Numbers = NDArray[np.int32]
Figures = NDArray[np.float64]


class PatternColumns(NamedTuple):
    """A pattern's operations. next_many: how many wait for each; next: which. following: see `tracking.Order`.

    messages, collectives: their places; message_sorts, collective_sorts: of each which of the pattern's `exchanged` it
    is like; tag: of messages. keeping: places of computing that begins or ceases to keep activations; changes: bytes
    that go, then those that come.
    """

    operation: NDArray[np.int8]
    duration_s: Figures
    missing: Numbers
    following: Numbers
    next_many: Numbers
    next: Numbers
    messages: Numbers
    message_sorts: Numbers
    tag: NDArray[np.int64]
    collectives: Numbers
    collective_sorts: Numbers
    keeping: Numbers
    changes: Figures


class Messages(NamedTuple):
    """Ends of messages, all ranks' one after the other.

    place: among all operations; sends: which end it is. box: the same for both ends, and for those behind each other
    of one tag. Of those that are sent, `kind` is the row of kinds that tells source, target, DSCP and elements.
    """

    place: Numbers
    sends: NDArray[np.bool_]
    box: Numbers
    kind: Numbers
    kinds: NDArray[np.int64]


class Collectives(NamedTuple):
    """Members' parts. place: among all operations; alike: the number of one that sends the same; own: member."""

    place: Numbers
    alike: Numbers
    own: Numbers


@dataclass(frozen=True, eq=False)
class PlanColumns:
    """patterns: of the plan, each once. rank_pattern: of each rank; rank_first: its first operation among all.

    kinds: of collectives. group_calls: how many of each group there are.
    """

    patterns: tuple[PatternColumns, ...]
    rank_pattern: Numbers
    rank_first: Numbers
    messages: Messages
    collectives: Collectives
    kinds: tuple[GroupCollective, ...]
    group_calls: Numbers


def likeness(plan: JobPlan) -> Hashable:
    """Equal for plans of which the same comes, whatever their operations are called."""
    return tuple(map(_likeness, plan.alike.patterns)), plan.alike.moves


def _likeness(pattern: Pattern) -> int:
    return pattern.remembered("likeness", lambda: _likeness_of(pattern))


def _likeness_of(pattern: Pattern) -> int:
    own = _with_columns(pattern)
    if isinstance(own, TokenPattern):
        done: Hashable = _likeness(own.plain), own.move, own.turns
    else:
        columns = pattern_columns(own)
        if columns is None:
            return hash(pattern.operations)
        done = own.remembered("done", lambda: hash(tuple(column.tobytes() for column in columns)))
    return hash((done, *(sent_alike(one) for one, _ in pattern.exchanged)))


def columns_of(plan: JobPlan) -> PlanColumns | None:
    """None where operations are more than computing, pauses, messages and even collectives, or wait in queues."""
    return plan.remembered("columns", lambda: _columns(plan))


def firsts(counts: Sequence[int] | NDArray[Any]) -> Numbers:
    """Where rows of these lengths begin, laid end to end; and where all end."""
    found: Numbers = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=found[1:])
    return found


def pattern_columns(pattern: Pattern) -> PatternColumns | None:
    """Those of one; None as with `columns_of`."""
    own = _with_columns(pattern)
    made = partial(_of_turns, own) if isinstance(own, TokenPattern) else partial(_of_pattern, own)
    return own.remembered("columns", made)


def _with_columns(pattern: Pattern) -> Pattern:
    """The one that has the same columns: which algorithm collectives go by is not in them."""
    return pattern.plain if isinstance(pattern, Using) and pattern.tells_as_many_apart else pattern


def _of_pattern(pattern: Pattern) -> PatternColumns | None:
    operations, exchanged = pattern.operations, [own for own, _ in pattern.exchanged]
    uneven = (isinstance(own, GroupCollective) and own.uneven for own in exchanged)
    if any(isinstance(own, Block) for own in exchanged) or any(uneven):
        return None
    many = len(operations)
    inside, duration_s = np.zeros(many, dtype=bool), np.zeros(many)
    for place, durations_s in pattern.chains:
        inside[place : place + len(durations_s)] = True
        duration_s[place : place + len(durations_s)] = durations_s
    single = np.flatnonzero(~inside)  # to be looked at one by one
    ones = [operations[place] for place in single.tolist()]
    streams = list(map(attrgetter("stream"), ones))
    if any(stream.startswith(QUEUE) for stream in set(streams)):
        return None
    kinds = np.zeros(many, dtype=np.int8)
    of_sorts = [
        COLLECTIVE if isinstance(own, GroupCollective) else SENDS if own.sends else RECEIVES
        for own in exchanged
    ]
    places, sorts = np.array(pattern.shared, dtype=np.int32), np.array(pattern.sorts, dtype=np.int32)
    of_shared = np.array(of_sorts, dtype=np.int8)[sorts]
    kinds[places] = of_shared
    gathers = of_shared == COLLECTIVE
    messages = map(operations.__getitem__, places[~gathers].tolist())
    timed = np.flatnonzero((kinds == TIMED) & ~inside).tolist()
    duration_s[timed] = list(map(attrgetter("duration_s"), map(operations.__getitem__, timed)))
    computing = [place for place in timed if type(operations[place]) is Computing]
    kept = np.array(list(map(attrgetter("holds", "gives"), map(operations.__getitem__, computing))))
    holds, gives = kept.reshape(-1, 2).T
    keeping = (holds != 0.0) | (gives != 0.0)
    numbers = {COMPUTE: 0}  # of streams
    stream, counts = np.zeros(many, dtype=np.int64), np.zeros(many, dtype=np.int64)
    stream[single] = list(map(numbers.setdefault, streams, range(1, len(ones) + 1)))
    after = list(map(attrgetter("after"), ones))
    counts[single] = list(map(len, after))
    said = np.fromiter(chain.from_iterable(after), np.int64)
    earlier, later = _waits(stream, counts, said)
    return PatternColumns(
        kinds,
        duration_s,
        *_waiting(kinds, earlier, later),
        places[~gathers],
        sorts[~gathers],
        np.array(list(map(attrgetter("tag"), messages)), dtype=np.int64),
        places[gathers],
        sorts[gathers],
        np.array(computing, dtype=np.int32)[keeping],
        np.concatenate([-gives[keeping], holds[keeping]]),
    )


def _waiting(
    kinds: NDArray[np.int8], earlier: NDArray[np.int64], later: NDArray[np.int64]
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Of operations that wait for each other in pairs, see `_waits`: missing, following, next_many and next."""
    many = len(kinds)
    missing, next_many = (np.bincount(ends, minlength=many).astype(np.int32) for ends in (later, earlier))
    alone = (
        (missing[later] == 1)
        & (next_many[earlier] == 1)
        & (kinds[later] == TIMED)
        & (kinds[earlier] == TIMED)
    )
    following = np.full(many, -1, dtype=np.int32)
    following[earlier[alone]] = later[alone]
    return missing, following, next_many, later.astype(np.int32)


def _pairs(
    earlier: NDArray[np.int64], later: NDArray[np.int64], many: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each once, in the order of the earlier ones."""
    pairs = np.unique(earlier * many + later)
    return pairs // max(1, many), pairs % max(1, many)


def _waits(
    stream: NDArray[np.int64], counts: NDArray[np.int64], said: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of which two the later one waits for the earlier one, each pair once, in the order of the earlier ones.

    As `tracking.waits` has it. stream: of each operation; counts: how many each says that it waits for; said: which.
    """
    many, (before, behind) = len(stream), _in_turn(stream)
    earlier = np.concatenate([said, before])
    later = np.concatenate([np.repeat(np.arange(many), counts), behind])
    return _pairs(earlier, later, many)


def _in_turn(stream: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Of which two the later one is the next one of the same stream."""
    in_turn = np.argsort(stream, kind="stable")
    same = stream[in_turn[1:]] == stream[in_turn[:-1]]
    return in_turn[:-1][same], in_turn[1:][same]


def _of_turns(pattern: TokenPattern) -> PatternColumns | None:
    plain = pattern_columns(pattern.plain)
    if plain is None:
        return None
    at, many, taken, messages = pattern.at, len(pattern), pattern.taken, pattern.messages
    waiting, passing = messages[pattern.waiting], messages[pattern.passing]
    pauses, received, passed = messages + 1, waiting - 1, passing + 2
    kinds, duration_s = np.zeros(many, dtype=np.int8), np.zeros(many)
    kinds[at], duration_s[at] = plain.operation, plain.duration_s
    kinds[received], kinds[passed] = RECEIVES, SENDS
    duration_s[pauses] = [one.turn.seconds(own) for one, own in zip(taken, pattern.delayed, strict=True)]
    said = [own.after for own in pattern.delayed]
    awaited = at[np.fromiter(chain.from_iterable(said), np.int64)]
    peers = np.array([one.turn.peer for one in taken], dtype=np.int64)  # of each a stream
    streams = np.concatenate([peers[pattern.waiting], peers, peers[pattern.passing]])
    added = np.concatenate([received, pauses, passed])
    by_place = np.argsort(added)
    added, (before, behind) = added[by_place], _in_turn(streams[by_place])
    earlier = [
        at[np.repeat(np.arange(len(at)), plain.next_many)],
        received,
        received,
        awaited,
        passing + 1,
        added[before],
    ]
    later = [
        at[plain.next],
        waiting,
        waiting + 1,
        np.repeat(pauses, list(map(len, said))),
        passed,
        added[behind],
    ]
    pairs = _pairs(np.concatenate(earlier), np.concatenate(later), many)
    sorts = np.array(pattern.sorts, dtype=np.int32)
    of_shared = kinds[pattern.shared]
    gathers = of_shared == COLLECTIVE
    places = np.array(pattern.shared, dtype=np.int32)
    tags = np.zeros(many, dtype=np.int64)
    tags[at[plain.messages]] = plain.tag
    tags[pattern.token_places] = [tag for _, _, tag in pattern.tokens]
    return PatternColumns(
        kinds,
        duration_s,
        *_waiting(kinds, *pairs),
        places[~gathers],
        sorts[~gathers],
        tags[places[~gathers]],
        places[gathers],
        sorts[gathers],
        at[plain.keeping].astype(np.int32),
        plain.changes,
    )


def _columns(plan: JobPlan) -> PlanColumns | None:
    numbers: dict[int, int] = {}
    patterns: list[PatternColumns] = []
    for pattern in plan.alike.patterns:
        if id(pattern) not in numbers:
            own = pattern_columns(pattern)
            if own is None:
                return None
            numbers[id(pattern)] = len(patterns)
            patterns.append(own)
    rank_pattern = [numbers[id(pattern)] for pattern in plan.alike.patterns]
    rank_first = firsts([len(pattern) for pattern in plan.alike.patterns])
    found = _Found(plan)
    for rank, number in enumerate(rank_pattern):
        found.add(rank, int(rank_first[rank]), patterns[number])
    return PlanColumns(
        tuple(patterns),
        np.array(rank_pattern, dtype=np.int32),
        rank_first,
        found.messages(),
        found.collectives(),
        tuple(found.kinds),
        np.max(found.calls, axis=0, initial=0).astype(np.int32),
    )


def _numbered(rows: NDArray[np.int64]) -> tuple[NDArray[np.intp], Numbers]:
    """Columns by numbers from 0 on, alike ones by one: a place of each, and the number of every column."""
    key = np.zeros(rows.shape[1], dtype=np.int64)
    for row in rows:
        low = row.min(initial=0)
        key = key * (row.max(initial=0) - low + 1) + (row - low)
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return first, which.astype(np.int32)


class _Found:
    """All ranks' messages and collectives, in rows: places, then what they are."""

    def __init__(self, plan: JobPlan) -> None:
        self.plan = plan
        self.kinds: list[GroupCollective] = []
        self.calls = np.zeros((len(plan.ranks), len(plan.groups)), dtype=np.int64)
        self._messages: list[NDArray[np.int64]] = []
        self._collectives: list[NDArray[np.int64]] = []
        self._known: dict[object, int] = {}

    def add(self, rank: int, first: int, pattern: PatternColumns) -> None:
        """What a rank, whose operations begin there, does by a pattern."""
        plan = self.plan
        exchanged = plan.exchanged[rank]
        # of each that it exchanges: whether it sends, source, target, DSCP and elements; or its number and member
        of_messages = np.zeros((5, len(exchanged)), dtype=np.int64)
        of_collectives = np.zeros((2, len(exchanged)), dtype=np.int64)
        for sort, (own, many) in enumerate(exchanged):
            if isinstance(own, GroupCollective):
                of_collectives[:, sort] = self._number(own), plan.groups[own.group][1].index(rank)
                self.calls[rank, own.group] += many
            else:
                ends = (rank, own.peer) if own.sends else (own.peer, rank)
                of_messages[:, sort] = own.sends, *ends, plan.dscp(own), own.numel
        if len(pattern.messages):
            rows = (first + pattern.messages, pattern.tag, of_messages[:, pattern.message_sorts])
            self._messages.append(np.vstack(rows))
        if len(pattern.collectives):
            both = first + pattern.collectives, of_collectives[:, pattern.collective_sorts]
            self._collectives.append(np.vstack(both))

    def messages(self) -> Messages:
        """Of all ranks."""
        place, tag, sent, *ends = _joined(self._messages, 7)
        sends = sent > 0
        kinds = np.stack(ends)[:, sends]
        _, box = _numbered(np.stack([*ends[:2], tag]))
        first, kind = _numbered(kinds)
        return Messages(place.astype(np.int32), sends, box, kind, kinds[:, first].T)

    def collectives(self) -> Collectives:
        """Of all ranks."""
        place, alike, own = _joined(self._collectives, 3).astype(np.int32)
        return Collectives(place, alike, own)

    def _number(self, kind: GroupCollective) -> int:
        key = kind.sending, self.plan.dscp(kind)
        if key not in self._known:
            self._known[key] = len(self.kinds)
            self.kinds.append(kind)
        return self._known[key]


def _joined(rows: Sequence[NDArray[np.int64]], many: int) -> NDArray[np.int64]:
    return np.hstack(rows) if rows else np.zeros((many, 0), dtype=np.int64)

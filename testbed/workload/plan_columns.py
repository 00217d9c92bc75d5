"""A plan as NumPy columns: operations, their dependencies and the data they send, independent of the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.workload.operations import COMPUTE, QUEUE, Block, Computing, GroupCollective
from testbed.workload.plan import JobPlan, Pattern

TIMED, SENDS, RECEIVES, COLLECTIVE = range(4)

Numbers = NDArray[np.int32]
Figures = NDArray[np.float64]


class PatternColumns(NamedTuple):
    """The operations of a pattern as columns.

    Attributes:
        operation: Kind of each operation: TIMED, SENDS, RECEIVES or COLLECTIVE.
        duration_s: Emulated seconds of computations and pauses.
        missing: Number of dependencies of each operation.
        following: See `DependencyOrder`.
        next_many: Number of operations that depend on each operation.
        next: Those dependents, operation after operation.
        messages: Indices of messages.
        message_kinds: For each message, its index in the pattern's `exchanges`.
        tag: Tag of each message.
        collectives: Indices of collectives.
        collective_kinds: For each collective, its index in the pattern's `exchanges`.
        memory_operations: Indices of computations that allocate or free activations.
        memory_changes: Bytes that these free (negative), then bytes that they allocate.
    """

    operation: NDArray[np.int8]
    duration_s: Figures
    missing: Numbers
    following: Numbers
    next_many: Numbers
    next: Numbers
    messages: Numbers
    message_kinds: Numbers
    tag: NDArray[np.int64]
    collectives: Numbers
    collective_kinds: Numbers
    memory_operations: Numbers
    memory_changes: Figures


class Messages(NamedTuple):
    """Ends of messages of all ranks.

    Attributes:
        place: Index among all operations.
        sends: Whether the end sends.
        box: Mailbox: equal for both ends of a message, and for messages of a pair with the same tag.
        kind: For each sending end, its row in `kinds`.
        kinds: Source, target, DSCP and elements.
    """

    place: Numbers
    sends: NDArray[np.bool_]
    box: Numbers
    kind: Numbers
    kinds: NDArray[np.int64]


class Collectives(NamedTuple):
    """The members' parts of collectives.

    Attributes:
        place: Index among all operations.
        alike: Number of the collective's kind.
        own: Index of the member in its group.
    """

    place: Numbers
    alike: Numbers
    own: Numbers


@dataclass(frozen=True, eq=False)
class PlanColumns:
    """A plan as columns.

    Attributes:
        patterns: Distinct patterns of the plan.
        rank_pattern: Index of each rank's pattern.
        rank_first: Index of each rank's first operation among all operations; the last entry is the total.
        messages: Ends of messages of all ranks.
        collectives: Members' parts of collectives of all ranks.
        kinds: Distinct collectives.
        group_calls: Number of collectives of each group.
    """

    patterns: tuple[PatternColumns, ...]
    rank_pattern: Numbers
    rank_first: Numbers
    messages: Messages
    collectives: Collectives
    kinds: tuple[GroupCollective, ...]
    group_calls: Numbers


def columns_of(plan: JobPlan) -> PlanColumns | None:
    """Return a plan as columns.

    The result is None if the plan has queues, or operations other than computation, pauses, messages and even
    collectives.
    """
    return plan.cached("columns", lambda: _plan_columns(plan))


def row_offsets(counts: Sequence[int] | NDArray[Any]) -> Numbers:
    """Return the start offsets of rows of these lengths, laid end to end, and the total."""
    found: Numbers = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=found[1:])
    return found


def pattern_columns(pattern: Pattern) -> PatternColumns | None:
    """Return a pattern as columns, cached; None in the same cases as `columns_of`."""
    own = pattern.column_source
    return own.cached("columns", partial(_pattern_columns, own))


def _pattern_columns(pattern: Pattern) -> PatternColumns | None:
    operations, exchanges = pattern.operations, [own for own, _ in pattern.exchanges]
    uneven = (isinstance(own, GroupCollective) and own.uneven for own in exchanges)
    if any(isinstance(own, Block) for own in exchanges) or any(uneven):
        return None
    count = len(operations)
    streams = list(map(attrgetter("stream"), operations))
    if any(stream.startswith(QUEUE) for stream in set(streams)):
        return None
    kinds = np.zeros(count, dtype=np.int8)
    kind_of_exchange = [
        COLLECTIVE if isinstance(own, GroupCollective) else SENDS if own.sends else RECEIVES
        for own in exchanges
    ]
    places = np.array(pattern.shared_indices, dtype=np.int32)
    exchange_index = np.array(pattern.shared_kinds, dtype=np.int32)
    shared_kinds = np.array(kind_of_exchange, dtype=np.int8)[exchange_index]
    kinds[places] = shared_kinds
    gathers = shared_kinds == COLLECTIVE
    messages = map(operations.__getitem__, places[~gathers].tolist())
    timed, duration_s = np.flatnonzero(kinds == TIMED).tolist(), np.zeros(count)
    duration_s[timed] = list(map(attrgetter("duration_s"), map(operations.__getitem__, timed)))
    computing = [place for place in timed if type(operations[place]) is Computing]
    kept = np.array(list(map(attrgetter("holds", "gives"), map(operations.__getitem__, computing))))
    holds, gives = kept.reshape(-1, 2).T
    memory_operations = (holds != 0.0) | (gives != 0.0)
    numbers = {COMPUTE: 0}  # by stream
    stream = np.array(list(map(numbers.setdefault, streams, range(1, count + 1))), dtype=np.int64)
    after = list(map(attrgetter("after"), operations))
    counts = np.array(list(map(len, after)), dtype=np.int64)
    explicit = np.fromiter(chain.from_iterable(after), np.int64)
    earlier, later = _dependency_pairs(stream, counts, explicit)
    return PatternColumns(
        kinds,
        duration_s,
        *_dependency_columns(kinds, earlier, later),
        places[~gathers],
        exchange_index[~gathers],
        np.array(list(map(attrgetter("tag"), messages)), dtype=np.int64),
        places[gathers],
        exchange_index[gathers],
        np.array(computing, dtype=np.int32)[memory_operations],
        np.concatenate([-gives[memory_operations], holds[memory_operations]]),
    )


def _dependency_columns(
    kinds: NDArray[np.int8], earlier: NDArray[np.int64], later: NDArray[np.int64]
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Return missing, following, next_many and next of operations from dependency pairs, see `_dependency_pairs`."""
    count = len(kinds)
    missing, next_many = (np.bincount(ends, minlength=count).astype(np.int32) for ends in (later, earlier))
    alone = (
        (missing[later] == 1)
        & (next_many[earlier] == 1)
        & (kinds[later] == TIMED)
        & (kinds[earlier] == TIMED)
    )
    following = np.full(count, -1, dtype=np.int32)
    following[earlier[alone]] = later[alone]
    return missing, following, next_many, later.astype(np.int32)


def _dependency_pairs(
    stream: NDArray[np.int64], counts: NDArray[np.int64], explicit: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct pairs (earlier, later) in which the later operation depends on the earlier one, in order.

    It follows the rules of `dependency_tracker.waits`.

    Args:
        stream: Stream of each operation.
        counts: Number of explicit dependencies of each operation.
        explicit: Those dependencies.
    """
    count, in_turn = len(stream), np.argsort(stream, kind="stable")
    same = stream[in_turn[1:]] == stream[in_turn[:-1]]
    earlier = np.concatenate([explicit, in_turn[:-1][same]])
    later = np.concatenate([np.repeat(np.arange(count), counts), in_turn[1:][same]])
    pairs = np.unique(earlier * count + later)
    return pairs // max(1, count), pairs % max(1, count)


def _plan_columns(plan: JobPlan) -> PlanColumns | None:
    numbers: dict[int, int] = {}
    patterns: list[PatternColumns] = []
    for pattern in plan.symmetric.patterns:
        if id(pattern) not in numbers:
            own = pattern_columns(pattern)
            if own is None:
                return None
            numbers[id(pattern)] = len(patterns)
            patterns.append(own)
    rank_pattern = [numbers[id(pattern)] for pattern in plan.symmetric.patterns]
    rank_first = row_offsets([len(pattern) for pattern in plan.symmetric.patterns])
    found = _Collector(plan)
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


def _number_columns(rows: NDArray[np.int64]) -> tuple[NDArray[np.intp], Numbers]:
    """Number distinct columns from 0; return the index of one column per number, and the number of every column."""
    key = np.zeros(rows.shape[1], dtype=np.int64)
    for row in rows:
        low = row.min(initial=0)
        key = key * (row.max(initial=0) - low + 1) + (row - low)
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return first, which.astype(np.int32)


class _Collector:
    """A collector of the messages and collectives of all ranks."""

    def __init__(self, plan: JobPlan) -> None:
        self.plan = plan
        self.kinds: list[GroupCollective] = []
        self.calls = np.zeros((len(plan.ranks), len(plan.groups)), dtype=np.int64)
        self._messages: list[NDArray[np.int64]] = []
        self._collectives: list[NDArray[np.int64]] = []
        self._known: dict[object, int] = {}

    def add(self, rank: int, first: int, pattern: PatternColumns) -> None:
        plan = self.plan
        exchanges = plan.exchanges[rank]
        # rows for messages: sends, source, target, DSCP, elements; for collectives: number, member
        of_messages = np.zeros((5, len(exchanges)), dtype=np.int64)
        of_collectives = np.zeros((2, len(exchanges)), dtype=np.int64)
        for exchange, (own, count) in enumerate(exchanges):
            if isinstance(own, GroupCollective):
                of_collectives[:, exchange] = self._number(own), plan.groups[own.group][1].index(rank)
                self.calls[rank, own.group] += count
            else:
                ends = (rank, own.peer) if own.sends else (own.peer, rank)
                of_messages[:, exchange] = own.sends, *ends, plan.dscp(own), own.numel
        if len(pattern.messages):
            rows = (first + pattern.messages, pattern.tag, of_messages[:, pattern.message_kinds])
            self._messages.append(np.vstack(rows))
        if len(pattern.collectives):
            both = first + pattern.collectives, of_collectives[:, pattern.collective_kinds]
            self._collectives.append(np.vstack(both))

    def messages(self) -> Messages:
        place, tag, sent, *ends = _join_rows(self._messages, 7)
        sends = sent > 0
        kinds = np.stack(ends)[:, sends]
        _, box = _number_columns(np.stack([*ends[:2], tag]))
        first, kind = _number_columns(kinds)
        return Messages(place.astype(np.int32), sends, box, kind, kinds[:, first].T)

    def collectives(self) -> Collectives:
        place, alike, own = _join_rows(self._collectives, 3).astype(np.int32)
        return Collectives(place, alike, own)

    def _number(self, kind: GroupCollective) -> int:
        key = kind.exchange_key, self.plan.dscp(kind)
        if key not in self._known:
            self._known[key] = len(self.kinds)
            self.kinds.append(kind)
        return self._known[key]


def _join_rows(rows: Sequence[NDArray[np.int64]], count: int) -> NDArray[np.int64]:
    return np.hstack(rows) if rows else np.zeros((count, 0), dtype=np.int64)

"""Collectives message by message, as ranks send them, and the number of messages in a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

from testbed.comm.collectives.algorithms.all_to_all_v import COUNT_BYTES
from testbed.comm.collectives.plan import Plan, Round, Transfer
from testbed.comm.collectives.plan_executor import AHEAD
from testbed.comm.collectives.registry import (
    PlanRequest,
    RowsAlgorithm,
    algorithm_of,
    collective_of,
    rows_algorithm_of,
)
from testbed.net.paths.network import Ends, Members
from testbed.plugins import is_file_name
from testbed.prediction.events import Event
from testbed.prediction.protocols import Key, Messaging
from testbed.workload.plan import GroupCollective, JobPlan, Message
from testbed.workload.plan_volume import resolve_algorithm


def collective_plan(plan: JobPlan, operation: GroupCollective, own: int, itemsize: int) -> tuple[Plan, int]:
    """Return the plan of the member with this number in the group, and the number of elements in the whole array."""
    groups = plan.locality_of(operation.group)
    algorithm = resolve_algorithm(operation, groups, itemsize, plan.tuning)
    return _made(operation.collective, algorithm, operation.numel, groups, own, itemsize)


def _made(
    named: str, algorithm: str, numel: int, groups: tuple[int, ...], own: int, itemsize: int
) -> tuple[Plan, int]:
    size, collective = len(groups), collective_of(named)
    part = collective.part(numel, size)
    made = algorithm_of(collective, algorithm)
    request = PlanRequest(own, groups, 0, made.pieces(part * itemsize, size))
    return made(request), part * collective.blocks(size)


class SizedRound(NamedTuple):
    """The non-empty messages of one round: ranks and bytes."""

    sends: tuple[tuple[Ends, int], ...]
    receives: tuple[tuple[Ends, int], ...]


SizedStage = tuple[tuple[SizedRound, ...], ...]


def list_messages(
    plan: JobPlan, operation: GroupCollective, own: int, itemsize: int
) -> tuple[tuple[SizedStage, ...], ...]:
    """Return the messages of the member with this number in the group, per channel, stage and strand."""
    made, elements = collective_plan(plan, operation, own, itemsize)
    bounds, (_, members) = made.bounds(elements), plan.groups[operation.group]
    here = members[own]

    def bytes_of(transfer: Transfer) -> int:
        return sum(bounds[end] - bounds[start] for start, end in transfer.runs) * itemsize

    def one(step: Round) -> SizedRound:
        sends = [((here, members[each.peer]), bytes_of(each)) for each in step.sends]
        receives = [((members[each.peer], here), bytes_of(each)) for each in step.receives]
        return SizedRound(tuple(m for m in sends if m[1]), tuple(m for m in receives if m[1]))

    return tuple(
        tuple(tuple(tuple(map(one, strand)) for strand in stage) for stage in stages)
        for stages in made.channels
    )


def message_count(plan: JobPlan, itemsize: int, most: int, chunk_bytes: float = math.inf) -> int:
    """Return the number of messages that all ranks send; counting stops above `most`.

    With `chunk_bytes`, messages are cut into chunks of this size, and the chunks are counted instead.
    """
    what = "messages", itemsize, most, chunk_bytes
    return plan.cached(what, lambda: _message_count(plan, itemsize, most, chunk_bytes))


def _message_count(plan: JobPlan, itemsize: int, most: int, chunk_bytes: float) -> int:
    known: dict[tuple[object, int], int] = {}
    found = 0
    for rank, operations in enumerate(plan.exchanges):
        for operation, many in operations:
            if isinstance(operation, Message):
                found += many * operation.sends * _chunks(operation.numel * itemsize, chunk_bytes)
            elif isinstance(operation, GroupCollective):
                key = operation.exchange_key, plan.groups[operation.group][1].index(rank)
                if key not in known:
                    known[key] = _sends(plan, operation, key[1], itemsize, chunk_bytes)
                found += many * known[key]
            if found > most:
                return found
    return found


def _sends(plan: JobPlan, operation: GroupCollective, own: int, itemsize: int, chunk_bytes: float) -> int:
    if operation.uneven:  # a count and the elements for each other member
        sent = [numel for peer, numel in enumerate(operation.sent_rows()[own]) if peer != own]
        told = rows_algorithm_of(operation.collective, operation.algorithm).counts_known
        return (0 if told else len(sent)) + sum(_chunks(numel * itemsize, chunk_bytes) for numel in sent)
    named, groups = operation.collective, plan.locality_of(operation.group)
    algorithm = resolve_algorithm(operation, groups, itemsize, plan.tuning)
    count = _sent.__wrapped__ if is_file_name(named) or is_file_name(algorithm) else _sent
    return count(named, algorithm, operation.numel, groups, own, itemsize, chunk_bytes)


@lru_cache(4096)  # searches request the same collectives repeatedly
def _sent(
    named: str,
    algorithm: str,
    numel: int,
    groups: tuple[int, ...],
    own: int,
    itemsize: int,
    chunk_bytes: float,
) -> int:
    made, elements = _made(named, algorithm, numel, groups, own, itemsize)
    bounds = made.bounds(elements)
    strands = (strand for stages in made.channels for stage in stages for strand in stage)
    sends = (transfer for strand in strands for step in strand for transfer in step.sends)
    sizes = (sum(bounds[end] - bounds[start] for start, end in transfer.runs) for transfer in sends)
    return sum(_chunks(size * itemsize, chunk_bytes) for size in sizes)


def _chunks(size_bytes: int, chunk_bytes: float) -> int:
    return max(1, math.ceil(size_bytes / chunk_bytes))


Events = Generator[list[Event], None, None]


@dataclass(frozen=True)
class Call:
    """One member's part in a collective; `key` is unique per collective."""

    members: Members
    own: int
    key: Key
    dscp: int

    def ends(self, source: int, target: int) -> Ends:
        """Return the ranks of two members."""
        return self.members[source], self.members[target]


class CollectiveDriver(Messaging):
    """A driver that runs collectives as coroutines, which wait for their messages; `itemsize` is bytes per element."""

    itemsize: int

    def begin(self, steps: Events) -> Event:
        """Run a generator; the returned event happens at its end."""
        event = Event()
        self.drive(steps, event.trigger)
        return event

    def drive(self, steps: Events, over: Callable[[], None]) -> None:
        """Run a generator until it has to wait; resume it when all events it waits for have happened."""
        for events in steps:
            waiting = [event for event in events if not event.done]
            if len(waiting) == 1:
                waiting[0].callbacks.append(partial(self.drive, steps, over))
                return
            if waiting:
                missing = [len(waiting)]

                def one(missing: list[int] = missing) -> None:
                    missing[0] -= 1
                    if not missing[0]:
                        self.drive(steps, over)

                for event in waiting:
                    event.callbacks.append(one)
                return
        over()

    def exchange(self, call: Call, rows: list[list[int]], how: RowsAlgorithm) -> Events:
        """Run an all_to_all_v as in `algorithms.all_to_all_v`: each pair's count directly precedes its elements."""
        size = len(call.members)
        strands = min(how.concurrency, size - 1)
        yield [
            self.begin(self._exchange_strand(call, rows, range(1 + first, size, strands), how))
            for first in range(strands)
        ]

    def _exchange_strand(
        self, call: Call, rows: list[list[int]], distances: range, how: RowsAlgorithm
    ) -> Events:
        sends = []
        own, size = call.own, len(call.members)
        for distance in distances:
            target, source = (own + distance) % size, (own - distance) % size
            to, back = call.ends(own, target), call.ends(source, own)
            waits, data = [], []
            back_bytes = rows[source][own] * self.itemsize
            if not how.counts_known:
                waits = [self.receive((*call.key, "count", *back), back, COUNT_BYTES, call.dscp)]
            if rows[source][own] and how.posts_ahead:
                data = [self.receive((*call.key, *back), back, back_bytes, call.dscp)]
            if not how.counts_known:
                sends.append(self.send((*call.key, "count", *to), to, COUNT_BYTES, call.dscp))
            if rows[own][target]:
                sends.append(self.send((*call.key, *to), to, rows[own][target] * self.itemsize, call.dscp))
            yield waits
            if rows[source][own] and not how.posts_ahead:
                data = [self.receive((*call.key, *back), back, back_bytes, call.dscp)]
            yield data
        yield sends

    def channel(self, key: Key, dscp: int, stages: tuple[SizedStage, ...]) -> Events:
        """Run one channel of a collective; channels run in parallel on different parts of the array."""
        for number, stage in enumerate(stages):
            if len(stage) == 1:
                yield from self._strand((*key, number, 0), dscp, stage[0])
                continue
            yield [
                self.begin(self._strand((*key, number, index), dscp, strand))
                for index, strand in enumerate(stage)
            ]

    def _strand(self, key: Key, dscp: int, strand: tuple[SizedRound, ...]) -> Events:
        def post(step: SizedRound) -> list[Event]:
            return [self.receive((*key, *ends), ends, size, dscp) for ends, size in step.receives]

        sends = []
        posted = [post(step) for step in strand[:AHEAD]]
        for number, step in enumerate(strand):
            sends += [self.send((*key, *ends), ends, size, dscp) for ends, size in step.sends]
            yield posted[number]
            if number + AHEAD < len(strand):
                posted.append(post(strand[number + AHEAD]))
        yield sends

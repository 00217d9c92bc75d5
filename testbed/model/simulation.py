"""A job's plan carried out by nobody on a fluid network: when everything begins and ends, or why it never would.

Ranks' operations start by the same rule as on real ranks (`workload.plan.Tracker`), and collectives send the messages
of the same plans. Computing takes its time exactly, messages what the fluid makes of them and `message_s` at each end.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from random import Random

from testbed.collectives.late_counts import COUNT_BYTES
from testbed.collectives.plan import Stage, Strand, Transfer
from testbed.collectives.registry import rows_algorithm_of
from testbed.errors import TestbedError
from testbed.model.fluid import Fluid
from testbed.model.folding import Folder, Isolated, software_of
from testbed.model.messages import collective_plan
from testbed.model.waiting import Event, Mailbox, SendBuffer
from testbed.paths.network import Ends, Members, Network, Path, arrival_s, drawn_arrival_s
from testbed.workload.plan import Computing, GroupCollective, JobPlan, Message, Operation, Pause, Tracker

Key = tuple[object, ...]
Events = Generator[list[Event], None, None]


class Stuck(TestbedError, ValueError):
    """A plan that never comes to its end; the message says who waits for what."""


@dataclass(frozen=True)
class Timeline:
    """When each operation began and ended, in seconds from the step's start; `spans[rank][index of the operation]`."""

    spans: tuple[tuple[tuple[float, float], ...], ...]

    @property
    def step_time_s(self) -> float:
        """Until the last rank is done."""
        return max((end for rank in self.spans for _, end in rank), default=0.0)


def simulate(
    plan: JobPlan,
    network: Network,
    itemsize: int,
    message_s: float = 0.0,
    byte_s: float = 0.0,
    *,
    folded: bool = False,
    draws: Sequence[Random] = (),
) -> Timeline:
    """Carry the plan out once. itemsize: bytes of an element. message_s, byte_s: what software adds at each end.

    folded: each collective is one flow through all that its messages go through, and takes alone on the network exactly
    what it takes message by message. draws: of those, where losses make messages late, each says which, once for all of
    the plan, and the one of median length is returned; without, and in collectives that are folded, all are late by the
    mean. Stuck.
    """
    whole = _Simulation(plan, network, itemsize, message_s, byte_s, folded)
    if not draws:
        return whole.run()
    drawn = [whole.again(partial(drawn_arrival_s, draw)).run() for draw in draws]
    return sorted(drawn, key=lambda timeline: timeline.step_time_s)[(len(drawn) - 1) // 2]


@dataclass(frozen=True)
class _Call:
    """One member's part in a collective; or a piece of that, beside which others go on. key: tells it apart."""

    members: Members
    own: int
    key: Key
    dscp: int

    def part(self, number: int) -> _Call:
        """The piece of this number."""
        return _Call(self.members, self.own, (*self.key, number), self.dscp)

    def ends(self, source: int, target: int) -> Ends:
        """The ranks of two members."""
        return self.members[source], self.members[target]


class _Simulation:
    def __init__(
        self,
        plan: JobPlan,
        network: Network,
        itemsize: int,
        message_s: float,
        byte_s: float,
        folded: bool,
        arrival_s: Callable[[Sequence[Path], float], float] = arrival_s,
    ) -> None:
        self.plan, self.itemsize, self.message_s, self.byte_s = plan, itemsize, message_s, byte_s
        self.network, self.arrival_s = network, arrival_s
        software = {software_of(rank): 1.0 for rank in range(len(plan.ranks))}
        self.fluid = Fluid({**network.capacities, **software}, network.queues, network.classes)
        self.busy_until_s = [0.0] * len(plan.ranks)
        self.worked_s = [0.0] * len(plan.ranks)
        self.sending: dict[Ends, int] = {}
        # when lossy connections are done with what they have
        self.until_s: dict[tuple[Ends, int], float] = {}
        self.buffers: dict[tuple[Ends, int], SendBuffer] = {}
        self.burst_bytes = 0.0
        self.now_s = 0.0
        self.agenda: list[tuple[float, int, Callable[[], None]]] = []
        self.number = count()
        self.trackers = [Tracker(operations) for operations in plan.ranks]
        self.begun: list[dict[int, float]] = [{} for _ in plan.ranks]
        self.ended: list[dict[int, float]] = [{} for _ in plan.ranks]
        self.boxes: dict[Key, Mailbox] = {}
        self.sequence: dict[tuple[int, int], int] = {}
        self.folder = Folder(network, itemsize, plan.tuning, self._alone) if folded else None
        self.gathered: dict[Key, list[Callable[[], None]]] = {}

    def again(self, arrival_s: Callable[[Sequence[Path], float], float]) -> _Simulation:
        """The same from its beginning, but for when messages arrive; what is folded stays."""
        costs = self.message_s, self.byte_s
        other = _Simulation(self.plan, self.network, self.itemsize, *costs, False, arrival_s)
        other.folder = self.folder
        return other

    def run(self) -> Timeline:
        for rank in range(len(self.plan.ranks)):
            self._start_ready(rank)
        while True:
            while self.agenda and self.agenda[0][0] <= self.now_s:
                heapq.heappop(self.agenda)[-1]()
            step_s = self.fluid.next_s()
            if self.agenda and self.agenda[0][0] <= self.now_s + step_s:
                # what is told of messages that leave in this very moment happens in it
                moment_s = self.agenda[0][0]
                step_s, self.now_s = moment_s - self.now_s, moment_s
                self.fluid.advance(step_s)
            elif step_s < math.inf:
                self.now_s += step_s
                self.fluid.advance(step_s)
            else:
                break
        if any(tracker.open for tracker in self.trackers):
            raise Stuck(self._why())
        return Timeline(
            tuple(
                tuple((self.begun[rank][index], self.ended[rank][index]) for index in range(len(operations)))
                for rank, operations in enumerate(self.plan.ranks)
            )
        )

    def _why(self) -> str:
        waits = []
        for rank, tracker in enumerate(self.trackers):
            if tracker.open:
                names = [self.plan.ranks[rank][index].name for index in tracker.under_way()]
                waits.append(f"rank {rank} in {', '.join(names[:3])}")
        return f"never comes to an end: {'; '.join(waits[:8])}"

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.agenda, (self.now_s + seconds, next(self.number), action))

    # ---- operations

    def _start_ready(self, rank: int) -> None:
        tracker = self.trackers[rank]
        while tracker.ready:
            index = tracker.ready.pop(0)
            self.begun[rank][index] = self.now_s
            self._start(rank, index, self.plan.ranks[rank][index])

    def _start(self, rank: int, index: int, operation: Operation) -> None:
        def over() -> None:
            self.ended[rank][index] = self.now_s
            self.trackers[rank].done(index)
            self._start_ready(rank)

        if isinstance(operation, Computing | Pause):
            self._later(operation.duration_s, over)
        elif isinstance(operation, Message):
            ends = (rank, operation.peer) if operation.sends else (operation.peer, rank)
            key = ("message", *ends, operation.tag)
            if operation.sends:
                size_bytes = operation.numel * self.itemsize
                dscp = self.plan.dscp(operation)
                self._send(key, ends, size_bytes, dscp, self.plan.holds_receivers).then.append(over)
            else:
                self._receive(key).and_then(over)
        elif isinstance(operation, GroupCollective):
            if self.folder is None:
                self._drive(self._collective(rank, operation), over)
            else:
                self._join(rank, operation, self.folder, over)

    def _send(self, key: Key, ends: Ends, size_bytes: int, dscp: int, held: bool = False) -> Event:
        """Begin to send; the event is that the connection has taken the last byte."""
        taken, box = Event(), self._box(key)
        here, there = ends
        paths, whole_bytes = self.network.paths_of(ends, dscp), self.network.whole_bytes(ends, size_bytes)
        latency_s = self.arrival_s(paths, whole_bytes)
        least_s = max(path.least_s(whole_bytes / len(paths)) for path in paths)
        shares = [path.shares for path in paths]
        buffer = self.buffers.setdefault((ends, dscp), SendBuffer(self.network.send_buffer_bytes))
        until_s = 0.0

        def sent() -> None:
            late_s = latency_s + max(0.0, until_s - self.now_s)
            self._later(late_s, lambda: self._work(there, size_bytes, box.arrive))
            self.sending[ends] -= size_bytes
            buffer.leave(whole_bytes)

        def begin() -> None:
            nonlocal until_s
            self.sending[ends] = self.sending.get(ends, 0) + size_bytes
            self.burst_bytes = max(self.burst_bytes, self.sending[ends])
            ahead_s = self.fluid.ahead_s((ends, dscp), shares, whole_bytes)
            until_s = self.now_s + ahead_s
            if least_s:
                until_s = max(until_s, max(self.now_s, self.until_s.get((ends, dscp), 0.0)) + least_s)
                self.until_s[ends, dscp] = until_s
            self.fluid.send((ends, dscp), shares, whole_bytes, sent, in_turn=self.network.sends_at_once)
            buffer.put(whole_bytes, taken)

        def hand_over() -> None:
            self._work(here, size_bytes, begin)

        box.leave(hand_over, held=held)
        return taken

    def _work(self, rank: int, size_bytes: float, action: Callable[[], None]) -> None:
        """A rank's software handles one message after the other."""
        cost_s = self.message_s + size_bytes * self.byte_s
        self.worked_s[rank] += cost_s
        self.busy_until_s[rank] = max(self.busy_until_s[rank], self.now_s) + cost_s
        self._later(self.busy_until_s[rank] - self.now_s, action)

    def _receive(self, key: Key) -> Event:
        return self._box(key).receive()

    def _box(self, key: Key) -> Mailbox:
        return self.boxes.setdefault(key, Mailbox())

    def _begin(self, steps: Events) -> Event:
        """Run a generator; the event is its end."""
        event = Event()
        self._drive(steps, event.happen)
        return event

    def _drive(self, steps: Events, over: Callable[[], None]) -> None:
        """Run a generator until it has to wait; go on when all of what it waits for has happened."""
        for events in steps:
            waiting = [event for event in events if not event.done]
            if waiting:
                missing = [len(waiting)]

                def one(missing: list[int] = missing) -> None:
                    missing[0] -= 1
                    if not missing[0]:
                        self._drive(steps, over)

                for event in waiting:
                    event.then.append(one)
                return
        over()

    # ---- collectives as one flow each

    def _join(self, rank: int, operation: GroupCollective, folder: Folder, over: Callable[[], None]) -> None:
        """All members' part begins when the last of them comes, and ends for all at once."""
        _, members = self.plan.groups[operation.group]
        together = self.gathered.setdefault(self._number(rank, operation), [])
        together.append(over)
        if len(together) < len(members):
            return

        def done() -> None:
            for end in together:
                end()

        buildings = self.plan.buildings_of(operation.group)
        flow = folder.flow(operation, members, buildings, self.plan.dscp(operation))
        if flow is None:
            done()
            return

        def left() -> None:
            self._later(flow.rest_s, done)

        self.fluid.send(flow, [flow.shares], flow.size_bytes, left, flow.burst_bytes)

    def _alone(self, operation: GroupCollective, members: Members, dscp: int) -> Isolated:
        """What a collective takes, message by message, with nothing else on the network."""
        alone = replace(operation, group=0, after=(), stream="")
        ranks = tuple((alone,) if rank in members else () for rank in range(len(self.plan.ranks)))
        dscps, buildings = {operation.kind: dscp}, self.plan.buildings
        plan = JobPlan(
            ranks, (("alone", members),), dscps=dscps, buildings=buildings, tuning=self.plan.tuning
        )
        costs = self.message_s, self.byte_s
        made = _Simulation(plan, self.network, self.itemsize, *costs, False)
        return Isolated(made.run().step_time_s, made.worked_s, made.burst_bytes)

    # ---- collectives, by the plans that real ranks have

    def _number(self, rank: int, operation: GroupCollective) -> Key:
        """A rank's next collective of a group, by a name that is the same for all members."""
        number = self.sequence.get((rank, operation.group), 0)
        self.sequence[rank, operation.group] = number + 1
        return "collective", operation.group, number

    def _collective(self, rank: int, operation: GroupCollective) -> Events:
        _, members = self.plan.groups[operation.group]
        key = self._number(rank, operation)
        call = _Call(members, members.index(rank), key, self.plan.dscp(operation))
        if operation.uneven:
            how = rows_algorithm_of(operation.collective, operation.algorithm)
            yield from self._exchange(call, operation.sent_rows(), how.concurrency)
            return
        made, elements = collective_plan(self.plan, operation, call.own, self.itemsize)
        bounds = made.bounds(elements)
        yield [
            self._begin(self._channel(call.part(channel), bounds, stages))
            for channel, stages in enumerate(made.channels)
        ]

    def _exchange(self, call: _Call, rows: list[list[int]], concurrency: int) -> Events:
        """As `collectives.late_counts` does it: each pair's count, and right behind it the elements."""
        size = len(call.members)
        strands = min(concurrency, size - 1)
        yield [
            self._begin(self._exchange_strand(call, rows, range(1 + first, size, strands)))
            for first in range(strands)
        ]

    def _exchange_strand(self, call: _Call, rows: list[list[int]], distances: range) -> Events:
        sends = []
        own, size = call.own, len(call.members)
        for distance in distances:
            target, source = (own + distance) % size, (own - distance) % size
            to, back = call.ends(own, target), call.ends(source, own)
            sends.append(self._send((*call.key, "count", *to), to, COUNT_BYTES, call.dscp))
            if rows[own][target]:
                sends.append(self._send((*call.key, *to), to, rows[own][target] * self.itemsize, call.dscp))
            yield [self._receive((*call.key, "count", *back))]
            if rows[source][own]:
                yield [self._receive((*call.key, *back))]
        yield sends

    def _channel(self, call: _Call, bounds: list[int], stages: tuple[Stage, ...]) -> Events:
        for number, stage in enumerate(stages):
            part = call.part(number)
            yield [
                self._begin(self._strand(part.part(index), bounds, strand))
                for index, strand in enumerate(stage)
            ]

    def _strand(self, call: _Call, bounds: list[int], strand: Strand) -> Events:
        def size_bytes(transfer: Transfer) -> int:
            return sum(bounds[end] - bounds[start] for start, end in transfer.runs) * self.itemsize

        sends = []
        for step in strand:
            for transfer in step.sends:
                if size := size_bytes(transfer):
                    ends = call.ends(call.own, transfer.peer)
                    sends.append(self._send((*call.key, *ends), ends, size, call.dscp))
            receives = []
            for transfer in step.receives:
                if size_bytes(transfer):
                    receives.append(self._receive((*call.key, *call.ends(transfer.peer, call.own))))
            yield receives
        yield sends

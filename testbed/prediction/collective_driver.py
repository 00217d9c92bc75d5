"""A collective's messages in their order: generators, which wait for what has to happen first."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial

from testbed.comm.collectives.algorithms.all_to_all_v import COUNT_BYTES
from testbed.comm.collectives.plan_executor import AHEAD
from testbed.comm.collectives.registry import RowsAlgorithm
from testbed.comm.transport import Software
from testbed.net.paths.network import Ends, LossDelay, Members, Network
from testbed.prediction.connection_state import NOTHING_KEPT, Kept
from testbed.prediction.events import Event
from testbed.prediction.message_list import SizedRound, SizedStage
from testbed.prediction.protocols import MEAN, Key, Messaging

Events = Generator[list[Event], None, None]


@dataclass(frozen=True)
class Call:
    """One member's part in a collective. key: tells it apart."""

    members: Members
    own: int
    key: Key
    dscp: int

    def ends(self, source: int, target: int) -> Ends:
        """The ranks of two members."""
        return self.members[source], self.members[target]


class Carrying(Messaging):
    """Messaging, for collectives that ranks carry out. itemsize: bytes of an element."""

    def __init__(
        self,
        network: Network,
        ranks: int,
        itemsize: int,
        software: Software,
        lateness: LossDelay = MEAN,
        kept: Kept = NOTHING_KEPT,
    ) -> None:
        super().__init__(network, ranks, software, lateness, kept)
        self.itemsize = itemsize

    def begin(self, steps: Events) -> Event:
        """Run a generator; the event is its end."""
        event = Event()
        self.drive(steps, event.happen)
        return event

    def drive(self, steps: Events, over: Callable[[], None]) -> None:
        """Run a generator until it has to wait; go on when all of what it waits for has happened."""
        for events in steps:
            waiting = [event for event in events if not event.done]
            if len(waiting) == 1:
                waiting[0].then.append(partial(self.drive, steps, over))
                return
            if waiting:
                missing = [len(waiting)]

                def one(missing: list[int] = missing) -> None:
                    missing[0] -= 1
                    if not missing[0]:
                        self.drive(steps, over)

                for event in waiting:
                    event.then.append(one)
                return
        over()

    def exchange(self, call: Call, rows: list[list[int]], how: RowsAlgorithm) -> Events:
        """An all_to_all_v as `algorithms.all_to_all_v` does it: each pair's count, and right behind it the elements."""
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
            if not how.told:
                waits = [self.receive((*call.key, "count", *back), back, COUNT_BYTES, call.dscp)]
            if rows[source][own] and how.ahead:
                data = [self.receive((*call.key, *back), back, back_bytes, call.dscp)]
            if not how.told:
                sends.append(self.send((*call.key, "count", *to), to, COUNT_BYTES, call.dscp))
            if rows[own][target]:
                sends.append(self.send((*call.key, *to), to, rows[own][target] * self.itemsize, call.dscp))
            yield waits
            if rows[source][own] and not how.ahead:
                data = [self.receive((*call.key, *back), back, back_bytes, call.dscp)]
            yield data
        yield sends

    def channel(self, key: Key, dscp: int, stages: tuple[SizedStage, ...]) -> Events:
        """One of the ways side by side that a collective's elements go."""
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

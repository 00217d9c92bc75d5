"""Plan executor: posts receives ahead, sends each round's blocks, and advances when the round's receives are done."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from testbed.comm.collectives.arrays import Array, Data, as_bytes
from testbed.comm.collectives.plan import Plan, Round, Runs, Stage, Strand
from testbed.comm.collectives.progress_engine import Engine, Position, Steps
from testbed.comm.flight_recorder import Record
from testbed.comm.transport import Request, TrafficClass, Transport

# rounds for which receives are posted ahead, so that messages of a faster peer have a buffer
AHEAD = 2
Posted = list[tuple[Runs, Array, Request]]


class Group:
    """The ranks of one communicator, numbered from 0; `ranks`: their numbers on the transport, which may have more.

    transport: carries the messages; None: the engine's.
    """

    def __init__(
        self,
        engine: Engine,
        ranks: Sequence[int],
        traffic: TrafficClass,
        transport: Transport | None = None,
    ) -> None:
        self.engine = engine
        self.transport = transport or engine.transport
        self.ranks = ranks
        self.traffic = traffic

    def send(self, peer: int, tag: int, view: memoryview, record: Record | None) -> Request:
        """Start sending to a member."""
        rank = self.ranks[peer]
        if record is not None:
            record.sent(rank, len(view), self.transport.now_s)
        return self.transport.isend(rank, tag, view, self.traffic)

    def receive(self, peer: int, tag: int, view: memoryview, record: Record | None) -> Request:
        """Start receiving from a member; the arrival is recorded when it happens, perhaps long before it is needed."""
        rank = self.ranks[peer]
        if record is None:
            return self.transport.irecv(rank, tag, view, self.traffic)
        record.expected(rank, len(view), self.transport.now_s)
        request = self.transport.irecv(rank, tag, view, self.traffic)
        if request.done:
            self._on_received(record, request)
        else:
            request.on_done = partial(self._on_received, record)
        return request

    def _on_received(self, record: Record, request: Request) -> None:
        if request.error is None:
            record.received(request.peer, len(request.view), self.transport.now_s)


def execute_plan(group: Group, plan: Plan, data: Data, tag: int, position: Position) -> Steps:
    """Execute one rank's part of a collective. Uses tags from `tag` on, one per strand.

    Only the end waits for sends: a block can come back, and change, only after its receiver has all of it.
    """
    sends: list[Request] = []
    if len(plan.channels) == 1:
        yield from _channel(group, plan.stages, data, tag, position, sends)
    else:
        tasks = []
        for stages in plan.channels:
            tasks.append(group.engine.start(_channel(group, stages, data, tag, position, sends)))
            tag += sum(map(len, stages))
        yield tuple(tasks)
    yield tuple([request for request in sends if not request.done])


def _channel(
    group: Group, stages: Sequence[Stage], data: Data, tag: int, position: Position, sends: list[Request]
) -> Steps:
    for stage in stages:
        if len(stage) == 1:
            yield from _strand(group, stage[0], data, tag, position, sends)
        else:
            start = group.engine.start
            yield tuple(
                start(_strand(group, strand, data, tag + number, position, sends))
                for number, strand in enumerate(stage)
                if strand
            )
        tag += len(stage)


def _strand(
    group: Group, strand: Strand, data: Data, tag: int, position: Position, sends: list[Request]
) -> Steps:
    count = len(strand)
    record = position.record
    posted = [_post(group, step, data, tag, record) for step in strand[:AHEAD]]
    for number, (phase, outgoing, _, reduces) in enumerate(strand):
        position.phase, position.round, position.rounds = phase, number + 1, count
        if record is not None:
            record.position(phase, number + 1, count)
        if (
            sends and sends[0].done
        ):  # drop finished sends: together, their packed buffers exceed the whole array
            sends[:] = [request for request in sends if not request.done]
        for peer, runs in outgoing:
            array = data.outgoing(runs)
            if array.size:
                sends.append(group.send(peer, tag, as_bytes(array), record))
        expected = posted[number]
        if expected:
            yield tuple([request for _, _, request in expected])
            for runs, array, _ in expected:
                data.arrived(runs, reduces, array)
            posted[number] = []
        if number + AHEAD < count:
            posted.append(_post(group, strand[number + AHEAD], data, tag, record))


def _post(group: Group, step: Round, data: Data, tag: int, record: Record | None) -> Posted:
    posted = []
    for peer, runs in step.receives:
        array = data.incoming(runs, step.reduces)
        if array.size:
            posted.append((runs, array, group.receive(peer, tag, as_bytes(array), record)))
    return posted

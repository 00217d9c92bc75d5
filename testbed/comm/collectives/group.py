"""A group of ranks: its members, point-to-point messages, timing, and the parts that all operations share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from testbed.comm.collectives.algorithm_selection import TuningTable
from testbed.comm.collectives.arrays import (
    NOTHING,
    Array,
    Blocks,
    Operation,
    Reduction,
    as_bytes,
    check_array,
    operation_named,
    reduction_name,
)
from testbed.comm.collectives.plan import Plan
from testbed.comm.collectives.plan_executor import Group, execute_plan
from testbed.comm.collectives.progress_engine import Engine, Position, Steps, Work
from testbed.comm.collectives.registry import (
    AUTO,
    Algorithm,
    Collective,
    PlanRequest,
    algorithm_of,
    collective_of,
)
from testbed.comm.flight_recorder import Record
from testbed.comm.transport import TrafficClass, TransportError

LARGEST_TAG = 2**32 - 1
# a tag: 1 bit for point-to-point, 16 for the communicator, then either the caller's tag, or a sequence number (30 bits,
# which may wrap) and a strand within a collective
COMMUNICATORS = 1 << 16
POINT_TO_POINT = 1 << 62
COMMUNICATOR_BIT = 46
_STRAND_BITS = 16
_SEQUENCE_MASK = (1 << 30) - 1
WORLD = 0  # the number of the communicator of all ranks


class P2POp(NamedTuple):
    """One message of `RankGroup.batch_isend_irecv`."""

    kind: Literal["isend", "irecv"]
    array: Array
    peer: int
    tag: int = 0


class Planned(NamedTuple):
    """A rank's part of a collective, and the name of the algorithm that made it."""

    plan: Plan
    algorithm: str


class RankGroup:
    """Ranks of a transport, numbered from 0 in the order of `ranks`, which are their numbers on the transport.

    groups: the building of each rank.
    traffic: class of all their messages.
    timeout_s: timeout of every operation without its own.
    name: name for error messages.
    number: separates their messages from those of other communicators of the same transport.
    tuning: table from which `auto` chooses.
    fails_with: the ranks whose loss ends the group; None: all.
    control_delay: returns the time in seconds that the control part of each further operation takes; None: none.
    """

    control_delay: Callable[[], float] | None = None

    def __init__(
        self,
        engine: Engine,
        ranks: Sequence[int],
        groups: tuple[int, ...],
        timeout_s: float,
        traffic: TrafficClass,
        name: str,
        number: int,
        tuning: TuningTable,
        fails_with: Sequence[int] | None = None,
    ) -> None:
        self.transport = engine.transport
        self.ranks = ranks
        self.rank = ranks.index(engine.transport.rank)
        self.size = len(ranks)
        self.groups = groups
        self.timeout_s = timeout_s
        self.traffic = traffic
        self.name = name
        self._engine = engine
        self._number = number
        self._scope = engine.scopes.add(number, ranks if fails_with is None else fails_with)
        self._group = Group(engine, ranks, traffic)
        if engine.recorder is not None:
            engine.recorder.group(number, name, tuple(ranks))
        self.tuning = tuning
        self._sequence = 0
        self._agreements = 0

    # ---- point to point

    def isend(self, array: Array, peer: int, tag: int = 0, timeout_s: float | None = None) -> Work:
        """Start sending `array` to `peer`; do not modify it until the Work is done. Tags: 0 to 2**32 - 1."""
        check_array(array, "array")
        return self._message("isend", f"isend to rank {peer}, tag {tag}", array, peer, tag, timeout_s)

    def irecv(self, array: Array, peer: int, tag: int = 0, timeout_s: float | None = None) -> Work:
        """Start receiving from `peer` into `array`, whose size in bytes is the message's. Tags: 0 to 2**32 - 1."""
        check_array(array, "array", writes=True)
        return self._message("irecv", f"irecv from rank {peer}, tag {tag}", array, peer, tag, timeout_s)

    def send(self, array: Array, peer: int, tag: int = 0, timeout_s: float | None = None) -> None:
        """Send as `isend` does, and wait."""
        self.isend(array, peer, tag, timeout_s).wait()

    def recv(self, array: Array, peer: int, tag: int = 0, timeout_s: float | None = None) -> None:
        """Receive as `irecv` does, and wait."""
        self.irecv(array, peer, tag, timeout_s).wait()

    def batch_isend_irecv(self, operations: Sequence[P2POp], timeout_s: float | None = None) -> list[Work]:
        """Start all of these messages and return a Work for each.

        Receives are posted first, so that no message has to be staged while another is posted.
        """
        works: dict[int, Work] = {}
        for kind in ("irecv", "isend"):
            for number, operation in enumerate(operations):
                if operation.kind == kind:
                    begin = self.isend if kind == "isend" else self.irecv
                    works[number] = begin(operation.array, operation.peer, operation.tag, timeout_s)
        for number, operation in enumerate(operations):
            if number not in works:
                raise ValueError(
                    f"operations[{number}]: kind: got {operation.kind!r}, expected isend or irecv"
                )
        return [works[number] for number in range(len(operations))]

    # ---- time and failure

    def barrier(self, async_op: bool = False, timeout_s: float | None = None) -> Work:
        """Wait until every rank has called `barrier` (dissemination barrier).

        In round k, signal the rank 2^k ahead and wait for the one 2^k behind: ceil(log2 n) rounds, empty messages.
        """

        def steps(tag: int, position: Position) -> Steps:
            distance, record = 1, position.record
            while distance < self.size:
                position.phase = f"distance {distance}"
                receive = self._group.receive((self.rank - distance) % self.size, tag, NOTHING, record)
                yield self._group.send((self.rank + distance) % self.size, tag, NOTHING, record), receive
                distance *= 2

        return self._collective("barrier", steps, async_op, timeout_s, OperationInfo())

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass, as a computation would, while operations progress.

        Like `progress`, it raises an error when an operation of this communicator fails or has failed.
        """
        self._engine.sleep(seconds, self._scope)

    def progress(self, timeout_s: float = 0.0) -> None:
        """Make progress on the operations of all communicators; waits up to `timeout_s` for something to do."""
        self._engine.progress(timeout_s)
        self._engine.check(self._scope)

    @property
    def engine(self) -> Engine:
        """The engine that executes the operations of this rank, for all its communicators."""
        return self._engine

    @property
    def ended(self) -> int:
        """The number of operations of this rank that have ended, for all its communicators."""
        return self._engine.ended

    def abort(self, reason: str) -> None:
        """End every operation of this communicator with Revoked, here and, through a note, on all its members.

        It works like `ncclCommAbort`, but reaches all members, as `MPIX_Comm_revoke` does; only `agree` and `shrink`
        work afterwards. On the communicator of all ranks, from which the others were split, it ends everything on this
        rank with Aborted, and peers lose this rank. May be called by any thread or signal handler. The contents of
        arrays are undefined afterwards.
        """
        if self._number == WORLD:
            self._engine.abort(reason)
        else:
            self._engine.scopes.revoke(self._scope, reason)

    @property
    def failure(self) -> TransportError | None:
        """The error that has ended this communicator for good; None while it works."""
        return self._engine.failure or self._scope.failure

    # ---- shared by all operations

    def _check_rank(self, name: str, rank: int) -> int:
        if not 0 <= rank < self.size:
            raise ValueError(f"{name}: got {rank}, expected 0 to {self.size - 1}")
        return rank

    def _message_tag(self, tag: int) -> int:
        if not 0 <= tag <= LARGEST_TAG:
            raise ValueError(f"tag: got {tag}, expected 0 to 2**32 - 1")
        return POINT_TO_POINT | self._number << COMMUNICATOR_BIT | tag

    def _plan(
        self, collective: str | Collective, algorithm: str | Algorithm, size_bytes: int, root: int = 0
    ) -> Planned:
        """Return this rank's plan; `size_bytes` as `algorithm_selection.traffic` counts it."""
        known = collective_of(collective)
        if algorithm == AUTO:
            algorithm = self.tuning.choose(known, size_bytes, self.groups)
        made = algorithm_of(known, algorithm)
        plan = made(PlanRequest(self.rank, self.groups, root, made.pieces(size_bytes, self.size)))
        return Planned(plan, made.name)

    def _blocks(
        self,
        planned: Planned,
        source: Array,
        target: Array,
        tag: int,
        position: Position,
        operation: Operation | None = None,
    ) -> Steps:
        data = Blocks(source, target, planned.plan.bounds(target.size), operation)
        return execute_plan(self._group, planned.plan, data, tag, position)

    def _execute(
        self,
        name: str,
        planned: Planned,
        array: Array,
        source: Array,
        target: Array,
        async_op: bool,
        timeout_s: float | None,
        op: str | Reduction | None = None,
        end: Callable[[], None] | None = None,
    ) -> Work:
        """Execute a plan on the blocks of `source` and `target`, then call `end`. array: for the record."""
        operation = None if op is None else operation_named(op)

        def steps(tag: int, position: Position) -> Steps:
            yield from self._blocks(planned, source, target, tag, position, operation)
            if end is not None:
                end()

        about = OperationInfo(array, planned.algorithm, "" if op is None else reduction_name(op))
        return self._collective(name, steps, async_op, timeout_s, about)

    def _collective(
        self,
        name: str,
        steps: Callable[[int, Position], Steps],
        async_op: bool,
        timeout_s: float | None,
        about: OperationInfo,
        result: object = None,
    ) -> Work:
        self._sequence += 1
        tag = self._number << COMMUNICATOR_BIT | (self._sequence & _SEQUENCE_MASK) << _STRAND_BITS
        title = f"{name} #{self._sequence}"
        position = Position(self._engine.record(self._number, self._sequence, name, *about))
        work = self._work(title, steps(tag, position), timeout_s, about.array, position, result)
        return work.begin(async_op)

    def _message(
        self,
        kind: Literal["isend", "irecv"],
        title: str,
        array: Array,
        peer: int,
        tag: int,
        timeout_s: float | None,
    ) -> Work:
        self._check_rank("peer", peer)
        wire_tag = self._message_tag(tag)
        record = self._engine.record(self._number, 0, kind, array, peer=self.ranks[peer], tag=tag)

        def steps() -> Steps:
            begin = self._group.send if kind == "isend" else self._group.receive
            request = begin(peer, wire_tag, as_bytes(array), record)
            yield (request,)

        return self._work(title, steps(), timeout_s, array, Position(record)).begin()

    def _work(
        self,
        name: str,
        steps: Steps,
        timeout_s: float | None,
        array: Array | None,
        position: Position,
        result: object = None,
    ) -> Work:
        record = position.record
        if self.control_delay is not None or self._engine.costs is not None or record is not None:
            steps = self._controlled(steps, array, record)
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        return Work(self._engine, name, self.name, steps, position, timeout_s, self._scope, result)

    def _controlled(self, steps: Steps, array: Array | None, record: Record | None) -> Steps:
        """Run an operation after its control part: kernel launch, buffer registration, handshake with peers."""
        costs = self._engine.costs
        delay_s = self.control_delay() if self.control_delay is not None else 0.0
        if costs is not None:
            address = 0 if array is None else array.__array_interface__["data"][0]
            delay_s += costs.before_s(address, 0 if array is None else array.nbytes)
        if delay_s > 0:
            yield (self._engine.timer(time.monotonic() + delay_s),)
        if record is not None:
            record.started(time.monotonic() if delay_s > 0 else record.scheduled_s)
        yield from steps
        if costs is not None and costs.after_s:
            yield (self._engine.timer(time.monotonic() + costs.after_s),)


class OperationInfo(NamedTuple):
    """An operation's array, algorithm and reduction, where it has them."""

    array: Array | None = None
    algorithm: str = ""
    op: str = ""

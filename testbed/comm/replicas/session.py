"""One rank's part in the steps of a job whose replicas fail and return, and `all_reduce(algorithm="ftar")`."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial

from testbed.comm.collectives import Array
from testbed.comm.collectives.arrays import check_array, finish, operation_named
from testbed.comm.collectives.group import COMMUNICATOR_BIT
from testbed.comm.collectives.progress_engine import Engine, Event, Position, Work
from testbed.comm.collectives.test_patterns import count_wrong, fill
from testbed.comm.flight_recorder import Record
from testbed.comm.replicas.member import Client, Member, RankDismissed, Summed
from testbed.comm.replicas.messages import CatchUp, CaughtUp, Operation, RanksLost, Stop, ToRank, View
from testbed.comm.replicas.ring import AnyOf, RingPosition, RingSettings, Signal, ring_all_reduce
from testbed.comm.replicas.state_transfer import transfer_state
from testbed.comm.transport import BEST_EFFORT, TrafficClass

Waits = Generator[tuple[AnyOf | Event, ...], None, None]
_POLL_S = 0.01
_CATCH_UP_TAG = 1 << 61  # plus the attempt's number
_CHECKPOINT_TAG = 1 << 60  # plus the numbers of epoch and step
_EPOCH_BIT, _STEP_BIT, _SEQUENCE_BIT = 32, 20, 1


@dataclass(frozen=True)
class SessionSettings:
    """Settings of a session.

    heartbeat_s: interval of heartbeats.
    state_bytes: state that a returning rank has to receive, in traffic class `traffic`.
    checkpoint_bytes: state sent to the next replica, in the same class, after every `checkpoint_every` steps.
    """

    heartbeat_s: float = 0.1
    ring: RingSettings = field(default_factory=RingSettings)
    state_bytes: int = 0
    traffic: TrafficClass = BEST_EFFORT
    checkpoint_bytes: int = 0
    checkpoint_every: int = 1


@dataclass
class PendingReduction:
    """An operation of this step: its saved input, and the array for its sum, which may be computed again."""

    ranks: tuple[int, ...]
    number: int
    traffic: TrafficClass
    op: str
    input: Array
    output: Array


class Session:
    """A rank's session in a fault-tolerant job. All of it progresses inside calls of the engine.

    The arrays of a step's operations belong to the session from their start until the step is committed, because
    their sums may change until then.

    replicas: the ranks of each replica, in the order of their inner coordinates.
    connection: this rank's connection to the coordinator.
    checkpoint_bytes: bytes of checkpoints sent so far.
    checkpoints: steps whose checkpoints this rank has received completely.
    stops: for each loss, when it was announced and when work resumed (CLOCK_MONOTONIC).
    """

    def __init__(
        self,
        engine: Engine,
        connection: socket.socket,
        replicas: Sequence[Sequence[int]],
        incarnation: int = 0,
        settings: SessionSettings | None = None,
    ) -> None:
        self.engine, self.settings = engine, settings or SessionSettings()
        self.replicas = tuple(map(tuple, replicas))
        rank = engine.transport.rank
        self.replica, self.place = next(
            (number, ranks.index(rank)) for number, ranks in enumerate(self.replicas) if rank in ranks
        )
        self.member = Member(incarnation)
        self.signal = Signal()
        self.stops: list[tuple[float, float]] = []
        self.sent_bytes = self.caught_up_bytes = self.caught_up_wrong = 0
        self.groups = 0  # replica groups of this rank so far
        self._sequence: Counter[int] = Counter()
        self._members: tuple[int, ...] = ()
        self._sent = 0
        self._pending: dict[Operation, PendingReduction] = {}
        self._stopped_s: float | None = None
        self._event = Event()
        self._transfer = partial(
            transfer_state, engine.transport, self.settings.ring, self.settings.traffic, self.signal
        )
        self.checkpoint_bytes = 0
        self.checkpoints: list[int] = []
        self.client = Client(connection, self.settings.heartbeat_s, lambda: engine.post(self._event))
        self._send_outbox()
        engine.start(self._listen())

    @property
    def members(self) -> tuple[int, ...]:
        """Replicas that take part, as of the latest view."""
        return self._members

    # ---- a step

    def wait_for_step(self, after: int = -1) -> View:
        """Wait until a step after `after` can be prepared. Raises Aborted if this rank is dismissed meanwhile."""
        self.wait(lambda: self.member.view is not None and self.member.step > after)
        assert self.member.view is not None
        return self.member.view

    def agree_on_start(self) -> float:
        """Report that this rank is ready, and return when the step starts for all ranks (CLOCK_MONOTONIC)."""
        self.member.ready()
        self._send_outbox()
        self.wait(lambda: self.member.start_s is not None)
        assert self.member.start_s is not None
        return self.member.start_s

    def finish(self) -> dict[Operation, Summed]:
        """Wait until the step, which has no further operations, is committed; returns each sum's members."""
        step = self.member.step
        self.member.finish(len(self._pending))
        self._send_outbox()
        self.wait(lambda: self.member.step > step)
        return self.member.committed

    def wait(self, condition: Callable[[], bool]) -> None:
        """Make progress until the condition holds."""
        while not condition():
            self.engine.check(None)
            self.engine.progress(1.0)

    def wait_for_dismissal(self, timeout_s: float) -> RankDismissed | None:
        """Return the dismissal sent after a local failure; None if there is none within `timeout_s`."""
        end_s = time.monotonic() + timeout_s
        while self.member.dismissed is None and time.monotonic() < end_s:
            for message in self.client.take():
                self.member.receive(message)
            time.sleep(_POLL_S)
        return self.member.dismissed

    def close(self) -> None:
        """Close the connection to the coordinator."""
        self.client.close()

    # ---- operations

    def next_operation(self, group: int) -> Operation:
        """Return the identifier of a group's next operation in this step."""
        operation = (group, self._sequence[group])
        self._sequence[group] += 1
        return operation

    def begin(self, operation: Operation, pending: PendingReduction) -> Waits:
        """Return the generator of an operation of this step, which repeats attempts until the sum is final."""
        self._pending[operation] = pending
        return self._until_summed(operation, pending)

    def _until_summed(self, operation: Operation, pending: PendingReduction) -> Waits:
        step = self.member.step
        while self.member.step == step:
            view = self.member.view
            if view is None:
                yield (AnyOf(self.signal),)
                continue
            work = pending.input.copy()
            members = view.members
            if len(members) > 1:
                place = self._ring_place(view, operation, pending)
                whole = yield from ring_all_reduce(
                    self.engine.transport, place, work, operation_named(pending.op), self.settings.ring
                )
                if not whole:
                    continue
            if self.member.complete(operation, view):
                finish(pending.op, work, len(members))
                pending.output[:] = work
                self._send_outbox()
                return

    def _ring_place(self, view: View, operation: Operation, pending: PendingReduction) -> RingPosition:
        members = view.members
        position, size = members.index(self.replica), len(members)
        tag = (
            pending.number << COMMUNICATOR_BIT
            | (view.epoch & 0x3FFF) << _EPOCH_BIT
            | (view.step & 0xFFF) << _STEP_BIT
            | operation[1] << _SEQUENCE_BIT
        )
        return RingPosition(
            position,
            size,
            pending.ranks[members[position - 1]],
            pending.ranks[members[(position + 1) % size]],
            tag,
            pending.traffic,
            self.signal,
            lambda: self.member.view is view,
        )

    # ---- messages from the coordinator

    def _listen(self) -> Waits:
        while True:
            self._event = Event()
            for message in self.client.take():
                self._receive(message)
            yield (self._event,)

    def _receive(self, message: ToRank) -> None:
        step = self.member.step
        repeated = self.member.receive(message)
        if isinstance(message, Stop):
            self._stopped_s = time.monotonic()
        elif isinstance(message, View):
            self._members = message.members
            if self.member.step != step:
                self._pending = {}
                self._sequence.clear()
                self._checkpoint(message)
            if self._stopped_s is not None:
                self.stops.append((self._stopped_s, time.monotonic()))
                self._stopped_s = None
        elif isinstance(message, RanksLost):
            for rank, incarnation in message.lost:
                self.engine.scopes.peer_returned(rank, incarnation)
        elif isinstance(message, CatchUp):
            self.engine.start(self._move_state(message))
        if self.member.dismissed is not None:
            self.engine.abort(self.member.dismissed.reason)
        self._send_outbox()
        self.signal.notify_all()
        for operation in sorted(repeated):
            self.engine.start(self._until_summed(operation, self._pending[operation]))

    def _send_outbox(self) -> None:
        while self._sent < len(self.member.outbox):
            self.client.send(self.member.outbox[self._sent])
            self._sent += 1

    def _checkpoint(self, view: View) -> None:
        """If the committed step is due for a checkpoint, send this rank's state to its peer in the next replica.

        Nothing waits for it: it runs in the background of steps, and is abandoned when a member is lost. The same step
        may be checkpointed again in another epoch.
        """
        own, members = self.settings, view.members
        if not own.checkpoint_bytes or not view.step or view.step % own.checkpoint_every or len(members) < 2:
            return
        place = members.index(self.replica)
        to, source = (self.replicas[members[(place + by) % len(members)]][self.place] for by in (1, -1))
        tag = _CHECKPOINT_TAG | (view.epoch & 0xFFFF) << 32 | view.step

        def wanted() -> bool:
            return self.member.dismissed is None and self.member.epoch == view.epoch

        def sent(array: Array) -> None:
            self.checkpoint_bytes += array.nbytes

        def send() -> Waits:
            yield from self._transfer(
                to, tag, own.checkpoint_bytes, wanted, sent, lambda array: array.fill(0)
            )

        def receive() -> Waits:
            if (yield from self._transfer(source, tag, own.checkpoint_bytes, wanted)):
                self.checkpoints.append(view.step)

        self.engine.start(send())
        self.engine.start(receive())

    # ---- state for returning replicas

    def _move_state(self, message: CatchUp) -> Waits:
        """Send or receive this rank's part of a catch-up, in its own traffic class."""
        sends = message.source == self.replica
        peer = self.replicas[message.target if sends else message.source][self.place]

        def write(array: Array) -> None:
            fill(array, 0, message.attempt)

        def moved(array: Array) -> None:
            if sends:
                self.sent_bytes += array.nbytes
            else:
                self.caught_up_bytes += array.nbytes
                self.caught_up_wrong += count_wrong(array, 1, message.attempt)

        whole = yield from self._transfer(
            peer,
            _CATCH_UP_TAG | message.attempt,
            self.settings.state_bytes,
            lambda: self._is_wanted(message, sends),
            moved,
            write if sends else None,
        )
        if whole and not sends and self._is_wanted(message, sends):
            self.member.outbox.append(CaughtUp(message.attempt))
            self._send_outbox()

    def _is_wanted(self, message: CatchUp, sends: bool) -> bool:
        """Return whether, to this rank's knowledge, the transfer is still wanted."""
        if self.member.dismissed is not None:
            return False
        return sends or self.member.catch_up is message


FTAR = "ftar"


class ReplicaGroup:
    """A communicator for all-reduces between this rank and its peers in other replicas: `ranks[p]` is replica p's.

    number: separates its messages from those of all other groups and communicators of the transport; the same on
    all of its ranks.
    size: the number of ranks when all replicas are alive.
    """

    def __init__(
        self,
        session: Session,
        ranks: tuple[int, ...],
        number: int,
        timeout_s: float,
        traffic: TrafficClass = BEST_EFFORT,
        name: str = "",
    ) -> None:
        self.session, self.ranks, self.number = session, ranks, number
        self.timeout_s, self.traffic, self.name = timeout_s, traffic, name
        self.rank, self.size = ranks.index(session.engine.transport.rank), len(ranks)
        self.index = session.groups
        session.groups += 1
        self._recorded = 0
        if session.engine.recorder is not None:
            session.engine.recorder.group(number, name, ranks)

    def all_reduce(
        self,
        array: Array,
        op: str = "sum",
        algorithm: str = FTAR,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Work:
        """Reduce `array` in place over all members of the current view; `avg` divides by their number.

        The result is tentative, and the array belongs to the operation, until the session has finished the step.
        """
        if algorithm != FTAR:
            raise ValueError(f"algorithm: got {algorithm!r}, expected {FTAR} between replicas")
        check_array(array, "array", writes=True)
        operation_named(op)
        flat = array.reshape(-1)
        operation = self.session.next_operation(self.index)
        pending = PendingReduction(self.ranks, self.number, self.traffic, op, flat.copy(), flat)
        return Work(
            self.session.engine,
            f"all_reduce #{operation[1]}",
            self.name,
            self.session.begin(operation, pending),
            Position(self._record(flat, op)),
            self.timeout_s if timeout_s is None else timeout_s,
            result=operation,
        ).begin(async_op)

    def _record(self, array: Array, op: str) -> Record | None:
        """Start a flight-recorder record, numbered through all steps; messages of attempts are not recorded."""
        self._recorded += 1
        record = self.session.engine.record(self.number, self._recorded, "all_reduce", array, FTAR, op)
        if record is not None:
            record.started(record.scheduled_s)
        return record

    def summed(self, operation: Operation) -> Summed:
        """Return the members whose contributions are in an operation's sum, once its step is committed."""
        return self.session.member.committed[operation]

"""One rank's part in the steps of a job whose replicas come and go."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from testbed.comm.collectives import Array
from testbed.comm.collectives.arrays import check_array, finish, operation_named
from testbed.comm.collectives.async_work import Work
from testbed.comm.collectives.group import COMMUNICATOR_BIT, OperationInfo, begin_record
from testbed.comm.collectives.progress_engine import Engine, Event
from testbed.comm.collectives.test_patterns import count_wrong, fill
from testbed.comm.flight_recorder import Record
from testbed.comm.replicas.member import Client, Member, RankDismissed, Summed
from testbed.comm.replicas.messages import CatchUp, CaughtUp, Operation, Part, Stop, ToRank, View
from testbed.comm.replicas.ring import FirstOf, Place, RingSettings, Signal, attempt
from testbed.comm.replicas.state_transfer import Checkpoints, TransferSettings, transfer_state
from testbed.comm.transport import BEST_EFFORT, TrafficClass

Waits = Generator[tuple[FirstOf | Event, ...], None, None]
_LOOK_S = 0.01
_CATCH_UP_TAG = 1 << 61  # and the attempt's number
_EPOCH_BIT, _STEP_BIT, _SEQUENCE_BIT = 32, 20, 1


@dataclass(frozen=True)
class SessionSettings:
    """heartbeat_s: between signs of life. state_bytes: what a rank that returns has to get; traffic: in which class.

    checkpoint_bytes: what goes to the next replica, in that class, too, after every `checkpoint_every` steps.
    """

    heartbeat_s: float = 0.1
    ring: RingSettings = field(default_factory=RingSettings)
    state_bytes: int = 0
    traffic: TrafficClass = BEST_EFFORT
    checkpoint_bytes: int = 0
    checkpoint_every: int = 1


@dataclass
class PendingReduction:
    """An operation of this step: its untouched input, and where its sum goes, again if need be."""

    ranks: tuple[int, ...]
    number: int
    traffic: TrafficClass
    op: str
    input: Array
    output: Array


class Session:
    """replicas: ranks of each, in the order of their inner coordinates; line: this rank's to the coordinator.

    Arrays of a step's operations belong to it from their beginning until the step is committed: their sums may change
    till then. All of it moves on inside calls of the engine. stopped_s: when a loss was told, and when all was in order
    again, for each.
    """

    def __init__(
        self,
        engine: Engine,
        line: socket.socket,
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
        self.given_bytes = self.caught_up_bytes = self.caught_up_wrong = 0
        self.groups = 0  # of this rank, so far
        self._sequence: Counter[int] = Counter()
        self._members: tuple[int, ...] = ()
        self._said = 0
        self._kept: dict[Operation, PendingReduction] = {}
        self._stopped_s: float | None = None
        self._event = Event()
        self._line = TransferSettings(
            engine.transport, self.settings.ring, self.settings.traffic, self.signal
        )
        self.checkpoints = Checkpoints(engine, self._line)
        self.client = Client(line, self.settings.heartbeat_s, lambda: engine.post(self._event))
        self._say()
        engine.start("", self._listen())

    @property
    def members(self) -> tuple[int, ...]:
        """Replicas that take part, as was said last."""
        return self._members

    # ---- a step

    def wait_for_step(self, after: int = -1) -> View:
        """Until a step later than that can be made ready for. Aborted when this rank has to leave meanwhile."""
        self.wait(lambda: self.member.view is not None and self.member.step > after)
        assert self.member.view is not None
        return self.member.view

    def agree_on_start(self) -> float:
        """Tell that this rank stands at the beginning of the step; when it begins for all, CLOCK_MONOTONIC."""
        self.member.ready()
        self._say()
        self.wait(lambda: self.member.start_s is not None)
        assert self.member.start_s is not None
        return self.member.start_s

    def finish(self) -> dict[Operation, Summed]:
        """The step has no more operations; when it is committed, of whom each sum is."""
        step = self.member.step
        self.member.finish(len(self._kept))
        self._say()
        self.wait(lambda: self.member.step > step)
        return self.member.committed

    def wait(self, for_what: Callable[[], bool]) -> None:
        """Let all move on until it is so."""
        while not for_what():
            self.engine.check(None)
            self.engine.progress(1.0)

    def word_of_leaving(self, timeout_s: float) -> RankDismissed | None:
        """What the coordinator says after something went wrong here: that this rank has to leave; None: nothing."""
        end_s = time.monotonic() + timeout_s
        while self.member.left is None and time.monotonic() < end_s:
            for message in self.client.take():
                self.member.hear(message)
            time.sleep(_LOOK_S)
        return self.member.left

    def close(self) -> None:
        """Hang up."""
        self.client.close()

    # ---- operations

    def next_operation(self, group: int) -> Operation:
        """The name of a group's next one in this step."""
        operation = (group, self._sequence[group])
        self._sequence[group] += 1
        return operation

    def begin(self, operation: Operation, kept: PendingReduction) -> Waits:
        """The steps of an operation of this step, tried until its sum counts."""
        self._kept[operation] = kept
        return self._until_summed(operation, kept)

    def _until_summed(self, operation: Operation, kept: PendingReduction) -> Waits:
        step = self.member.step
        while self.member.step == step:
            view = self.member.view
            if view is None:
                yield (FirstOf(self.signal),)
                continue
            work = kept.input.copy()
            members = view.members
            if len(members) > 1:
                place = self._ring_place(view, operation, kept)
                whole = yield from attempt(
                    self.engine.transport, place, work, operation_named(kept.op), self.settings.ring
                )
                if not whole:
                    continue
            if self.member.over(operation, view):
                finish(kept.op, work, len(members))
                kept.output[:] = work
                self._say()
                return

    def _ring_place(self, view: View, operation: Operation, kept: PendingReduction) -> Place:
        members = view.members
        position, size = members.index(self.replica), len(members)
        tag = (
            kept.number << COMMUNICATOR_BIT
            | (view.epoch & 0x3FFF) << _EPOCH_BIT
            | (view.step & 0xFFF) << _STEP_BIT
            | operation[1] << _SEQUENCE_BIT
        )
        return Place(
            position,
            size,
            kept.ranks[members[position - 1]],
            kept.ranks[members[(position + 1) % size]],
            tag,
            kept.traffic,
            self.signal,
            lambda: self.member.view is view,
        )

    # ---- what the coordinator says

    def _listen(self) -> Waits:
        while True:
            self._event = Event()
            for message in self.client.take():
                self._hear(message)
            yield (self._event,)

    def _hear(self, message: ToRank) -> None:
        step = self.member.step
        again = self.member.hear(message)
        if isinstance(message, Stop):
            self._stopped_s = time.monotonic()
        elif isinstance(message, View):
            self._members = message.members
            if self.member.step != step:
                self._kept = {}
                self._sequence.clear()
                self._checkpoint(message)
            if self._stopped_s is not None:
                self.stops.append((self._stopped_s, time.monotonic()))
                self._stopped_s = None
        elif isinstance(message, Part):
            for rank, incarnation in message.lost:
                self.engine.scopes.peer_returned(rank, incarnation)
        elif isinstance(message, CatchUp):
            self.engine.start("", self._move_state(message))
        if self.member.left is not None:
            self.engine.abort(self.member.left.reason)
        self._say()
        self.signal.give()
        for operation in sorted(again):
            self.engine.start("", self._until_summed(operation, self._kept[operation]))

    def _say(self) -> None:
        while self._said < len(self.member.said):
            self.client.say(self.member.said[self._said])
            self._said += 1

    def _checkpoint(self, view: View) -> None:
        """A step is committed: where it is a checkpoint's, this rank's state goes to its fellow in the next replica."""
        own, members = self.settings, view.members
        if own.checkpoint_bytes and view.step and not view.step % own.checkpoint_every and len(members) > 1:
            place = members.index(self.replica)
            to, source = (self.replicas[members[(place + by) % len(members)]][self.place] for by in (1, -1))

            def wanted() -> bool:
                return self.member.left is None and self.member.epoch == view.epoch

            self.checkpoints.begin(view.epoch, view.step, own.checkpoint_bytes, to, source, wanted)

    # ---- state for those that return

    def _move_state(self, message: CatchUp) -> Waits:
        """This rank's part of a catch-up: all of the state, chunk by chunk, in a class of its own."""
        gives = message.source == self.replica
        peer = self.replicas[message.target if gives else message.source][self.place]

        def write(array: Array) -> None:
            fill(array, 0, message.attempt)

        def moved(array: Array) -> None:
            if gives:
                self.given_bytes += array.nbytes
            else:
                self.caught_up_bytes += array.nbytes
                self.caught_up_wrong += count_wrong(array, 1, message.attempt)

        whole = yield from transfer_state(
            self._line,
            peer,
            _CATCH_UP_TAG | message.attempt,
            self.settings.state_bytes,
            lambda: self._moves(message, gives),
            moved,
            write if gives else None,
        )
        if whole and not gives and self._moves(message, gives):
            self.member.said.append(CaughtUp(message.attempt))
            self._say()

    def _moves(self, message: CatchUp, gives: bool) -> bool:
        """Whether it is still wanted, as far as this rank knows."""
        if self.member.left is not None:
            return False
        return gives or self.member.catch_up is message


FTAR = "ftar"


class ReplicaGroup:
    """A rank's fellows in other replicas, as a communicator for all-reduces: `ranks[p]` is replica p's.

    number: tells its messages from those of all other groups and communicators of the transport; the same on all of its
    ranks. size: how many it has when all replicas live.
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
        self._recorder = session.engine.recorder
        self._recorded = 0
        if self._recorder is not None:
            self._recorder.group(number, name, ranks)

    def all_reduce(
        self,
        array: Array,
        op: str = "sum",
        algorithm: str = FTAR,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Work:
        """Reduce `array`, in place, over all members of the current view; `avg` divides by their number.

        The result is tentative, and the array the operation's, until the session has finished the step.
        """
        if algorithm != FTAR:
            raise ValueError(f"algorithm: got {algorithm!r}, expected {FTAR} among replicas that come and go")
        check_array(array, "array", writes=True)
        operation_named(op)
        flat = array.reshape(-1)
        operation = self.session.next_operation(self.index)
        kept = PendingReduction(self.ranks, self.number, self.traffic, op, flat.copy(), flat)
        name = f"all_reduce #{operation[1]} of {self.name}" if self.name else f"all_reduce #{operation[1]}"
        engine = self.session.engine
        task = engine.start(name, self.session.begin(operation, kept), record=self._record(flat, op))
        work = Work(engine, task, self.timeout_s if timeout_s is None else timeout_s, operation)
        if not async_op:
            work.wait()
        return work

    def _record(self, array: Array, op: str) -> Record | None:
        """Of the flight recorder, which numbers operations through all steps. What attempts send is not in it."""
        self._recorded += 1
        about = OperationInfo(array, FTAR, op)
        record = begin_record(self._recorder, self.number, self._recorded, "all_reduce", about)
        if record is not None:
            record.started(record.scheduled_s)
        return record

    def summed(self, operation: Operation) -> Summed:
        """Of whom an operation's sum is, once its step is committed."""
        return self.session.member.committed[operation]

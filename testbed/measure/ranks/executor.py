"""Executes one rank's plan: timed computing, messages and collectives, with receive credits."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

import numpy as np

from testbed.comm.collectives import Array, CollectiveTimeout, Communicator, Work, count_wrong, fill
from testbed.comm.replicas import ReplicaGroup
from testbed.comm.transport import TransportError
from testbed.measure.ranks.collective_buffers import BlockWindows, CollectiveArrays
from testbed.measure.ranks.fault_injection import RankFaults, mismatched
from testbed.workload.dependency_tracker import DependencyTracker, dependency_order
from testbed.workload.plan import (
    Block,
    Computing,
    GroupCollective,
    JobPlan,
    Message,
    Operation,
    Pause,
    jittered_s,
)
from testbed.workload.plan_volume import ArrayKey, array_keys, message_buffer_elements

STILL_S = 1.0  # from one look to the next of a rank that stands still
FIRST = 0  # of what rank's data a message holds the pattern


@dataclass
class PlanOutcome:
    """What came of a plan: begin and end of each operation, elements that were wrong, elements that were looked at.

    unlooked: at what nobody has looked yet, as nothing else comes into its place; `look` does, when time is over.
    late_s: how long after the moment at which they could begin what goes on the network was begun.
    """

    spans: list[tuple[float, float]]
    wrong: int = 0
    checked: int = 0
    unlooked: list[Callable[[], None]] = field(default_factory=list)
    late_s: dict[int, float] = field(default_factory=dict)

    def found(self, wrong: int, checked: int) -> None:
        """Somebody has looked at some."""
        self.wrong += wrong
        self.checked += checked

    def look(self) -> PlanOutcome:
        """At all of it."""
        while self.unlooked:
            self.unlooked.pop()()
        return self


class Executor:
    """Runs a rank's plan, step after step.

    of_class: communicators of all ranks by DSCP; groups: this rank's by the plan's numbers. credits: where messages
    leave only once they are waited for. faults: what it does wrong on purpose. lasting: groups of replicas that come
    and go, whose operations have arrays of their own until their step stands, when `look` may be called.
    computing_share: of the speed of computing that is lost while any message or collective is under way.
    """

    computing_share = 0.0

    def __init__(
        self,
        plan: JobPlan,
        of_class: Mapping[int, Communicator],
        groups: dict[int, Communicator],
        dtype: str,
        timeout_s: float,
        credits: ReceiveCredits | None,
        faults: RankFaults | None = None,
        lasting: Mapping[int, ReplicaGroup] | None = None,
    ) -> None:
        self.plan = plan
        self._lasting = lasting or {}
        self.faults = faults or RankFaults()
        self.communicator, self.of_class, self.groups = of_class[0], of_class, groups
        self.operations = plan.ranks[self.communicator.rank]
        self._order = dependency_order(self.operations)
        self.dtype, self.timeout_s, self.credits = dtype, timeout_s, credits
        self._rooms = {
            stream: np.zeros(numel, dtype)
            for stream, numel in message_buffer_elements(self.operations).items()
        }
        self._blocks = BlockWindows(self.operations, groups, dtype)
        self._keys = array_keys(self.operations, self._lasting)
        # those that one operation alone uses are filled before a step
        self._uses = Counter(self._keys.values())
        self._arrays: dict[ArrayKey, CollectiveArrays] = {}
        for key in self._uses:
            _, group, collective, numel = key
            own = self._lasting.get(group) or groups[group]
            self._arrays[key] = CollectiveArrays(collective, numel, dtype, own.rank, own.size)

    def prepare(self, salt: int) -> None:
        """Fill what is going to be sent; outside of the time that is measured."""
        self._salt = salt
        self._sequence = dict.fromkeys([*self.groups, *self._lasting], 0)
        self._salts: dict[int, int] = {}
        for index, operation in enumerate(self.operations):
            if isinstance(operation, Block):
                continue  # filled as they begin
            if isinstance(operation, Message) and operation.sends:
                fill(self._rooms[operation.stream], FIRST, salt)
            elif isinstance(operation, GroupCollective):
                # a group's collectives are in one order on all of its members
                self._sequence[operation.group] += 1
                self._salts[index] = salt + self._sequence[operation.group]
                if self._alone(index):
                    self._fill(index, operation)

    def run(self, start_s: float, algorithm: str = "") -> PlanOutcome:
        """All of the plan, once, from `start_s` on, which is now or was a moment ago. TransportError.

        algorithm: of collectives that name none. Computing lasts from when it could begin, so that waking up late does
        not add up.
        """
        self._algorithm = algorithm
        tracker = DependencyTracker(self.operations, self._order)
        done = PlanOutcome([(start_s, start_s)] * len(self.operations))
        computing = TimedOperations(self.computing_share)
        works: dict[int, tuple[Work, Callable[[], None]]] = {}
        held: list[int] = []
        ends: dict[int, float] = {}
        last_s = start_s
        self._looked = -1
        while tracker.open:
            starting, tracker.ready = [*held, *tracker.ready], []
            held = []
            for index in starting:
                if self.faults.skips(index):
                    self._stand_still()
                operation = self.operations[index]
                begun_s = max((ends[earlier] for earlier in tracker.before[index]), default=start_s)
                done.spans[index] = (begun_s, begun_s)
                if isinstance(operation, Computing):
                    duration_s = jittered_s(self.plan, self.communicator.rank, index, self._salt)
                    computing.compute(index, begun_s, duration_s * self.faults.slowdown(begun_s))
                elif isinstance(operation, Pause):
                    computing.pause(index, begun_s, operation.duration_s)
                elif isinstance(operation, Message) and self._must_wait(operation):
                    held.append(index)
                else:
                    self._go_beside(computing, operation, begun_s)
                    works[index] = self._start(index, operation, done)
                    done.late_s[index] = time.monotonic() - begun_s
            now_s = time.monotonic()
            over = computing.over(now_s)
            completed = self._completed(works)
            for index in completed:
                work, check = works.pop(index)
                work.wait()  # raises what went wrong
                check()
                over[index] = work.end_s
            if completed and all(isinstance(self.operations[index], Block) for index in works):
                computing.slow(max(over[index] for index in completed), False)
            for index, end_s in over.items():
                ends[index] = end_s
                done.spans[index] = (done.spans[index][0], end_s)
                tracker.done(index)
            if over:
                last_s = now_s
            elif tracker.open:
                self._wait(last_s, computing, works, held)
        return done

    @staticmethod
    def _go_beside(computing: TimedOperations, operation: Operation, at_s: float) -> None:
        """Whatever is under way takes part of computing, but puts."""
        if not isinstance(operation, Block):
            computing.slow(at_s, True)

    def _stand_still(self) -> NoReturn:
        """Begin nothing more until somebody ends the run; what is under way goes on."""
        while True:
            try:
                self.communicator.progress(STILL_S)
            except TransportError:  # the others give up, which is none of its business
                time.sleep(STILL_S)

    def _completed(self, works: Mapping[int, tuple[Work, Callable[[], None]]]) -> list[int]:
        """Those that are over; with no look at each where no operation has ended, as after most frames."""
        if self._looked == self.communicator.ended:
            return []
        self._looked = self.communicator.ended
        return [index for index, (work, _) in works.items() if work.is_completed()]

    def _wait(
        self,
        last_s: float,
        computing: TimedOperations,
        works: dict[int, tuple[Work, Callable[[], None]]],
        held: list[int],
    ) -> None:
        """Let time pass until something may have happened. CollectiveTimeout when nothing has for too long."""
        now_s = time.monotonic()
        next_s = computing.next_s
        until_s = last_s + self.timeout_s if next_s is None else next_s
        if until_s <= now_s and next_s is None:
            for work, _ in works.values():
                if not work.is_completed():
                    raise work.timed_out(self.timeout_s)
            waiting = [self.operations[index] for index in held]
            peers = [operation.peer for operation in waiting if isinstance(operation, Message)]
            name = waiting[0].name if waiting else "plan"
            raise CollectiveTimeout(name, self.communicator.rank, peers, [], self.timeout_s)
        self.communicator.progress(max(0.0, until_s - now_s))

    def _must_wait(self, operation: Message) -> bool:
        """Whether a message may not leave yet; and tell the sender of one that this rank waits for."""
        if self.credits is None or isinstance(operation, Block):
            return False
        if operation.sends:
            return not self.credits.take(operation.peer, operation.tag)
        self.credits.grant(operation.peer, operation.tag)
        return False

    def _start(self, index: int, operation: Operation, done: PlanOutcome) -> tuple[Work, Callable[[], None]]:
        if isinstance(operation, Block):
            return self._blocks.start(operation, self._salt, self.timeout_s, done.found)
        if isinstance(operation, Message):
            room = self._rooms[operation.stream][: operation.numel]
            communicator = self.of_class[self.plan.dscp(operation)]
            if operation.sends:
                room[0] = operation.tag + 1
                work = communicator.isend(room, operation.peer, operation.tag, self.timeout_s)
                return work, lambda: None
            work = communicator.irecv(room, operation.peer, operation.tag, self.timeout_s)
            return work, lambda: check_message(room, operation.tag, self._salt, done)
        index = self.faults.place(index)
        operation = self.operations[index]
        assert isinstance(operation, GroupCollective)
        arrays, alone = self._arrays[self._keys[index]], self._alone(index)
        if what := self.faults.mismatch(index):
            group = self.groups[operation.group]
            operation, arrays = mismatched(operation, what, self.dtype, group.rank, group.size)
            arrays.fill(self._salts[index])
        elif not alone:
            self._fill(index, operation)
        algorithm = operation.algorithm or self._algorithm
        lasting = self._lasting.get(operation.group)
        if lasting is not None:
            started = lasting.all_reduce(arrays.output, arrays.op, async_op=True)
        else:
            started = arrays.start(self.groups[operation.group], algorithm, async_op=True)

        def check() -> None:
            among = None if lasting is None else lasting.summed(started.result).members
            done.wrong += arrays.count_wrong(self._salts[index], among)
            done.checked += arrays.output.size

        return started, partial(done.unlooked.append, check) if alone else check

    def _alone(self, index: int) -> bool:
        """Whether no other operation uses a collective's arrays."""
        return self._uses[self._keys[index]] == 1

    def _fill(self, index: int, operation: GroupCollective) -> None:
        arrays = self._arrays[self._keys[index]]
        if operation.uneven:
            arrays.use_rows(operation.rows())
        arrays.fill(self._salts[index])


def check_message(room: Array, tag: int, salt: int, done: PlanOutcome) -> None:
    """The first element tells which message it is, all others have the pattern."""
    done.checked += room.size
    if room[0] != tag + 1:
        done.wrong += 1
    if room.size > 1:
        expected = np.empty(1, room.dtype)
        fill(expected, FIRST, salt)
        room[0] = expected[0]
        done.wrong += count_wrong(room, 1, salt)


class TimedOperations:
    """Computing and pauses under way, by number. share: of the speed of computing that is lost while it is slowed."""

    def __init__(self, share: float = 0.0) -> None:
        self._slower = 1 / (1 - share)
        self._slowed = False
        self._computing: dict[int, float] = {}
        self._pauses: dict[int, float] = {}

    def compute(self, number: int, at_s: float, duration_s: float) -> None:
        """Begin to, for so long at full speed."""
        self._computing[number] = at_s + duration_s * (self._slower if self._slowed else 1.0)

    def pause(self, number: int, at_s: float, duration_s: float) -> None:
        """Begin to wait, which takes as long as it takes."""
        self._pauses[number] = at_s + duration_s

    def slow(self, at_s: float, whether: bool) -> None:
        """From now on what is left of computing takes longer, or no longer."""
        if whether == self._slowed:
            return
        self._slowed = whether
        if self._slower != 1:
            factor = self._slower if whether else 1 / self._slower
            for number, end_s in self._computing.items():
                self._computing[number] = at_s + max(0.0, end_s - at_s) * factor

    def over(self, now_s: float) -> dict[int, float]:
        """Those that have ended, and when; they are forgotten."""
        found: dict[int, float] = {}
        for under_way in (self._computing, self._pauses):
            ended = {number: end_s for number, end_s in under_way.items() if end_s <= now_s}
            for number in ended:
                del under_way[number]
            found |= ended
        return found

    @property
    def next_s(self) -> float | None:
        """When the first of them ends; None without any."""
        return min((*self._computing.values(), *self._pauses.values()), default=None)


_NOTE = struct.Struct("!II")
CreditSockets = Sequence[tuple[socket.socket, socket.socket]]
"""By rank: where it receives grants, and where others send theirs."""


def credit_sockets(ranks: int) -> CreditSockets:
    """To be made before the ranks' processes are."""
    return [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(ranks)]


class ReceiveCredits:
    """What receivers allow one rank to send. `on_grant` is called, in a thread of its own, for each message more."""

    def __init__(self, sockets: CreditSockets, rank: int, on_grant: Callable[[], None]) -> None:
        self._sockets, self._rank, self._on_grant = sockets, rank, on_grant
        self._notes: Counter[tuple[int, int]] = Counter()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def grant(self, sender: int, tag: int) -> None:
        """This rank waits for that message of that rank."""
        self._sockets[sender][1].send(_NOTE.pack(self._rank, tag))

    def take(self, receiver: int, tag: int) -> bool:
        """Whether a receiver waits for that message; each grant allows one."""
        with self._lock:
            if not self._notes[receiver, tag]:
                return False
            self._notes[receiver, tag] -= 1
            return True

    def _listen(self) -> None:
        while note := self._sockets[self._rank][0].recv(_NOTE.size):
            with self._lock:
                self._notes[_NOTE.unpack(note)] += 1
            self._on_grant()

    def close(self) -> None:
        """Stop listening."""
        self._sockets[self._rank][1].send(b"")
        self._thread.join(timeout=1.0)

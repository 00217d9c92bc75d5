"""The executor of one rank's plan: timed computation, messages and collectives, with receive credits."""

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
from testbed.measure.ranks.fault_injection import RankFaults, make_mismatched
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

STILL_S = 1.0  # polling interval of a rank that a fault has stopped
FIRST = 0  # the rank whose data pattern messages carry


@dataclass
class PlanOutcome:
    """The outcome of a plan: each operation's start and end, and the numbers of wrong and of checked elements.

    `deferred` has checks of arrays that no other operation overwrites; `run_checks` runs them outside the timed part.
    `late_s` has, for network operations, the time from when they could have started until they did.
    """

    spans: list[tuple[float, float]]
    wrong: int = 0
    checked: int = 0
    deferred: list[Callable[[], None]] = field(default_factory=list)
    late_s: dict[int, float] = field(default_factory=dict)

    def add(self, wrong: int, checked: int) -> None:
        """Add the result of a check."""
        self.wrong += wrong
        self.checked += checked

    def run_checks(self) -> PlanOutcome:
        """Run all deferred checks and return this outcome."""
        while self.deferred:
            self.deferred.pop()()
        return self


class Executor:
    """An executor that runs a rank's plan once per step.

    Args:
        plan: The job's plan.
        of_class: Communicators that span all ranks, by DSCP.
        groups: This rank's groups, by their number in the plan.
        dtype: Type of all elements.
        timeout_s: Time without progress after which the plan fails.
        credits: Set if a message is sent only after its receiver is waiting for it.
        faults: Faults that this rank injects.
        lasting: Groups of elastic replicas. Their operations keep separate arrays until the step is committed; only
            then may `run_checks` be called.

    Attributes:
        computing_share: Share of the compute speed that is lost while any message or collective is in flight.
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
        # arrays that only one operation uses are filled before a step
        self._uses = Counter(self._keys.values())
        self._arrays: dict[ArrayKey, CollectiveArrays] = {}
        for key in self._uses:
            _, group, collective, numel = key
            own = self._lasting.get(group) or groups[group]
            self._arrays[key] = CollectiveArrays(collective, numel, dtype, own.rank, own.size)

    def prepare(self, salt: int) -> None:
        """Fill the data to send, outside the timed part of a step."""
        self._salt = salt
        self._sequence = dict.fromkeys([*self.groups, *self._lasting], 0)
        self._salts: dict[int, int] = {}
        for index, operation in enumerate(self.operations):
            if isinstance(operation, Block):
                continue  # filled when the operations start
            if isinstance(operation, Message) and operation.sends:
                fill(self._rooms[operation.stream], FIRST, salt)
            elif isinstance(operation, GroupCollective):
                # all members of a group run its collectives in the same order
                self._sequence[operation.group] += 1
                self._salts[index] = salt + self._sequence[operation.group]
                if self._has_own_arrays(index):
                    self._fill(index, operation)

    def run(self, start_s: float, algorithm: str = "") -> PlanOutcome:
        """Run the whole plan once, from `start_s`, which is now or a moment ago.

        Computation is timed from when it could have started, so that late wake-ups do not add up.

        Args:
            start_s: Start of the step, CLOCK_MONOTONIC.
            algorithm: Algorithm of the collectives that do not name one.

        Raises:
            TransportError: If a peer is lost, or nothing makes progress within the timeout.
        """
        self._algorithm = algorithm
        tracker = DependencyTracker(self.operations, self._order)
        done = PlanOutcome([(start_s, start_s)] * len(self.operations))
        computing = TimedOperations(self.computing_share)
        works: dict[int, tuple[Work, Callable[[], None]]] = {}
        held: list[int] = []  # messages whose receivers are not yet waiting for them
        ends: dict[int, float] = {}
        last_s = start_s
        self._seen_ended = -1
        while tracker.open:
            starting, tracker.ready = [*held, *tracker.ready], []
            held = []
            for index in starting:
                if self.faults.skips(index):
                    self._hang()
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
                    self._slow_computing(computing, operation, begun_s)
                    works[index] = self._start(index, operation, done)
                    done.late_s[index] = time.monotonic() - begun_s
            now_s = time.monotonic()
            over = computing.over(now_s)
            completed = self._completed(works)
            for index in completed:
                work, check = works.pop(index)
                work.wait()  # raises the operation's error if it failed
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
    def _slow_computing(computing: TimedOperations, operation: Operation, at_s: float) -> None:
        """Slow down computation while an operation is in flight, unless the operation is a one-sided put."""
        if not isinstance(operation, Block):
            computing.slow(at_s, True)

    def _hang(self) -> NoReturn:
        """Start no further operations until the process is killed; operations in flight continue."""
        while True:
            try:
                self.communicator.progress(STILL_S)
            except TransportError:  # the other ranks have given up
                time.sleep(STILL_S)

    def _completed(self, works: Mapping[int, tuple[Work, Callable[[], None]]]) -> list[int]:
        """Return the completed operations; skip the scan if none has ended, which is the case after most frames."""
        if self._seen_ended == self.communicator.ended:
            return []
        self._seen_ended = self.communicator.ended
        return [index for index, (work, _) in works.items() if work.is_completed()]

    def _wait(
        self,
        last_s: float,
        computing: TimedOperations,
        works: dict[int, tuple[Work, Callable[[], None]]],
        held: list[int],
    ) -> None:
        """Wait until something may have happened; raise CollectiveTimeout if nothing has for too long."""
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
        """Return whether a message may not be sent yet; for a receive, grant its sender a credit."""
        if self.credits is None or isinstance(operation, Block):
            return False
        if operation.sends:
            return not self.credits.take(operation.peer, operation.tag)
        self.credits.grant(operation.peer, operation.tag)
        return False

    def _start(self, index: int, operation: Operation, done: PlanOutcome) -> tuple[Work, Callable[[], None]]:
        if isinstance(operation, Block):
            return self._blocks.start(operation, self._salt, self.timeout_s, done.add)
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
        arrays, own_arrays = self._arrays[self._keys[index]], self._has_own_arrays(index)
        if kind := self.faults.mismatch(index):
            group = self.groups[operation.group]
            operation, arrays = make_mismatched(operation, kind, self.dtype, group.rank, group.size)
            arrays.fill(self._salts[index])
        elif not own_arrays:
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

        return started, partial(done.deferred.append, check) if own_arrays else check

    def _has_own_arrays(self, index: int) -> bool:
        """Return whether no other operation uses a collective's arrays."""
        return self._uses[self._keys[index]] == 1

    def _fill(self, index: int, operation: GroupCollective) -> None:
        arrays = self._arrays[self._keys[index]]
        if operation.uneven:
            arrays.use_rows(operation.rows())
        arrays.fill(self._salts[index])


def check_message(room: Array, tag: int, salt: int, done: PlanOutcome) -> None:
    """Check a received message: its first element identifies it, and all others have the pattern."""
    done.checked += room.size
    if room[0] != tag + 1:
        done.wrong += 1
    if room.size > 1:
        expected = np.empty(1, room.dtype)
        fill(expected, FIRST, salt)
        room[0] = expected[0]
        done.wrong += count_wrong(room, 1, salt)


class TimedOperations:
    """Compute and pause operations in progress, by number; slowed computation loses `share` of its speed."""

    def __init__(self, share: float = 0.0) -> None:
        self._slower = 1 / (1 - share)
        self._slowed = False
        self._computing: dict[int, float] = {}
        self._pauses: dict[int, float] = {}

    def compute(self, number: int, at_s: float, duration_s: float) -> None:
        """Start a computation that takes `duration_s` at full speed."""
        self._computing[number] = at_s + duration_s * (self._slower if self._slowed else 1.0)

    def pause(self, number: int, at_s: float, duration_s: float) -> None:
        """Start a pause, which slowing does not affect."""
        self._pauses[number] = at_s + duration_s

    def slow(self, at_s: float, whether: bool) -> None:
        """Slow down the rest of all computation from `at_s` on, or end the slowdown."""
        if whether == self._slowed:
            return
        self._slowed = whether
        if self._slower != 1:
            factor = self._slower if whether else 1 / self._slower
            for number, end_s in self._computing.items():
                self._computing[number] = at_s + max(0.0, end_s - at_s) * factor

    def over(self, now_s: float) -> dict[int, float]:
        """Remove and return the operations that have ended, with their end times."""
        found: dict[int, float] = {}
        for in_progress in (self._computing, self._pauses):
            ended = {number: end_s for number, end_s in in_progress.items() if end_s <= now_s}
            for number in ended:
                del in_progress[number]
            found |= ended
        return found

    @property
    def next_s(self) -> float | None:
        """Return when the next operation ends; None if there are none."""
        return min((*self._computing.values(), *self._pauses.values()), default=None)


_NOTE = struct.Struct("!II")
CreditSockets = Sequence[tuple[socket.socket, socket.socket]]
"""For each rank, the socket on which it receives grants, and the one that others send them to."""


def credit_sockets(ranks: int) -> CreditSockets:
    """Create the sockets for receive credits, before the ranks are forked."""
    return [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(ranks)]


class ReceiveCredits:
    """Credits that receivers grant to one rank; `on_grant` is called in a separate thread for each grant."""

    def __init__(self, sockets: CreditSockets, rank: int, on_grant: Callable[[], None]) -> None:
        self._sockets, self._rank, self._on_grant = sockets, rank, on_grant
        self._notes: Counter[tuple[int, int]] = Counter()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def grant(self, sender: int, tag: int) -> None:
        """Grant the sender a credit, because this rank is waiting for its message."""
        self._sockets[sender][1].send(_NOTE.pack(self._rank, tag))

    def take(self, receiver: int, tag: int) -> bool:
        """Use a credit for a message, and return whether there was one."""
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
        """Stop the thread."""
        self._sockets[self._rank][1].send(b"")
        self._thread.join(timeout=1.0)

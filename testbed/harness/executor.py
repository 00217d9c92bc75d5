"""Carries out one rank's plan: computing as timed waiting to absolute deadlines, messages and collectives meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from testbed.collectives import Array, CollectiveTimeout, Communicator, Work, count_wrong, fill
from testbed.harness.arrays import CollectiveArrays
from testbed.harness.posted import Posted
from testbed.transport import TransportError
from testbed.workload.plan import Computing, GroupCollective, JobPlan, Message, Operation, Tracker

FIRST = 0  # of what rank's data a message holds the pattern


@dataclass
class Done:
    """What came of a plan: begin and end of each operation, elements that were wrong, elements that were looked at."""

    spans: list[tuple[float, float]]
    wrong: int = 0
    checked: int = 0


class Executor:
    """Runs a rank's plan, step after step. groups: this rank's communicators by the plan's numbers.

    posted: where messages leave only once they are waited for.
    """

    def __init__(
        self,
        plan: JobPlan,
        communicator: Communicator,
        groups: dict[int, Communicator],
        dtype: str,
        timeout_s: float,
        posted: Posted | None,
    ) -> None:
        self.operations = plan.ranks[communicator.rank]
        self.communicator, self.groups = communicator, groups
        self.timeout_s, self.posted = timeout_s, posted
        self._rooms: dict[str, Array] = {}
        for operation in self.operations:
            if isinstance(operation, Message):
                room = self._rooms.get(operation.stream)
                if room is None or room.size < operation.numel:
                    self._rooms[operation.stream] = np.zeros(operation.numel, dtype)
        self._arrays: dict[tuple[int, str, int], CollectiveArrays] = {}
        for operation in self.operations:
            if isinstance(operation, GroupCollective):
                own = groups[operation.group]
                key = _key(operation)
                if key not in self._arrays:
                    self._arrays[key] = CollectiveArrays(*key[1:], dtype, own.rank, own.size)

    def prepare(self, salt: int) -> None:
        """Fill what is going to be sent; outside of the time that is measured."""
        self._salt = salt
        self._sequence = dict.fromkeys(self.groups, 0)
        for operation in self.operations:
            if isinstance(operation, Message) and operation.sends:
                fill(self._rooms[operation.stream], FIRST, salt)

    def run(self) -> Done:
        """All of the plan, once, from now on. TransportError."""
        tracker = Tracker(self.operations)
        done = Done([(0.0, 0.0)] * len(self.operations))
        computing: dict[int, float] = {}
        works: dict[int, tuple[Work, Callable[[], None]]] = {}
        held: list[int] = []
        last_s = time.monotonic()
        while tracker.open:
            while tracker.ready or held:
                starting, held = [*held, *tracker.ready], []
                tracker.ready = []
                now_s = time.monotonic()
                for place in starting:
                    operation = self.operations[place]
                    if done.spans[place] == (0.0, 0.0):
                        done.spans[place] = (now_s, now_s)
                    if isinstance(operation, Computing):
                        computing[place] = now_s + operation.duration_s
                    elif isinstance(operation, Message) and self._must_wait(operation):
                        held.append(place)
                    else:
                        works[place] = self._start(operation, done)
                if not tracker.ready:
                    break
            over = [place for place, (work, _) in works.items() if work.is_completed()]
            now_s = time.monotonic()
            ended = [place for place, deadline_s in computing.items() if deadline_s <= now_s]
            for place in ended:
                del computing[place]
                done.spans[place] = (done.spans[place][0], now_s)
                tracker.done(place)
            for place in over:
                work, check = works.pop(place)
                work.wait()  # raises what went wrong
                check()
                done.spans[place] = (done.spans[place][0], work.end_s)
                tracker.done(place)
            if over or ended:
                last_s = now_s
            elif tracker.open:
                self._wait(last_s, computing, works, held)
        return done

    def _wait(
        self,
        last_s: float,
        computing: dict[int, float],
        works: dict[int, tuple[Work, Callable[[], None]]],
        held: list[int],
    ) -> None:
        """Let time pass until something may have happened."""
        now_s = time.monotonic()
        until_s = min(computing.values(), default=last_s + self.timeout_s)
        if now_s - last_s > self.timeout_s and not computing:
            if works:
                next(iter(works.values()))[0].wait(timeout_s=0.0)
            operation = self.operations[held[0]]
            assert isinstance(operation, Message)
            raise CollectiveTimeout(
                operation.name, self.communicator.rank, [operation.peer], [], self.timeout_s
            )
        self.communicator.progress(max(0.0, until_s - now_s))

    def _must_wait(self, operation: Message) -> bool:
        """Whether a message may not leave yet; and tell the sender of one that this rank waits for."""
        if self.posted is None:
            return False
        if operation.sends:
            return not self.posted.take(operation.peer, operation.tag)
        self.posted.tell(operation.peer, operation.tag)
        return False

    def _start(self, operation: Operation, done: Done) -> tuple[Work, Callable[[], None]]:
        if isinstance(operation, Message):
            room = self._rooms[operation.stream][: operation.numel]
            if operation.sends:
                room[0] = operation.tag + 1
                work = self.communicator.isend(room, operation.peer, operation.tag, self.timeout_s)
                return work, lambda: None
            work = self.communicator.irecv(room, operation.peer, operation.tag, self.timeout_s)
            return work, lambda: self._check_message(room, operation.tag, done)
        assert isinstance(operation, GroupCollective)
        arrays = self._arrays[_key(operation)]
        self._sequence[operation.group] += 1
        salt = self._salt + self._sequence[operation.group]
        arrays.fill(salt)
        started = arrays.start(self.groups[operation.group], operation.algorithm, async_op=True)
        if started is None:
            raise TransportError(
                f"{operation.name}: {operation.collective} cannot be under way beside others"
            )

        def check() -> None:
            done.wrong += arrays.count_wrong(salt)
            done.checked += arrays.output.size

        return started, check

    def _check_message(self, room: Array, tag: int, done: Done) -> None:
        """The first element tells which message it is, all others have the pattern."""
        done.checked += room.size
        if room[0] != tag + 1:
            done.wrong += 1
        if room.size > 1:
            expected = np.empty(1, room.dtype)
            fill(expected, FIRST, self._salt)
            room[0] = expected[0]
            done.wrong += count_wrong(room, 1, self._salt)


def _key(operation: GroupCollective) -> tuple[int, str, int]:
    return operation.group, operation.collective, operation.numel

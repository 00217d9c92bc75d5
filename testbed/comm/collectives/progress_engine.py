"""Progress engine: advances operations, written as generators, as their messages arrive.

A generator yields tuples of requests (of a transport, or tasks started by `Engine.start`) and resumes when all requests
of a tuple are done. Many generators run concurrently; they resume in the order in which their messages arrive. An error
in one operation of a communicator ends all of its operations, and those of no other: see `failure_scopes`.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Protocol

from testbed.comm.collectives.arrays import Array
from testbed.comm.collectives.failure_scopes import Scope, Scopes
from testbed.comm.flight_recorder import COMPLETED, FAILED, Record, Recorder
from testbed.comm.transport import Aborted, OperationCosts, PeerLost, Request, Transport, TransportError


class Waitable(Protocol):
    """An object that a generator can wait for."""

    @property
    def done(self) -> bool:
        """Whether it has ended, successfully or not."""

    @property
    def error(self) -> TransportError | None:
        """The error of a failure, once the waitable has ended."""

    on_done: Callable[[Any], None] | None


Steps = Generator[tuple[Waitable, ...], None, None]


class Position:
    """Progress of an operation: its phase, and its round out of `rounds` (0 if none), for errors and diagnostics.

    record: the flight recorder's record of the operation.
    """

    __slots__ = ("phase", "record", "round", "rounds")

    def __init__(self, record: Record | None = None) -> None:
        self.phase = ""
        self.round = 0
        self.rounds = 0
        self.record = record

    def __str__(self) -> str:
        return f"{self.phase}, round {self.round} of {self.rounds}" if self.rounds else self.phase


class Event:
    """A waitable that is set by other code."""

    __slots__ = ("done", "error", "on_done")

    def __init__(self) -> None:
        self.done = False
        self.error: TransportError | None = None
        self.on_done: Callable[[Event], None] | None = None

    def set(self) -> None:
        """Mark the event as done; further calls do nothing."""
        if not self.done:
            self.done = True
            if self.on_done is not None:
                self.on_done(self)


class Task:
    """One running generator."""

    __slots__ = ("_engine", "_missing", "_steps", "_waiting", "done", "error", "on_done")

    def __init__(self, engine: Engine, steps: Steps) -> None:
        self.done = False
        self.error: TransportError | None = None
        self.on_done: Callable[[Any], None] | None = None
        self._engine = engine
        self._steps = steps
        self._waiting: tuple[Waitable, ...] = ()
        self._missing = 0

    def pending(self) -> list[Request]:
        """Return the messages that the task is waiting for."""
        found: list[Request] = []
        for item in self._waiting:
            if item.done:
                continue
            if isinstance(item, Task):
                found += item.pending()
            elif isinstance(item, Request):
                found.append(item)
        return found

    def resume(self) -> None:
        """Run the task until it has to wait again or is done."""
        if self.done:  # the task failed while some of its messages were in flight
            return
        waiting = self._waiting
        steps = self._steps
        while True:
            for item in waiting:
                if item.error is not None:
                    self._finish(item.error)
                    return
            try:
                waiting = next(steps)
            except StopIteration:
                self._finish(None)
                return
            except TransportError as error:
                self._finish(error)
                return
            missing = 0
            for item in waiting:
                if not item.done:
                    missing += 1
                    observer = item.on_done
                    item.on_done = self._on_done if observer is None else partial(self._after, observer)
            if missing:
                self._waiting = waiting
                self._missing = missing
                return

    def _after(self, observer: Callable[[Any], None], item: Waitable) -> None:
        observer(item)
        self._on_done(item)

    def _on_done(self, item: Waitable) -> None:
        self._missing -= 1
        if not self._missing or item.error is not None:
            self._engine.ready.append(self)

    def cancel(self, error: TransportError) -> None:
        """End the task and its subtasks with this error.

        Posted receives stay posted, but nothing takes their messages.
        """
        if not self.done:
            self._finish(error)

    def _finish(self, error: TransportError | None) -> None:
        self.done = True  # first, because failures that follow from this one re-enter here
        self.error = error
        waiting, self._waiting = self._waiting, ()
        if error is not None:
            for item in waiting:
                if isinstance(item, Task):
                    item.cancel(error)
        self._steps.close()
        if self.on_done is not None:
            self.on_done(self)


class CollectiveTimeout(TransportError, TimeoutError):
    """A collective did not finish in time; the error names the operation, this rank, and the missing peers.

    phase: how far it was, such as "reduce-scatter, round 2 of 7". Ranks are those of the transport.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        sends_to: Sequence[int],
        receives_from: Sequence[int],
        timeout_s: float,
        phase: str = "",
    ) -> None:
        self.name, self.rank, self.timeout_s, self.phase = name, rank, timeout_s, phase
        self.sends_to, self.receives_from = tuple(sends_to), tuple(receives_from)
        waits = [
            f"to {verb} rank {', '.join(map(str, peers))}"
            for verb, peers in (("receive from", self.receives_from), ("send to", self.sends_to))
            if peers
        ]
        where = f" ({phase})" if phase else ""
        super().__init__(
            f"{name}{where} on rank {rank}: not done within {timeout_s:g} s; waits {' and '.join(waits)}"
        )


class Work(Task):
    """One operation in flight.

    name: the operation and its sequence number, such as "all_reduce #12".
    start_s, end_s: CLOCK_MONOTONIC on this rank; `end_s` is NaN until it is done.
    """

    __slots__ = ("_result", "_timeout_s", "end_s", "name", "position", "scope", "start_s")

    def __init__(
        self,
        engine: Engine,
        name: str,
        group: str,
        steps: Steps,
        position: Position,
        timeout_s: float,
        scope: Scope | None = None,
        result: Any = None,
    ) -> None:
        super().__init__(engine, steps)
        self.name = f"{name} of {group}" if group else name
        self.position = position
        self.scope = scope
        self.start_s = time.monotonic() if position.record is None else position.record.scheduled_s
        self.end_s = float("nan")
        self._timeout_s = timeout_s
        self._result = result

    def begin(self, async_op: bool = True) -> Work:
        """Run to the end or, with `async_op`, as far as possible without waiting; do nothing if the scope failed."""
        scope = self.scope
        if scope is not None and scope.failure is not None:
            self.cancel(scope.failure)
        else:
            if scope is not None:
                scope.tasks.add(self)
            self.resume()
        if not async_op:
            self.wait()
        return self

    @property
    def result(self) -> Any:
        """Values that the operation returns besides its arrays; see the operation. None until it is done."""
        return self._result if self.done else None

    def is_completed(self) -> bool:
        """Return whether the operation has ended, successfully or not."""
        return self.done

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the operation is done; after an error, the contents of the arrays are undefined.

        Args:
            timeout_s: Seconds from now; None: the operation's own timeout, from its start.

        Raises:
            CollectiveTimeout: If the operation is not done in time; `wait` may be called again.
            TransportError: PeerLost or Revoked as soon as this or another operation of its communicator has failed,
                Aborted once this rank has given up.
        """
        engine = self._engine
        if timeout_s is None:
            deadline_s, timeout_s = self.start_s + self._timeout_s, self._timeout_s
        else:
            deadline_s = time.monotonic() + timeout_s
        if not self.done:
            engine.progress(0.0)
        while not self.done:
            engine.check(self.scope)
            left_s = deadline_s - engine.transport.now_s
            if left_s <= 0:
                raise self.timed_out(timeout_s)
            engine.progress(left_s)
        if self.error is not None:
            raise self.error

    def timed_out(self, timeout_s: float) -> CollectiveTimeout:
        """Return the timeout error, with the missing peers."""
        pending = self.pending()
        sends_to = sorted({request.peer for request in pending if request.kind == "send"})
        receives_from = sorted({request.peer for request in pending if request.kind == "recv"})
        rank = self._engine.transport.rank
        phase = str(self.position)
        return CollectiveTimeout(self.name, rank, sends_to, receives_from, timeout_s, phase)

    def _finish(self, error: TransportError | None) -> None:
        self.done = True
        self.end_s = time.monotonic()
        self._engine.ended += 1
        if error is not None and not error.during:  # otherwise the error is another operation's
            where = str(self.position)
            error = error.during_operation(f"{self.name} ({where})" if where else self.name)
        if self.position.record is not None:
            self.position.record.ended(COMPLETED if error is None else FAILED, self.end_s, str(error or ""))
        super()._finish(error)
        if self.scope is not None:
            self.scope.tasks.discard(self)
            if error is not None:
                self._engine.fail(self.scope, error)


class Engine:
    """The tasks of one transport.

    failure: the error that ended the rank, or its transport, for good.
    ended: the number of operations that have ended; a caller that waits for many need not check each one.
    recorder: records the operations; None: no records.
    costs: the modelled cost of operations in addition to their messages; None: none.
    """

    def __init__(
        self, transport: Transport, recorder: Recorder | None = None, costs: OperationCosts | None = None
    ) -> None:
        self.transport = transport
        self.recorder = recorder
        self.costs = costs
        self.ready: deque[Task] = deque()
        self.failure: TransportError | None = None
        self.ended = 0
        self.scopes = Scopes(transport)
        self._abort_sent = False
        self._timers: list[tuple[float, int, Event]] = []
        self._timer_count = 0
        self._posted: deque[Event] = deque()

    def start(self, steps: Steps) -> Task:
        """Start a task and run it as far as possible."""
        task = Task(self, steps)
        task.resume()
        return task

    def record(
        self,
        group: int,
        sequence: int,
        name: str,
        array: Array | None = None,
        algorithm: str = "",
        op: str = "",
        *,
        peer: int = -1,
        tag: int = 0,
    ) -> Record | None:
        """Record the start of an operation (`Recorder.begin`); return None without a recorder or without room."""
        if self.recorder is None:
            return None
        dtype, size_bytes = ("", 0) if array is None else (array.dtype.name, array.nbytes)
        now_s = time.monotonic()
        return self.recorder.begin(group, sequence, name, now_s, size_bytes, algorithm, dtype, op, peer, tag)

    def timer(self, time_s: float) -> Event:
        """Return an event that is set at this time of CLOCK_MONOTONIC."""
        event = Event()
        self._timer_count += 1  # ties are broken by creation order
        heapq.heappush(self._timers, (time_s, self._timer_count, event))
        return event

    def post(self, event: Event) -> None:
        """Set an event soon, in the rank's own thread. Any thread may call this."""
        self._posted.append(event)
        self.transport.wake()

    def progress(self, timeout_s: float | None = 0.0) -> None:
        """Transfer messages, waiting up to `timeout_s` (None: no limit), and resume tasks; may return early."""
        ready = self.ready
        if self._timers and timeout_s != 0.0:
            left_s = max(0.0, self._timers[0][0] - time.monotonic())
            timeout_s = left_s if timeout_s is None else min(timeout_s, left_s)
        self.transport.progress(0.0 if ready else timeout_s)
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2].set()
        while self._posted:
            self._posted.popleft().set()
        while ready:
            ready.popleft().resume()
        if self.scopes.has_pending:  # only after the tasks that noticed the failure themselves
            self.scopes.process_pending()

    def abort(self, reason: str) -> None:
        """Make every wait raise Aborted, and send peers the reason. May be called by any thread or signal handler."""
        self.failure = self.failure or Aborted(self.transport.rank, reason)
        self.transport.wake()

    def fail(self, scope: Scope, error: TransportError) -> None:
        """Fail a scope after one of its operations failed; a lost peer fails all scopes that contain it."""
        if isinstance(error, PeerLost) and not error.orderly:
            self.scopes.lose_peer(error)
        scope.fail(error)

    def check(self, scope: Scope | None) -> None:
        """Raise the error that ended this rank or the scope. Every wait calls it, in the rank's own thread."""
        if self.failure is not None:
            if isinstance(self.failure, Aborted) and not self._abort_sent:
                self._abort_sent = True
                self.transport.abort(self.failure.reason)
            raise self.failure
        if scope is not None and scope.failure is not None:
            raise scope.failure

    def sleep(self, seconds: float, scope: Scope | None) -> None:
        """Make progress for this long. Raises the scope's error if one of its tasks fails, or has failed."""
        deadline_s = time.monotonic() + seconds
        left_s = seconds
        while left_s > 0:
            self.check(scope)
            self.progress(left_s)
            left_s = deadline_s - self.transport.now_s

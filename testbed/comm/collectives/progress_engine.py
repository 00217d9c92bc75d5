"""Progress engine: advances operations, written as generators, as their messages arrive.

A generator yields tuples of requests (of a transport, or tasks started by `Engine.start`) and resumes when all of a
tuple are done. Many run concurrently; they resume in the order in which their messages arrive. An error in one
operation of a communicator ends all of its operations, and those of no other: see `failure_scopes`.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Protocol

from testbed.comm.collectives.failure_scopes import Scope, Scopes
from testbed.comm.flight_recorder import COMPLETED, FAILED, Record, Recorder
from testbed.comm.transport import Aborted, OperationCosts, PeerLost, Request, Transport, TransportError


class Waitable(Protocol):
    """What a generator can wait for."""

    @property
    def done(self) -> bool:
        """Whether it has ended, successfully or not."""

    @property
    def error(self) -> TransportError | None:
        """The error it failed with, once it is done."""

    on_done: Callable[[Any], None] | None


Steps = Generator[tuple[Waitable, ...], None, None]


class Position:
    """Progress of an operation: phase, and round of rounds (0 if it has none). For errors and diagnostics.

    record: the flight recorder's record of the operation.
    """

    __slots__ = ("phase", "record", "round", "rounds")

    def __init__(self) -> None:
        self.phase = ""
        self.round = 0
        self.rounds = 0
        self.record: Record | None = None

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
    """One running generator. `start_s`, `end_s`: CLOCK_MONOTONIC; `end_s` is NaN until it is done."""

    __slots__ = (
        "_engine",
        "_missing",
        "_steps",
        "_waiting",
        "done",
        "end_s",
        "error",
        "name",
        "on_done",
        "position",
        "record",
        "scope",
        "start_s",
    )

    def __init__(
        self,
        engine: Engine,
        name: str,
        steps: Steps,
        position: Position | None,
        scope: Scope | None = None,
        record: Record | None = None,
    ) -> None:
        self.name = name
        self.scope = scope
        self.record = record
        self.position = position
        # a subtask has no name and is not timed
        self.start_s = float("nan")
        if name:
            self.start_s = time.monotonic() if record is None else record.scheduled_s
        self.end_s = float("nan")
        self.done = False
        self.error: TransportError | None = None
        self.on_done: Callable[[Any], None] | None = None
        self._engine = engine
        self._steps = steps
        self._waiting: tuple[Waitable, ...] = ()
        self._missing = 0

    def pending(self) -> list[Request]:
        """Return the messages that it waits for now."""
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
        """Run until it has to wait again, or is done."""
        if self.done:  # it failed while some of its messages were in flight
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
        if self.name:
            self.end_s = time.monotonic()
            self._engine.ended += 1
            if error is not None and not error.during:  # otherwise it is another operation's error
                where = str(self.position or "")
                error = error.during_operation(f"{self.name} ({where})" if where else self.name)
        self.error = error
        if self.record is not None:
            self.record.ended(COMPLETED if error is None else FAILED, self.end_s, str(error or ""))
        waiting, self._waiting = self._waiting, ()
        if error is not None:
            for item in waiting:
                if isinstance(item, Task):
                    item.cancel(error)
        self._steps.close()
        if self.scope is not None:
            self.scope.tasks.discard(self)
            if error is not None:
                self._engine.fail(self.scope, error)
        if self.on_done is not None:
            self.on_done(self)


class Engine:
    """The tasks of one transport.

    failure: the error with which the rank, or its transport, has given up altogether.
    ended: the number of operations that have ended, so that a caller waiting for many need not check each one.
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

    def start(
        self,
        name: str,
        steps: Steps,
        position: Position | None = None,
        scope: Scope | None = None,
        record: Record | None = None,
    ) -> Task:
        """Start a task; it has run as far as possible when this returns.

        A subtask has no name and no scope. A task whose scope has failed does not run.
        """
        task = Task(self, name, steps, position, scope, record)
        if scope is not None:
            if scope.failure is not None:
                task.cancel(scope.failure)
                return task
            scope.tasks.add(task)
        task.resume()
        return task

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
        if self.scopes.has_pending:  # after the tasks that met the failure themselves
            self.scopes.process_pending()

    def abort(self, reason: str) -> None:
        """Make every wait raise Aborted, and peers lose this rank for this reason. For any thread or signal handler."""
        self.failure = self.failure or Aborted(self.transport.rank, reason)
        self.transport.wake()

    def fail(self, scope: Scope, error: TransportError) -> None:
        """Fail a scope after one of its operations failed; a lost peer fails all scopes that contain it."""
        if isinstance(error, PeerLost) and not error.orderly:
            self.scopes.lose_peer(error)
        scope.fail(error)

    def check(self, scope: Scope | None) -> None:
        """Raise the error that ended this rank or the scope. Called in every wait, by the rank's own thread."""
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

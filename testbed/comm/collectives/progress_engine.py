"""Runs operations, written as generators, as far as their messages have come.

A generator yields tuples of requests (of a transport, or tasks begun by `Engine.start`) and goes on when all of a tuple
are done. Many are under way at once; they go on in the order in which their messages arrive. What goes wrong with one
of a communicator's operations ends all of its operations, and those of no other: see `failure_scopes`.
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
        """Whether it is over, well or not."""

    @property
    def error(self) -> TransportError | None:
        """Why it went wrong, once it is done."""

    on_done: Callable[[Any], None] | None


Steps = Generator[tuple[Waitable, ...], None, None]


class Position:
    """How far an operation is: phase, and round of rounds (0 where it has none). For errors, and whoever is curious.

    record: where it is written down, too.
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
    """Something that somebody else brings about, as something to wait for."""

    __slots__ = ("done", "error", "on_done")

    def __init__(self) -> None:
        self.done = False
        self.error: TransportError | None = None
        self.on_done: Callable[[Event], None] | None = None

    def come(self) -> None:
        """It has happened; again does nothing."""
        if not self.done:
            self.done = True
            if self.on_done is not None:
                self.on_done(self)


class Outcome(Event):
    """The end of a task, as something to wait for that does not fail who waits, whatever the task's `error` is."""

    __slots__ = ("task",)

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task
        if task.done:
            self.done = True
        else:
            task.on_done = lambda _: self.come()


class Task:
    """One generator on its way. `start_s`, `end_s`: CLOCK_MONOTONIC; `end_s` is NaN until it is done."""

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
        # a part of another task has no name, and nobody asks how long it took
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
        """The messages that it waits for now."""
        found: list[Request] = []
        for item in self._waiting:
            if item.done:
                continue
            if isinstance(item, Task):
                found += item.pending()
            elif isinstance(item, Request):
                found.append(item)
        return found

    def go_on(self) -> None:
        """Run until it has to wait again, or is done."""
        if self.done:  # with an error, while some of its messages were under way
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
                    heard = item.on_done  # somebody who only looks
                    item.on_done = self._on_done if heard is None else partial(self._after, heard)
            if missing:
                self._waiting = waiting
                self._missing = missing
                return

    def _after(self, heard: Callable[[Any], None], item: Waitable) -> None:
        heard(item)
        self._on_done(item)

    def _on_done(self, item: Waitable) -> None:
        self._missing -= 1
        if not self._missing or item.error is not None:
            self._engine.ready.append(self)

    def cancel(self, error: TransportError) -> None:
        """End it with this error, and its parts: they take no further message. What they have posted stays posted."""
        if not self.done:
            self._finish(error)

    def _finish(self, error: TransportError | None) -> None:
        self.done = True  # first: what fails because of it comes back here
        if self.name:
            self.end_s = time.monotonic()
            self._engine.ended += 1
            if error is not None and not error.during:  # else it is the one that another operation met
                where = str(self.position or "")
                error = error.during_operation(f"{self.name} ({where})" if where else self.name)
        self.error = error
        if self.record is not None:
            self.record.ended(COMPLETED if error is None else FAILED, self.end_s, str(error or ""))
        waiting, self._waiting = self._waiting, ()
        if error is not None:
            for item in waiting:
                if isinstance(item, Outcome):
                    item.task.cancel(error)
                elif isinstance(item, Task):
                    item.cancel(error)
        self._steps.close()
        if self.scope is not None:
            self.scope.tasks.discard(self)
            if error is not None:
                self._engine.fail(self.scope, error)
        if self.on_done is not None:
            self.on_done(self)


class Engine:
    """The tasks of one transport. `failure`: that the rank gives up altogether, or that its transport has.

    ended: how many operations have, so that who waits for many need not look at each whenever a frame comes.
    recorder: writes down what they do. costs: what operations take beside their messages; None: nothing.
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
        self._abort_told = False
        self._timers: list[tuple[float, int, Event]] = []
        self._timers_made = 0
        self._posted: deque[Event] = deque()

    def start(
        self,
        name: str,
        steps: Steps,
        position: Position | None = None,
        scope: Scope | None = None,
        record: Record | None = None,
    ) -> Task:
        """Begin; what can be done at once is done when this returns.

        A part of another task has no name of its own, and no scope. One whose scope has failed does not begin.
        """
        task = Task(self, name, steps, position, scope, record)
        if scope is not None:
            if scope.failure is not None:
                task.cancel(scope.failure)
                return task
            scope.tasks.add(task)
        task.go_on()
        return task

    def timer(self, time_s: float) -> Event:
        """What comes at this time of CLOCK_MONOTONIC."""
        event = Event()
        self._timers_made += 1  # of two for one moment the earlier comes first
        heapq.heappush(self._timers, (time_s, self._timers_made, event))
        return event

    def post(self, event: Event) -> None:
        """Have it come in the rank's own thread, soon. Any thread may call this."""
        self._posted.append(event)
        self.transport.wake()

    def progress(self, timeout_s: float | None = 0.0) -> None:
        """Move messages, waiting for them up to `timeout_s` (None: for ever), and let tasks go on; may return early."""
        ready = self.ready
        if self._timers and timeout_s != 0.0:
            left_s = max(0.0, self._timers[0][0] - time.monotonic())
            timeout_s = left_s if timeout_s is None else min(timeout_s, left_s)
        self.transport.progress(0.0 if ready else timeout_s)
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2].come()
        while self._posted:
            self._posted.popleft().come()
        while ready:
            ready.popleft().go_on()
        if self.scopes.stirred:  # after those that met a failure by themselves
            self.scopes.settle()

    def abort(self, reason: str) -> None:
        """Have every wait end with Aborted, and peers lose this rank for this reason. Any thread, or signal handler."""
        self.failure = self.failure or Aborted(self.transport.rank, reason)
        self.transport.wake()

    def fail(self, scope: Scope, error: TransportError) -> None:
        """One of a scope's operations went wrong: all of it ends; where a peer was lost, all scopes that have it."""
        if isinstance(error, PeerLost) and not error.orderly:
            self.scopes.lose(error)
        scope.fail(error)

    def check(self, scope: Scope | None) -> None:
        """Raise the error that ended the rank's part, or the scope. Called in every wait, by the rank's own thread."""
        if self.failure is not None:
            if isinstance(self.failure, Aborted) and not self._abort_told:
                self._abort_told = True
                self.transport.abort(self.failure.reason)
            raise self.failure
        if scope is not None and scope.failure is not None:
            raise scope.failure

    def sleep(self, seconds: float, scope: Scope | None) -> None:
        """Keep everything moving for this long. Raises the scope's error when one of its tasks fails, or has failed."""
        deadline_s = time.monotonic() + seconds
        left_s = seconds
        while left_s > 0:
            self.check(scope)
            self.progress(left_s)
            left_s = deadline_s - self.transport.now_s

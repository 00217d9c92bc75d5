"""Runs operations, written as generators, as far as their messages have come.

A generator yields tuples of requests (of a transport, or tasks begun by `Engine.start`) and goes on when all of a tuple
are done. Many are under way at once; they go on in the order in which their messages arrive.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol

from testbed.transport import Aborted, Request, Transport, TransportError


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
    """How far an operation is: phase, and round of rounds (0 where it has none). For errors, and whoever is curious."""

    __slots__ = ("phase", "round", "rounds")

    def __init__(self) -> None:
        self.phase = ""
        self.round = 0
        self.rounds = 0

    def __str__(self) -> str:
        return f"{self.phase}, round {self.round} of {self.rounds}" if self.rounds else self.phase


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
        "start_s",
    )

    def __init__(self, engine: Engine, name: str, steps: Steps, position: Position | None) -> None:
        self.name = name
        self.position = position
        # a part of another task has no name, and nobody asks how long it took
        self.start_s = time.monotonic() if name else float("nan")
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
                    item.on_done = self._on_done
            if missing:
                self._waiting = waiting
                self._missing = missing
                return

    def _on_done(self, item: Waitable) -> None:
        self._missing -= 1
        if not self._missing or item.error is not None:
            self._engine.ready.append(self)

    def _finish(self, error: TransportError | None) -> None:
        if self.name:
            self.end_s = time.monotonic()
            self._engine.ended += 1
            if error is not None:
                where = str(self.position or "")
                error = error.during_operation(f"{self.name} ({where})" if where else self.name)
                self._engine.failure = self._engine.failure or error
        self.error = error
        self.done = True
        self._steps.close()
        self._waiting = ()
        if self.on_done is not None:
            self.on_done(self)


class Engine:
    """The tasks of one transport. `failure` is the first error that any of them ended with, or that it was aborted.

    ended: how many operations have, so that who waits for many need not look at each whenever a frame comes.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.ready: deque[Task] = deque()
        self.failure: TransportError | None = None
        self.ended = 0
        self._abort_told = False

    def start(self, name: str, steps: Steps, position: Position | None = None) -> Task:
        """Begin; what can be done at once is done when this returns. A part of another task has no name of its own."""
        task = Task(self, name, steps, position)
        task.go_on()
        return task

    def progress(self, timeout_s: float | None = 0.0) -> None:
        """Move messages, waiting for them up to `timeout_s` (None: for ever), and let tasks go on; may return early."""
        ready = self.ready
        self.transport.progress(0.0 if ready else timeout_s)
        while ready:
            ready.popleft().go_on()

    def abort(self, reason: str) -> None:
        """Have every wait end with Aborted, and peers lose this rank for this reason. Any thread, or signal handler."""
        self.failure = self.failure or Aborted(self.transport.rank, reason)
        self.transport.wake()

    def check(self) -> None:
        """Raise the error that ended an operation. Called in every wait, by the rank's own thread."""
        if self.failure is None:
            return
        if isinstance(self.failure, Aborted) and not self._abort_told:
            self._abort_told = True
            self.transport.abort(self.failure.reason)
        raise self.failure

    def sleep(self, seconds: float) -> None:
        """Keep everything moving for this long. Raises the error of a task that fails meanwhile, or has failed."""
        deadline_s = time.monotonic() + seconds
        left_s = seconds
        while left_s > 0:
            self.check()
            self.progress(left_s)
            left_s = deadline_s - self.transport.now_s

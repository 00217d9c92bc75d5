"""The thread that a rank's collectives go on in while its program computes, and what others hand over to it.

A communicator belongs to one thread. Here that is one that does nothing else: it waits for sockets, for what is handed
over and for time-outs all at once, so nothing spins, and messages move while the program's own threads compute.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from testbed.comm.collectives import Communicator, Work
from testbed.comm.transport import TransportError

Result = TypeVar("Result")
Begin = Callable[[], Sequence[Work]]
CLOSED = "this rank has left its job"


class PendingOperation:
    """An operation that was handed over: its end, well or not, as any thread may wait for it.

    begin: starts it and says which Works it consists of. finish: what is to be done once all are done, before anybody
    hears of it. timeout_s: from when it begins.
    """

    def __init__(self, begin: Begin, finish: Callable[[], None] | None, timeout_s: float) -> None:
        self.begin = begin
        self.finish = finish
        self.timeout_s = timeout_s
        self.deadline_s = math.inf
        self.works: Sequence[Work] = ()
        self.error: Exception | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._heard: list[Callable[[], None]] = []

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return self._over.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until it is over, at most so long: whether it is. The operation's own error is raised."""
        if not self._over.wait(timeout_s):
            return False
        if self.error is not None:
            raise self.error
        return True

    def when_done(self, heard: Callable[[], None]) -> None:
        """Have this called once it is over, in whichever thread; at once where it is already."""
        with self._lock:
            if not self._over.is_set():
                self._heard.append(heard)
                return
        heard()

    def end(self, error: Exception | None) -> None:
        """It is over (for the worker)."""
        with self._lock:
            self.error = error
            self._over.set()
        for heard in self._heard:
            heard()
        self.begin, self.finish, self.works = _nothing, None, ()  # let go of all arrays


def _nothing() -> Sequence[Work]:
    return ()


class Worker:
    """A rank's communicator in a thread of its own. join: makes it, there; whatever it raises, `Worker` does."""

    def __init__(self, join: Callable[[], Communicator]) -> None:
        self._join = join
        self._asked: deque[Callable[[], None]] = deque()
        self._pending: list[PendingOperation] = []
        self._communicator: Communicator | None = None
        self._closing = False
        self._failure: Exception | None = None
        self._joined = threading.Event()
        self._thread = threading.Thread(target=self._run, name="testbed-collectives", daemon=True)
        self._thread.start()
        self._joined.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def communicator(self) -> Communicator:
        """Of all ranks; for the worker's own thread."""
        assert self._communicator is not None
        return self._communicator

    def hand_over(
        self, begin: Begin, finish: Callable[[], None] | None = None, timeout_s: float = 1800.0
    ) -> PendingOperation:
        """Have an operation begin soon, in the order in which they are handed over."""
        handed = PendingOperation(begin, finish, timeout_s)
        self._ask(lambda: self._begin(handed))
        return handed

    def call(self, function: Callable[[Communicator], Result]) -> Result:
        """Its result, from the worker's thread."""
        found: list[Any] = []
        self.hand_over(lambda: found.append(function(self.communicator)) or ()).wait()  # type: ignore[func-returns-value]
        return found[0]  # type: ignore[no-any-return]

    def close(self) -> None:
        """Send out what was begun, say goodbye, release everything; what is not done then fails."""
        self._closing = True
        with contextlib.suppress(TransportError):
            self._ask(_pass)
        self._thread.join()

    # ---- in the worker's thread

    def _ask(self, what: Callable[[], None]) -> None:
        if self._failure is not None or not self._thread.is_alive():
            raise TransportError(str(self._failure or CLOSED))
        self._asked.append(what)
        self.communicator.transport.wake()

    def _run(self) -> None:
        try:
            self._communicator = self._join()
        except Exception as error:
            self._failure = error
            return
        finally:
            self._joined.set()
        try:
            while not self._closing:
                self._turn()
            while self._asked:
                self._asked.popleft()()
        except Exception as error:
            self._failure = error
        finally:
            self._communicator.transport.close()
            failure = self._failure or TransportError(CLOSED)
            for handed in self._pending:
                handed.end(failure)

    def _turn(self) -> None:
        engine = self.communicator.engine
        nearest_s = min((handed.deadline_s for handed in self._pending), default=math.inf)
        if self._asked:
            left_s: float | None = 0.0
        else:
            left_s = None if math.isinf(nearest_s) else max(0.0, nearest_s - time.monotonic())
        engine.progress(left_s)
        engine.check(None)
        while self._asked:
            self._asked.popleft()()
        self._settle(engine.transport.now_s)

    def _begin(self, handed: PendingOperation) -> None:
        try:
            handed.works = handed.begin()
        except Exception as error:
            handed.end(error)
            return
        handed.deadline_s = time.monotonic() + handed.timeout_s
        self._pending.append(handed)

    def _settle(self, now_s: float) -> None:
        """End what is done, or has taken too long."""
        left = []
        for handed in self._pending:
            late = now_s >= handed.deadline_s
            if all(work.is_completed() for work in handed.works) or late:
                self._end(handed)
            else:
                left.append(handed)
        self._pending = left

    @staticmethod
    def _end(handed: PendingOperation) -> None:
        try:
            for work in handed.works:
                if not work.is_completed():
                    raise work.timed_out(handed.timeout_s)
                work.wait()  # raises its error
            if handed.finish is not None:
                handed.finish()
        except Exception as error:
            handed.end(error)
        else:
            handed.end(None)


def _pass() -> None:
    pass

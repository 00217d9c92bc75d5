"""The thread in which a rank's collectives progress while its program computes.

A communicator belongs to one thread. This thread does nothing else. It waits for sockets, submitted operations and
timeouts at the same time, so nothing spins, and messages progress while the program's own threads compute.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import Any, TypeVar

from testbed.comm.collectives import Communicator, Work
from testbed.comm.transport import TransportError

Result = TypeVar("Result")
Begin = Callable[[], Sequence[Work]]
Finish = Callable[[], object]
CLOSED = "this rank has left its job"


class PendingOperation(Future[None]):
    """A submitted operation, which any thread can wait for.

    begin: starts it and returns its Works.
    finish: called once all are done, before any waiter is notified.
    timeout_s: measured from its start.
    """

    def __init__(self, begin: Begin, finish: Finish | None, timeout_s: float) -> None:
        super().__init__()
        self.begin = begin
        self.finish = finish
        self.timeout_s = timeout_s
        self.deadline_s = math.inf
        self.works: Sequence[Work] = ()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end, at most `timeout_s`; returns whether it was reached. Raises the operation's own error."""
        if not futures.wait([self], timeout_s).done:
            return False
        self.result()
        return True

    def end(self, error: Exception | None) -> None:
        """Mark the operation as ended; called by the worker."""
        if error is None:
            self.set_result(None)
        else:
            self.set_exception(error)
        self.begin, self.finish, self.works = tuple, None, ()  # release all arrays


class Worker:
    """A rank's communicator in its own thread. `join` creates it there; the constructor raises any error of `join`."""

    def __init__(self, join: Callable[[], Communicator]) -> None:
        self._join = join
        self._requests: deque[Callable[[], None]] = deque()
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
        """The communicator of all ranks, for the worker's own thread."""
        assert self._communicator is not None
        return self._communicator

    def submit(
        self, begin: Begin, finish: Finish | None = None, timeout_s: float = 1800.0
    ) -> PendingOperation:
        """Start an operation soon, in the order of submission."""
        operation = PendingOperation(begin, finish, timeout_s)
        self._enqueue(lambda: self._begin(operation))
        return operation

    def call(self, function: Callable[[Communicator], Result]) -> Result:
        """Return the function's result, computed in the worker's thread."""
        found: list[Any] = []
        self.submit(lambda: found.append(function(self.communicator)) or ()).wait()  # type: ignore[func-returns-value]
        return found[0]  # type: ignore[no-any-return]

    def close(self) -> None:
        """Flush started sends, close all connections and release everything; unfinished operations fail."""
        self._closing = True
        with contextlib.suppress(TransportError):
            self._enqueue(lambda: None)
        self._thread.join()

    # ---- in the worker's thread

    def _enqueue(self, request: Callable[[], None]) -> None:
        if self._failure is not None or not self._thread.is_alive():
            raise TransportError(str(self._failure or CLOSED))
        self._requests.append(request)
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
                self._run_once()
            while self._requests:
                self._requests.popleft()()
        except Exception as error:
            self._failure = error
        finally:
            self._communicator.transport.close()
            failure = self._failure or TransportError(CLOSED)
            for operation in self._pending:
                operation.end(failure)

    def _run_once(self) -> None:
        engine = self.communicator.engine
        nearest_s = min((operation.deadline_s for operation in self._pending), default=math.inf)
        if self._requests:
            left_s: float | None = 0.0
        else:
            left_s = None if math.isinf(nearest_s) else max(0.0, nearest_s - time.monotonic())
        engine.progress(left_s)
        engine.check(None)
        while self._requests:
            self._requests.popleft()()
        self._end_finished(engine.transport.now_s)

    def _begin(self, operation: PendingOperation) -> None:
        try:
            operation.works = operation.begin()
        except Exception as error:
            operation.end(error)
            return
        operation.deadline_s = time.monotonic() + operation.timeout_s
        self._pending.append(operation)

    def _end_finished(self, now_s: float) -> None:
        """End operations that are done or have timed out."""
        left = []
        for operation in self._pending:
            late = now_s >= operation.deadline_s
            if all(work.is_completed() for work in operation.works) or late:
                self._end(operation)
            else:
                left.append(operation)
        self._pending = left

    @staticmethod
    def _end(operation: PendingOperation) -> None:
        try:
            for work in operation.works:
                if not work.is_completed():
                    raise work.timed_out(operation.timeout_s)
                work.wait()  # raises its error
            if operation.finish is not None:
                operation.finish()
        except Exception as error:
            operation.end(error)
        else:
            operation.end(None)

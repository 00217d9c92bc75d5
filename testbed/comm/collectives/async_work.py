"""Handles of operations in flight."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from testbed.comm.collectives.progress_engine import Engine, Task
from testbed.comm.transport import TransportError


class CollectiveTimeout(TransportError, TimeoutError):
    """A collective did not finish in time; names the operation, this rank, and the peers that it waits for.

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


class Work:
    """One operation in flight. `start_s`, `end_s`: CLOCK_MONOTONIC on this rank; `end_s` is NaN until it is done."""

    __slots__ = ("_engine", "_result", "_task", "_timeout_s")

    def __init__(self, engine: Engine, task: Task, timeout_s: float, result: Any = None) -> None:
        self._result = result
        self._engine = engine
        self._task = task
        self._timeout_s = timeout_s

    @property
    def name(self) -> str:
        """The operation and its sequence number, such as "all_reduce #12"."""
        return self._task.name

    @property
    def start_s(self) -> float:
        """The time of the call."""
        return self._task.start_s

    @property
    def end_s(self) -> float:
        """The time at which this rank had its result."""
        return self._task.end_s

    @property
    def result(self) -> Any:
        """Values that the operation returns besides its arrays; see the operation. None until it is done."""
        return self._result if self._task.done else None

    def is_completed(self) -> bool:
        """Return whether it has ended, successfully or not."""
        return self._task.done

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when it is done; after an error the contents of the arrays are undefined.

        Args:
            timeout_s: Seconds from now; None: the operation's own timeout, from its start.

        Raises:
            CollectiveTimeout: If it is not done in time; it can be waited for again.
            TransportError: PeerLost or Revoked as soon as this or another operation of its communicator has failed,
                Aborted once this rank has given up.
        """
        engine, task = self._engine, self._task
        if timeout_s is None:
            deadline_s, timeout_s = task.start_s + self._timeout_s, self._timeout_s
        else:
            deadline_s = time.monotonic() + timeout_s
        if not task.done:
            engine.progress(0.0)
        while not task.done:
            engine.check(task.scope)
            left_s = deadline_s - engine.transport.now_s
            if left_s <= 0:
                raise self.timed_out(timeout_s)
            engine.progress(left_s)
        if task.error is not None:
            raise task.error

    def timed_out(self, timeout_s: float) -> CollectiveTimeout:
        """Return the timeout error, with the peers that it waits for."""
        pending = self._task.pending()
        sends_to = sorted({request.peer for request in pending if request.kind == "send"})
        receives_from = sorted({request.peer for request in pending if request.kind == "recv"})
        rank = self._engine.transport.rank
        phase = str(self._task.position or "")
        return CollectiveTimeout(self.name, rank, sends_to, receives_from, timeout_s, phase)

"""The executor without dependencies: this process for little work, else a pool of processes on this machine."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

from testbed.gc_control import set_infrequent_gc
from testbed.prediction.executors.base import Function, Workers, WorkStopped
from testbed.processes import set_parent_death_signal

FEW = 24  # number of items that one process completes before others have started
BATCH = 4  # items per batch


@dataclass(frozen=True)
class Processes:
    """A pool of processes with the start method "spawn", or this process if there is one job."""

    jobs: int = 1

    @property
    def words(self) -> str:
        """See `Executor`."""
        return "this process" if self.jobs == 1 else f"{self.jobs} processes"

    @property
    def at_once(self) -> int:
        """See `Executor`."""
        return 1

    def stop(self) -> None:
        """Do nothing, since no other thread waits."""

    def workers(self, function: Function, common: Any) -> Workers:
        """See `Executor`."""
        return _PoolWorkers(self.jobs, function, common)


@dataclass
class _PoolWorkers:
    jobs: int
    function: Function
    common: Any
    _pool: ProcessPoolExecutor | None = field(default=None)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if self._pool is not None:
            # after an exception, do not wait for results that nobody needs
            self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def map(self, items: Sequence[Any]) -> Iterator[Any]:
        """See `Workers`."""
        if self.jobs > 1 and len(items) > FEW and self._pool is None:
            arguments = (self.function, self.common)
            self._pool = ProcessPoolExecutor(self.jobs, get_context("spawn"), _initialise, arguments)
        if self._pool is None or len(items) <= BATCH:
            return (self.function(self.common, item) for item in items)
        return _results(self._pool.map(_run_item, items, chunksize=BATCH))


def _results(results: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from results
    except BrokenProcessPool:
        message = "a worker process was killed, perhaps for lack of memory"
        hint = "the same command with -o FOLDER continues; --jobs 1 needs the least memory"
        raise WorkStopped(message, hint=hint) from None


_WORK: list[tuple[Function, Any]] = []  # the function and common argument of a worker process


def _initialise(function: Function, common: Any) -> None:
    set_parent_death_signal(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it and ends its processes
    set_infrequent_gc()
    _WORK[:] = [(function, common)]


def _run_item(item: Any) -> Any:
    function, common = _WORK[0]
    return function(common, item)

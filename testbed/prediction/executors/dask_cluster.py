"""Dask executor (the extra `dask`): local processes or a cluster, whose workers may die.

Dask repeats the tasks of a dead worker as long as another worker is left. The common argument is a separate task: when
the worker that holds it dies, the scheduler recomputes it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from testbed.prediction.executors.base import ExecutorError, Function, Workers, WorkStopped

INSTALL = "pip install 'scale-across-testbed[dask]'"
CONNECT_S = 10.0
POLL_S = 1.0  # interval to check whether there are workers
WITHOUT_WORKER_S = 60.0  # time without any worker after which the executor gives up
About = Callable[[], Mapping[str, str]]
"""A module's function that returns what must be equal on all workers, by name."""


@contextlib.contextmanager
def cluster(scheduler: str | None, jobs: int, about: About) -> Iterator[Cluster]:
    """Connect to a scheduler, or start `jobs` local processes, for the duration of a block.

    Args:
        scheduler: Address of a running scheduler; None for local processes.
        jobs: Number of local processes.
        about: Function that returns the values that must be equal on all workers.

    Raises:
        ExecutorError: If Dask is not installed, the scheduler does not answer, or a worker is missing or differs.
    """
    try:
        from distributed import Client, LocalCluster  # noqa: PLC0415 (slow, and optional)
    except ImportError:
        raise ExecutorError("--engine dask: Dask is not installed", hint=INSTALL) from None
    with contextlib.ExitStack() as stack:
        if scheduler is None:
            own = LocalCluster(
                n_workers=jobs,
                threads_per_worker=1,
                processes=True,
                dashboard_address=None,
                host="127.0.0.1",
                silence_logs=logging.CRITICAL,
            )
            client = stack.enter_context(Client(stack.enter_context(own)))
        else:
            try:
                client = stack.enter_context(Client(scheduler, timeout=CONNECT_S))
            except (OSError, ValueError) as error:
                raise ExecutorError(f"--scheduler {scheduler}: no answer ({error})") from None
        found = Cluster(client, scheduler or "this machine", about)
        found.check()
        yield found


@dataclass(frozen=True)
class Cluster:
    """A client of a scheduler; `where` is the scheduler's address, for messages."""

    client: Any
    where: str
    about: About
    _stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def words(self) -> str:
        """See `Executor`."""
        count = self.at_once
        return f"{count} worker{'' if count == 1 else 's'} of Dask at {self.where}"

    @property
    def at_once(self) -> int:
        """The current number of workers, at least one."""
        return max(1, len(_workers(self.client)))

    def check(self) -> None:
        """Raise ExecutorError unless there are workers that all match this machine."""
        if not _workers(self.client):
            raise ExecutorError(
                f"the scheduler at {self.where} has no worker", hint="start one: dask worker ADDRESS"
            )
        expected = dict(self.about())
        try:
            found: Mapping[str, Mapping[str, str]] = self.client.run(_about_here, self.about)
        except ImportError as error:
            raise ExecutorError(f"a worker of {self.where} has no testbed: {error}") from None
        different = [
            f"worker {worker}: {words}"
            for worker, own in found.items()
            if (words := difference(own, expected))
        ]
        if different:
            hint = "workers need the same testbed, Python, calibration and kernel of the virtual clock"
            raise ExecutorError("\n".join(different), hint=hint)

    def stop(self) -> None:
        """See `Executor`."""
        self._stopped.set()

    def workers(self, function: Function, common: Any) -> Workers:
        """See `Executor`."""
        return _DaskWorkers(self, function, common)


def difference(own: Mapping[str, str], expected: Mapping[str, str]) -> str:
    """Describe how a worker differs from the expected values; empty if it does not."""
    return "; ".join(
        f"{name} {own.get(name, 'none')}, expected {value}"
        for name, value in expected.items()
        if own.get(name) != value
    )


class _DaskWorkers:
    def __init__(self, engine: Cluster, function: Function, common: Any) -> None:
        self.client, self.about, self.where = engine.client, engine.about, engine.where
        self.function, self.common, self.stopped = function, common, engine._stopped
        self.expected = dict(engine.about())
        self._futures: list[Any] = []
        self._common: Any = None  # a future

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        with contextlib.suppress(Exception):  # the scheduler may be gone
            self.client.cancel(self._futures)
        self._futures = []

    def map(self, items: Sequence[Any]) -> Iterator[Any]:
        """See `Workers`."""
        if not items:
            return
        if self._common is None:
            self._common = self.client.submit(_identity, self.common, pure=False)
            self._futures.append(self._common)
        about = {"about": self.about, "expected": self.expected}
        futures = self.client.map(
            _run_item, list(items), function=self.function, common=self._common, pure=False, **about
        )
        self._futures += futures
        for future in futures:
            yield self._result(future)

    def _result(self, future: Any) -> Any:
        """Wait for a task's result, from any worker; raise WorkStopped if no worker will compute it."""
        from distributed import KilledWorker  # noqa: PLC0415
        from distributed import TimeoutError as DaskTimeout  # noqa: PLC0415

        last_worker_s = time.monotonic()
        while not self.stopped.is_set():
            try:
                return future.result(timeout=POLL_S)
            except KilledWorker as error:
                raise self._stopped_error(f"one piece of work ended several workers: {error}") from None
            except (DaskTimeout, OSError, CancelledError) as error:
                if future.status == "error":
                    raise  # the task's own exception
                if not isinstance(error, DaskTimeout):
                    raise self._stopped_error(f"lost the scheduler ({error})") from None
            if _workers(self.client):
                last_worker_s = time.monotonic()
            elif time.monotonic() - last_worker_s > WITHOUT_WORKER_S:
                raise self._stopped_error(f"no worker for {WITHOUT_WORKER_S:.0f} s")
        raise self._stopped_error("stopped")

    def _stopped_error(self, why: str) -> WorkStopped:
        return WorkStopped(f"{self.where}: {why}", hint=CONTINUE_HINT)


CONTINUE_HINT = "finished work is kept: the same command with -o FOLDER continues"


def _workers(client: Any) -> Sequence[str]:
    try:
        return list(client.nthreads())
    except OSError:
        return []


def _identity(value: Any) -> Any:
    return value


def _about_here(about: About) -> Mapping[str, str]:
    return _cached_about(about)


@lru_cache(maxsize=2)
def _cached_about(about: About) -> Mapping[str, str]:
    """Return the values, cached per process, since a worker's code does not change."""
    return dict(about())


def _run_item(
    item: Any, *, function: Function, common: Any, about: About, expected: Mapping[str, str]
) -> Any:
    """Run one item, and first check the worker if it joined later."""
    if words := difference(_cached_about(about), expected):
        raise ExecutorError(f"a worker that joined later differs from this machine: {words}")
    return function(common, item)

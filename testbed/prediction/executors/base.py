"""The executor interface: apply a function to items on any workers and return the results in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from testbed.errors import TestbedError

Function = Callable[[Any, Any], Any]
"""Takes the common argument and an item. It must be a module's function, so that other processes can import it."""


class Workers(Protocol):
    """Workers that run one function; a context manager."""

    def map(self, items: Sequence[Any]) -> Iterator[Any]:
        """Yield the result of each item in order.

        Raises:
            WorkStopped: If a worker is killed.
            ExecutorError: If the workers cannot be used.

        Exceptions of the function are propagated.
        """

    def __enter__(self) -> Workers: ...

    def __exit__(self, kind: object, *rest: object) -> None: ...


class Executor(Protocol):
    """A source of workers. Functions must be idempotent, since an item is repeated when its worker dies."""

    @property
    def words(self) -> str:
        """A description of the workers for messages."""

    @property
    def at_once(self) -> int:
        """The number of runs that its workers execute at once; 1 if this machine executes them."""

    def stop(self) -> None:
        """Abort all work; a thread that waits for results gets WorkStopped."""

    def workers(self, function: Function, common: Any) -> Workers:
        """Return workers for this function; `common` is sent to each of them once."""


class WorkStopped(TestbedError):
    """The error raised if a worker process is killed from outside."""


class ExecutorError(TestbedError):
    """The error for an executor that is unavailable or whose workers differ from this machine."""

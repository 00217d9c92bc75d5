"""Executor interface: apply a function to items anywhere and return the results in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from testbed.errors import TestbedError

Function = Callable[[Any, Any], Any]
"""Takes the common argument and an item. It must be a module's function, so that other processes can import it."""


class Workers(Protocol):
    """Workers that run one function, as a context manager."""

    def map(self, items: Sequence[Any]) -> Iterator[Any]:
        """Yield the result of each item in order.

        Raises:
            WorkStopped: A worker was killed.
            ExecutorError: The workers cannot be used.

        Exceptions of the function are passed on.
        """

    def __enter__(self) -> Workers: ...

    def __exit__(self, kind: object, *rest: object) -> None: ...


class Executor(Protocol):
    """A source of workers. Functions must be idempotent: an item is repeated when its worker dies."""

    @property
    def words(self) -> str:
        """A description of the workers for people."""

    @property
    def at_once(self) -> int:
        """How many runs its workers execute at once; 1 if this machine executes them."""

    def stop(self) -> None:
        """Abort all work; a thread that waits for it gets WorkStopped."""

    def workers(self, function: Function, common: Any) -> Workers:
        """Return workers for this function; `common` is sent to each of them once."""


class WorkStopped(TestbedError):
    """A worker process was killed from outside."""


class ExecutorError(TestbedError):
    """An executor is not available, or its workers differ from this machine."""

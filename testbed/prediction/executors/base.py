"""What an engine is: it applies a function to items, wherever it likes, and gives the results in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from testbed.errors import TestbedError

Function = Callable[[Any, Any], Any]
"""Takes what all items have in common, and an item. Of a module, so that it is found elsewhere by its name."""


class Workers(Protocol):
    """Does one kind of work for the length of a block."""

    def map(self, items: Sequence[Any]) -> Iterator[Any]:
        """What each item comes to, in their order. WorkStopped, ExecutorError, and what the function raises."""

    def __enter__(self) -> Workers: ...

    def __exit__(self, kind: object, *rest: object) -> None: ...


class Executor(Protocol):
    """Has workers. Functions must do no harm when they are called again for the same item: a worker may have died."""

    @property
    def words(self) -> str:
        """Who works, for people."""

    @property
    def at_once(self) -> int:
        """How many runs its workers carry at once; one where this machine carries them by itself."""

    def stop(self) -> None:
        """Give up all that is being done, for whoever waits for it in another thread: that ends with WorkStopped."""

    def workers(self, function: Function, common: Any) -> Workers:
        """For this function; `common` is sent to each of them once."""


class WorkStopped(TestbedError):
    """A process that did some of the work was ended by somebody else."""


class ExecutorError(TestbedError):
    """An engine that is not there, or whose workers are not as this machine is."""

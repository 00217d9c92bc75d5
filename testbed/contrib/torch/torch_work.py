"""PyTorch's Work and Future of an operation that the worker carries out."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from testbed.contrib.torch.roofline import pay_all
from testbed.contrib.torch.worker import Handed

# What follows on a future may wait for operations in its turn, so it cannot run in the worker's thread.
_MOST_FOLLOWING = 16
_following: list[ThreadPoolExecutor] = []


class Work(dist.Work):  # type: ignore[misc]
    """One operation, or several as one. tensors: its results, as futures have them."""

    def __init__(self, parts: Sequence[Handed], tensors: Any) -> None:
        super().__init__()
        self.parts = parts
        self._tensors = tensors
        self._future: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Until it is done; an error is raised. timeout: of this wait; without it the operation's own counts."""
        pay_all()
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        for part in self.parts:
            try:
                done = part.wait(seconds if seconds > 0 else None)
            except Exception as error:
                raise dist.DistBackendError(str(error)) from error
            if not done:
                raise dist.DistBackendError(f"not done within {seconds:g} s")
        return True

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it is over, well or not."""
        return all(part.done for part in self.parts)

    def is_success(self) -> bool:
        """Whether it is over, well."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """What went wrong, if anything has so far."""
        return next((part.error for part in self.parts if part.error is not None), None)

    def result(self) -> Any:
        """Its tensors."""
        return self._tensors

    def get_future(self) -> torch.futures.Future[Any]:
        """Its tensors, once it is done; what follows on it may wait for other operations."""
        if self._future is None:
            self._future = torch.futures.Future()
            self._hear(0)
        return self._future

    def _hear(self, number: int) -> None:
        """When this part is done look at the next; after the last one the future is over."""
        if number < len(self.parts):
            self.parts[number].when_done(lambda: self._hear(number + 1))
            return
        if not _following:
            _following.append(ThreadPoolExecutor(_MOST_FOLLOWING, "testbed-following"))
        _following[0].submit(self._tell)

    def _tell(self) -> None:
        assert self._future is not None
        error = self.exception()
        if error is None:
            self._future.set_result(self._tensors)
        else:
            self._future.set_exception(dist.DistBackendError(str(error)))

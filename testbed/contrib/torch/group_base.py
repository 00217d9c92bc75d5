"""What every process group of ours is to PyTorch, and how its operations are handed over to the worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from testbed.comm import collectives
from testbed.comm.collectives import Communicator
from testbed.contrib.torch.launch_env import ProgramJob
from testbed.contrib.torch.roofline import pay_all
from testbed.contrib.torch.worker import PendingOperation, Worker

NAME = "testbed"
Tensors = Sequence[torch.Tensor]
Begin = Callable[[], collectives.Work]


class ProcessGroupBase(dist.ProcessGroup):  # type: ignore[misc]
    """Ranks of a job that do things together; which things, says `Group`.

    communicator: their own, of which the worker's thread alone makes use. timeout_s: of operations without one of their
    own, after which who waits is told whom for. All operations begin in the order in which the program asks for them.
    """

    def __init__(
        self, worker: Worker, communicator: Communicator, job: ProgramJob, timeout_s: float, store: Any
    ) -> None:
        super().__init__(communicator.rank, communicator.size)
        self._worker = worker
        self._communicator = communicator
        self._job = job
        self._timeout_s = timeout_s
        self._store = store
        self._name, self._words = communicator.name, ""
        self._together: list[Work] | None = None

    # ---- what it is

    def getBackendName(self) -> str:
        """See c10d."""
        return NAME

    def name(self) -> str:
        """See c10d."""
        return NAME

    def getGroupName(self) -> str:
        """See c10d, whose own asks a backend in C++ for it."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """See c10d."""
        self._name = name

    def getGroupDesc(self) -> str:
        """See c10d."""
        return self._words

    def setGroupDesc(self, words: str) -> None:
        """See c10d."""
        self._words = words

    group_name, group_desc = property(getGroupName), property(getGroupDesc)
    _set_group_name, _set_group_desc = setGroupName, setGroupDesc

    def get_group_store(self) -> Any:
        """Where its ranks tell each other things."""
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    @property
    def supports_splitting(self) -> bool:
        """Not by PyTorch's own way: new groups are made anew."""
        return False

    @property
    def supports_coalescing(self) -> bool:
        """Whether operations begin together; in the order in which they are asked for, which is as good."""
        return False

    def _get_backend(self, device: torch.device) -> ProcessGroupBase:
        return self

    def set_timeout(self, timeout: timedelta) -> None:
        """Of operations that begin from now on."""
        self._timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Let go of what it has; the job's sockets, which all groups share, are closed when the program ends."""
        self._store = None

    def abort(self) -> None:
        """End its operations, here and on all its ranks."""
        self._worker.call(lambda _: self._communicator.abort("its process group was aborted"))

    # ---- several as one

    def start_coalescing(self, device: torch.device) -> None:
        """What begins from now on ends as one."""
        self._together = []

    def end_coalescing(self, device: torch.device) -> Work:
        """All that has begun since, as one."""
        works, self._together = self._together or [], None
        return Work([part for work in works for part in work.parts], [work.result() for work in works])

    _start_coalescing, _end_coalescing = start_coalescing, end_coalescing

    # ---- how

    def _hand_over(self, begin: Begin, finish: Callable[[], None] | None, opts: Any) -> PendingOperation:
        pay_all()
        return self._worker.hand_over(lambda: (begin(),), finish, self._seconds(opts))

    def _seconds(self, opts: Any) -> float:
        timeout = getattr(opts, "timeout", None)
        given_s = timeout.total_seconds() if timeout is not None else 0.0
        return given_s if given_s > 0 else self._timeout_s

    def _one(self, part: PendingOperation, tensors: Any) -> Work:
        return self._several([part], tensors)

    def _all(self, tensors: Tensors, one: Callable[[torch.Tensor], PendingOperation]) -> Work:
        return self._several([one(tensor) for tensor in tensors], list(tensors))

    def _several(self, parts: Sequence[PendingOperation], tensors: Any) -> Work:
        work = Work(parts, tensors)
        if self._together is not None:
            self._together.append(work)
        return work


# What follows on a future may wait for operations in its turn, so it cannot run in the worker's thread.
_MOST_FOLLOWING = 16
_following: list[ThreadPoolExecutor] = []


class Work(dist.Work):  # type: ignore[misc]
    """One operation, or several as one. tensors: its results, as futures have them."""

    def __init__(self, parts: Sequence[PendingOperation], tensors: Any) -> None:
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

"""The base of process groups: the interface that PyTorch requires, and submission of operations to the worker.

`Work` is PyTorch's handle, with a future, of operations that the worker executes.
"""

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
from testbed.contrib.torch.roofline import sleep_pending
from testbed.contrib.torch.worker import Finish, PendingOperation, Worker

NAME = "testbed"
Tensors = Sequence[torch.Tensor]
Begin = Callable[[], collectives.Work]


class ProcessGroupBase(dist.ProcessGroup):  # type: ignore[misc]
    """A process group without its operations, which `Group` adds and which start in the order of calls.

    communicator: used by the worker's thread only.
    timeout_s: timeout of operations without their own; a wait that times out reports which ranks it waited for.
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
        self._name, self._description = communicator.name, ""
        self._coalesced: list[Work] | None = None

    # ---- properties

    def name(self) -> str:
        """See c10d."""
        return NAME

    getBackendName = name

    def getGroupName(self) -> str:
        """See c10d; its own implementation would ask a C++ backend."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """See c10d."""
        self._name = name

    def getGroupDesc(self) -> str:
        """See c10d."""
        return self._description

    def setGroupDesc(self, description: str) -> None:
        """See c10d."""
        self._description = description

    group_name, group_desc = property(getGroupName), property(getGroupDesc)
    _set_group_name, _set_group_desc = setGroupName, setGroupDesc

    def get_group_store(self) -> Any:
        """Return the store that the group's ranks share."""
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    @property
    def supports_splitting(self) -> bool:
        """Return False: new groups are always made from scratch."""
        return False

    @property
    def supports_coalescing(self) -> bool:
        """Return False: coalesced operations start one by one, in order, with the same effect."""
        return False

    def _get_backend(self, device: torch.device) -> ProcessGroupBase:
        return self

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of operations that start from now on."""
        self._timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Release the store; the job's sockets, which all groups share, are closed when the program ends."""
        self._store = None

    def abort(self) -> None:
        """End the group's operations, on this rank and all others."""
        self._worker.call(lambda _: self._communicator.abort("its process group was aborted"))

    # ---- coalescing

    def start_coalescing(self, device: torch.device) -> None:
        """Collect all operations that start from now on into one Work."""
        self._coalesced = []

    def end_coalescing(self, device: torch.device) -> Work:
        """Return one Work for all operations since `start_coalescing`."""
        works, self._coalesced = self._coalesced or [], None
        return Work([part for work in works for part in work.parts], [work.result() for work in works])

    _start_coalescing, _end_coalescing = start_coalescing, end_coalescing

    # ---- shared by all operations

    def _submit(self, begin: Begin, finish: Finish | None, opts: Any) -> PendingOperation:
        sleep_pending()
        return self._worker.submit(lambda: (begin(),), finish, self._seconds(opts))

    def _seconds(self, opts: Any) -> float:
        timeout = getattr(opts, "timeout", None)
        given_s = timeout.total_seconds() if timeout is not None else 0.0
        return given_s if given_s > 0 else self._timeout_s

    def _all(self, tensors: Tensors, one: Callable[[torch.Tensor], PendingOperation]) -> Work:
        return self._several([one(tensor) for tensor in tensors], list(tensors))

    def _several(self, parts: Sequence[PendingOperation], tensors: Any) -> Work:
        work = Work(parts, tensors)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work


# Callbacks of a future may wait for operations themselves, so they cannot run in the worker's thread.
_MOST_CALLBACKS = 16
_callback_pool: list[ThreadPoolExecutor] = []


class Work(dist.Work):  # type: ignore[misc]
    """One operation, or several combined. tensors: its results, which futures return."""

    def __init__(self, parts: Sequence[PendingOperation], tensors: Any) -> None:
        super().__init__()
        self.parts = parts
        self._tensors = tensors
        self._future: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the operation is done; raises its error. Without `timeout`, its own timeout applies."""
        sleep_pending()
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
        """See `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the operation has ended, successfully or not."""
        return all(part.done() for part in self.parts)

    def is_success(self) -> bool:
        """Return whether the operation has ended successfully."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Return the first error so far, if any."""
        errors = (part.exception() for part in self.parts if part.done())
        return next(filter(None, errors), None)

    def result(self) -> Any:
        """Return the operation's tensors."""
        return self._tensors

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of the tensors; its callbacks may wait for other operations."""
        if self._future is None:
            self._future = torch.futures.Future()
            self._watch(0)
        return self._future

    def _watch(self, number: int) -> None:
        """Watch the parts in sequence; the future is complete after the last one."""
        if number < len(self.parts):
            self.parts[number].add_done_callback(lambda _: self._watch(number + 1))
            return
        if not _callback_pool:
            _callback_pool.append(ThreadPoolExecutor(_MOST_CALLBACKS, "testbed-callbacks"))
        _callback_pool[0].submit(self._complete_future)

    def _complete_future(self) -> None:
        assert self._future is not None
        error = self.exception()
        if error is None:
            self._future.set_result(self._tensors)
        else:
            self._future.set_exception(dist.DistBackendError(str(error)))

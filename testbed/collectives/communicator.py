"""The communicator: collectives among all ranks of a job, with torch.distributed's names, over any transport.

One thread: collectives move inside `Work.wait`, `Communicator.sleep` (timed waiting that stands for computing) and every
blocking call. All ranks must start the same collectives in the same order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from testbed.collectives.algorithms import (
    TAG_STEPS,
    Array,
    Ring,
    Steps,
    binomial_broadcast,
    dissemination_barrier,
    hierarchical_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from testbed.transport import Request, Transport

REDUCTIONS: dict[str, np.ufunc] = {
    "sum": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}
DTYPES = ("float32", "float64", "int32", "int64")
_POINT_TO_POINT = 1 << 62  # tags of send and receive lie apart from those of collectives


class CollectiveError(Exception):
    """A collective failed; says which, its number, this rank, and what happened."""


class CollectiveTimeoutError(CollectiveError):
    """A collective did not finish in its time; names the peers that it waited for."""


class Work:
    """A collective or message that was started. `start_s` and `end_s` are times of CLOCK_MONOTONIC."""

    def __init__(self, communicator: Communicator, name: str, number: int, steps: Steps) -> None:
        self.name = name
        self.number = number
        self.start_s = time.monotonic()
        self.end_s = float("nan")
        self._communicator = communicator
        self._steps = steps
        self._waiting: list[Request] = []
        self._outstanding = 0
        self._done = False
        self._error: CollectiveError | None = None

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._done

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the end, moving everything that is in flight.

        CollectiveTimeoutError after `timeout_s` (default: the communicator's), counted from the call;
        CollectiveError when a peer is lost or the ranks do not agree.
        """
        limit_s = self._communicator.timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit_s
        while not self._done:
            left = deadline - time.monotonic()
            if left <= 0:
                raise CollectiveTimeoutError(
                    f"{self._title()} did not finish within {limit_s:g} s: {self._missing()}"
                )
            self._communicator.progress(left)
        if self._error is not None:
            raise self._error

    def _title(self) -> str:
        return f"rank {self._communicator.rank}: {self.name} number {self.number}"

    def _missing(self) -> str:
        pending = [request for request in self._waiting if not request.done]
        said = [
            f"waiting for {what} rank{'s' if len(peers) > 1 else ''} {', '.join(map(str, peers))}"
            for what, incoming in (("data from", True), ("room to send to", False))
            if (peers := sorted({request.peer for request in pending if request.incoming == incoming}))
        ]
        return " and ".join(said) or "nothing pending"

    def _one_done(self, request: Request) -> None:
        self._outstanding -= 1
        if self._outstanding == 0:
            self._communicator._ready.append(self)

    def _advance(self) -> None:
        """Go on until something has to be waited for."""
        while not self._done:
            failed = next((request.error for request in self._waiting if request.error is not None), None)
            if failed is not None:
                self._finish(CollectiveError(f"{self._title()} failed: {failed}"))
                return
            requests = next(self._steps, None)
            if requests is None:
                self._finish(None)
                return
            self._waiting = requests
            pending = [request for request in requests if not request.done]
            if pending:
                self._outstanding = len(pending)
                for request in pending:
                    request.callback = self._one_done
                return

    def _finish(self, error: CollectiveError | None) -> None:
        self._steps.close()
        self._error = error
        self._done = True
        self.end_s = time.monotonic()


class Communicator:
    """All ranks of a job. `groups[rank]` is the building of a rank; `timeout_s` bounds every wait."""

    def __init__(
        self, transport: Transport, groups: Sequence[int] | None = None, timeout_s: float = 30.0
    ) -> None:
        self.transport = transport
        self.rank = transport.rank
        self.size = transport.size
        self.groups = list(groups) if groups is not None else [0] * transport.size
        if len(self.groups) != self.size:
            raise ValueError(
                f"groups: {len(self.groups)} entries, expected one for each of {self.size} ranks"
            )
        self.timeout_s = timeout_s
        self._ready: deque[Work] = deque()
        self._numbers: Iterator[int] = iter(range(1 << 37))

    def progress(self, timeout_s: float = 0.0) -> None:
        """Move what can be moved, waiting at most `timeout_s` for something to move."""
        self.transport.progress(0.0 if self._ready else timeout_s)
        while self._ready:
            self._ready.popleft()._advance()

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass while everything in flight goes on: timed waiting in place of computing."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.progress(left)

    def _start(self, name: str, steps: Steps, number: int, async_op: bool) -> Work:
        work = Work(self, name, number, steps)
        work._advance()
        if not async_op:
            work.wait()
        return work

    def _next(self) -> tuple[int, int]:
        """Number of the next collective, and the first of its tags."""
        number = next(self._numbers)
        return number, number * TAG_STEPS

    def all_reduce(
        self, array: Array, op: str = "sum", algorithm: str = "ring", async_op: bool = False
    ) -> Work:
        """Reduce `array` over all ranks, in place. `op`: sum, product, min, max. `algorithm`: ring, hierarchical."""
        vector, reduce = _vector(array), _reduction(op)
        number, tag = self._next()
        if algorithm == "ring":
            steps = ring_all_reduce(self._ring(tag), vector, reduce)
        elif algorithm == "hierarchical":
            steps = hierarchical_all_reduce(self.transport, self.groups, tag, vector, reduce)
        else:
            raise ValueError(f"algorithm: got {algorithm!r}, expected ring or hierarchical")
        return self._start(f"all_reduce ({algorithm}, {array.nbytes} bytes)", steps, number, async_op)

    def reduce_scatter_tensor(
        self, output: Array, input: Array, op: str = "sum", async_op: bool = False
    ) -> Work:
        """Reduce `input` over all ranks; each keeps its part in `output`. input.size == size * output.size."""
        vector, target, reduce = _vector(input), _vector(output), _reduction(op)
        self._check_parts("input", vector, "output", target)
        number, tag = self._next()

        def steps() -> Steps:
            parts = vector.copy()  # the partial sums need room, and the input is the caller's
            chunks = np.split(parts, self.size)
            yield from ring_reduce_scatter(self._ring(tag), chunks, reduce)
            target[:] = chunks[self.rank]

        return self._start(f"reduce_scatter_tensor ({input.nbytes} bytes)", steps(), number, async_op)

    def all_gather_into_tensor(self, output: Array, input: Array, async_op: bool = False) -> Work:
        """Put every rank's `input` together in `output`, in rank order. output.size == size * input.size."""
        vector, part = _vector(output), _vector(input)
        self._check_parts("output", vector, "input", part)
        number, tag = self._next()
        chunks = np.split(vector, self.size)
        chunks[self.rank][:] = part
        steps = ring_all_gather(self._ring(tag), chunks)
        return self._start(f"all_gather_into_tensor ({output.nbytes} bytes)", steps, number, async_op)

    def broadcast(self, array: Array, src: int, async_op: bool = False) -> Work:
        """Give all ranks what `array` holds on rank `src`."""
        self._check_rank("src", src)
        number, tag = self._next()
        steps = binomial_broadcast(self.transport, src, tag, _vector(array))
        return self._start(f"broadcast ({array.nbytes} bytes)", steps, number, async_op)

    def barrier(self, async_op: bool = False) -> Work:
        """Wait until all ranks have come here."""
        number, tag = self._next()
        return self._start("barrier", dissemination_barrier(self.transport, tag), number, async_op)

    def isend(self, array: Array, dst: int, tag: int = 0) -> Work:
        """Start to send; `array` must not change until the work is done."""
        self._check_rank("dst", dst)
        view = memoryview(_vector(array))

        def steps() -> Steps:
            yield [self.transport.isend(dst, _POINT_TO_POINT | tag, view)]

        return self._start(f"send to rank {dst} ({array.nbytes} bytes)", steps(), tag, async_op=True)

    def irecv(self, array: Array, src: int, tag: int = 0) -> Work:
        """Start to receive into `array`, which must be as large as what was sent."""
        self._check_rank("src", src)
        view = memoryview(_vector(array))

        def steps() -> Steps:
            yield [self.transport.irecv(src, _POINT_TO_POINT | tag, view)]

        return self._start(f"receive from rank {src} ({array.nbytes} bytes)", steps(), tag, async_op=True)

    def send(self, array: Array, dst: int, tag: int = 0) -> None:
        """Send; returns when `array` may change again."""
        self.isend(array, dst, tag).wait()

    def recv(self, array: Array, src: int, tag: int = 0) -> None:
        """Receive into `array`."""
        self.irecv(array, src, tag).wait()

    def _ring(self, tag: int) -> Ring:
        return Ring(self.transport, range(self.size), tag)

    def _check_rank(self, name: str, rank: int) -> None:
        if not 0 <= rank < self.size or (rank == self.rank and name == "dst"):
            raise ValueError(f"{name}: got {rank}, expected another rank from 0 to {self.size - 1}")

    def _check_parts(self, whole_name: str, whole: Array, part_name: str, part: Array) -> None:
        if whole.dtype != part.dtype or whole.size != part.size * self.size:
            raise ValueError(
                f"{whole_name}: got {whole.size} elements of {whole.dtype}, expected {self.size} times {part_name}'s"
                f" {part.size} of {part.dtype}"
            )


def _vector(array: Array) -> Array:
    """The array as one dimension, without copying. TypeError for other than contiguous arrays of a known type."""
    if not isinstance(array, np.ndarray) or array.dtype.name not in DTYPES or not array.flags.c_contiguous:
        found = f"{array.dtype.name} array" if isinstance(array, np.ndarray) else type(array).__name__
        raise TypeError(f"array: got {found}, expected a C-contiguous numpy array of {', '.join(DTYPES)}")
    return array.reshape(-1)


def _reduction(op: str) -> Any:
    if op not in REDUCTIONS:
        raise ValueError(f"op: got {op!r}, expected one of {', '.join(REDUCTIONS)}")
    return REDUCTIONS[op]

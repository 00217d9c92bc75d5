"""Collectives over a transport, under torch.distributed's names, on numpy arrays."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from testbed.collectives.algorithms import (
    OPERATIONS,
    Array,
    Operation,
    Ring,
    as_bytes,
    dissemination_barrier,
    hierarchical_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    tree_broadcast,
)
from testbed.collectives.engine import Engine, Steps, Task, Waitable
from testbed.transport import Transport, TransportError

ALGORITHMS = ("ring", "hierarchical")
DTYPES = ("float32", "float64", "int32", "int64")
_DTYPES = frozenset(map(np.dtype, DTYPES))

# a tag: 1 bit for point-to-point, then either the caller's tag, or a sequence number and a channel within a collective
_POINT_TO_POINT = 1 << 62
_CHANNEL_BITS = 16


class CollectiveTimeout(TransportError, TimeoutError):
    """A collective that did not finish in time: its name and number, this rank, and the peers that it waits for."""

    def __init__(
        self, name: str, rank: int, sends_to: Sequence[int], receives_from: Sequence[int], timeout_s: float
    ) -> None:
        self.name, self.rank, self.timeout_s = name, rank, timeout_s
        self.sends_to, self.receives_from = tuple(sends_to), tuple(receives_from)
        waits = [
            f"to {verb} rank {', '.join(map(str, peers))}"
            for verb, peers in (("receive from", self.receives_from), ("send to", self.sends_to))
            if peers
        ]
        super().__init__(
            f"{name} on rank {rank}: not done within {timeout_s:g} s; waits {' and '.join(waits)}"
        )


class Work:
    """One operation under way. `start_s`, `end_s`: CLOCK_MONOTONIC on this rank; `end_s` is NaN until it is done."""

    __slots__ = ("_engine", "_task", "_timeout_s")

    def __init__(self, engine: Engine, task: Task, timeout_s: float) -> None:
        self._engine = engine
        self._task = task
        self._timeout_s = timeout_s

    @property
    def name(self) -> str:
        """The operation and its sequence number, such as "all_reduce #12"."""
        return self._task.name

    @property
    def start_s(self) -> float:
        """When it was asked for."""
        return self._task.start_s

    @property
    def end_s(self) -> float:
        """When this rank had its result."""
        return self._task.end_s

    def is_completed(self) -> bool:
        """Whether it is over, well or not."""
        return self._task.done

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when it is done; after an error the arrays' contents are undefined.

        Raises CollectiveTimeout `timeout_s` from now, or by default the communicator's timeout after its start;
        TransportError (PeerLost) as soon as this or any other operation of the communicator has failed.
        """
        engine, task = self._engine, self._task
        if timeout_s is None:
            deadline_s, timeout_s = task.start_s + self._timeout_s, self._timeout_s
        else:
            deadline_s = time.monotonic() + timeout_s
        if not task.done:
            engine.progress(0.0)
        while not task.done:
            if engine.failure is not None:
                raise engine.failure
            left_s = deadline_s - engine.transport.now_s
            if left_s <= 0:
                raise self._timeout(timeout_s)
            engine.progress(left_s)
        if task.error is not None:
            raise task.error

    def _timeout(self, timeout_s: float) -> CollectiveTimeout:
        pending = self._task.pending()
        sends_to = sorted({request.peer for request in pending if request.kind == "send"})
        receives_from = sorted({request.peer for request in pending if request.kind == "recv"})
        rank = self._engine.transport.rank
        return CollectiveTimeout(self.name, rank, sends_to, receives_from, timeout_s)


class Communicator:
    """All ranks of a transport. Every rank calls the same collectives in the same order.

    groups: the building of each rank, as any numbers; None: one building. It matters to hierarchical algorithms only:
    a ring follows the ranks' own order, so it crosses boundaries least where each building's ranks are consecutive.
    timeout_s: for every operation, from its start.

    Arrays are C-contiguous, of float32, float64, int32 or int64; ValueError or TypeError otherwise. All operations
    return a Work, which is done already unless `async_op`. Operations move on only inside calls of this communicator:
    `wait` of any Work, `sleep`, `progress`, or any blocking operation. One communicator per transport.
    """

    def __init__(
        self, transport: Transport, groups: Sequence[int] | None = None, timeout_s: float = 30.0
    ) -> None:
        if groups is not None and len(groups) != transport.size:
            raise ValueError(f"groups: got {len(groups)} entries, expected one per rank, {transport.size}")
        self.transport = transport
        self.rank = transport.rank
        self.size = transport.size
        self.groups = tuple(groups) if groups is not None else (0,) * self.size
        self.timeout_s = timeout_s
        self._engine = Engine(transport)
        self._sequence = 0

    # ---- collectives

    def all_reduce(
        self, array: Array, op: str = "sum", algorithm: str = "ring", async_op: bool = False
    ) -> Work:
        """Reduce `array`, in place, over all ranks. Algorithms: "ring", "hierarchical"."""
        _check(array, "array", writes=True)
        operation = _operation(op)
        tag = self._next_tag()
        if algorithm == "ring":
            steps = ring_all_reduce(self._ring(tag), array.reshape(-1), operation)
        elif algorithm == "hierarchical":
            steps = hierarchical_all_reduce(self._engine, array.reshape(-1), operation, self.groups, tag)
        else:
            raise ValueError(f"algorithm: got {algorithm!r}, expected one of {', '.join(ALGORITHMS)}")
        return self._start("all_reduce", steps, async_op)

    def reduce_scatter_tensor(
        self, output: Array, input: Array, op: str = "sum", async_op: bool = False
    ) -> Work:
        """Reduce `input` (size x output's elements) over all ranks; rank i's `output` gets the i-th part. Ring."""
        _check(output, "output", writes=True)
        _check(input, "input", like=output, numel=output.size * self.size)
        operation = _operation(op)
        flat = output.reshape(-1)
        if self.size == 1:
            flat[:] = input.reshape(-1)
        inputs = list(input.reshape(self.size, output.size))
        scratch = np.empty_like(flat)
        outputs = [flat if index == self.rank else scratch for index in range(self.size)]
        steps = ring_reduce_scatter(self._ring(self._next_tag()), inputs, outputs, operation)
        return self._start("reduce_scatter_tensor", steps, async_op)

    def all_gather_into_tensor(self, output: Array, input: Array, async_op: bool = False) -> Work:
        """Every rank's `input`, in rank order, into every rank's `output` (size x input's elements). Ring."""
        _check(output, "output", writes=True)
        _check(input, "input", like=output)
        _check(output, "output", numel=input.size * self.size)
        parts = output.reshape(self.size, input.size)
        parts[self.rank] = input.reshape(-1)
        chunks = [as_bytes(part) for part in parts]
        steps = ring_all_gather(self._ring(self._next_tag()), chunks)
        return self._start("all_gather_into_tensor", steps, async_op)

    def broadcast(self, array: Array, src: int, async_op: bool = False) -> Work:
        """Rank `src`'s `array` into every rank's. Binomial tree."""
        _check(array, "array", writes=self.rank != src)
        if not 0 <= src < self.size:
            raise ValueError(f"src: got {src}, expected 0 to {self.size - 1}")
        return self._start(
            "broadcast", tree_broadcast(self._engine, as_bytes(array), src, self._next_tag()), async_op
        )

    def barrier(self, async_op: bool = False) -> Work:
        """Done when every rank has called it. Dissemination."""
        return self._start("barrier", dissemination_barrier(self._engine, self._next_tag()), async_op)

    # ---- point to point

    def isend(self, array: Array, peer: int, tag: int = 0) -> Work:
        """Begin to send to `peer`; leave the array alone until it is done. Tags: 0 to 2**62 - 1."""
        _check(array, "array")
        request = self.transport.isend(peer, _point_to_point(tag), as_bytes(array))
        return self._work(f"isend to rank {peer}, tag {tag}", _one(request))

    def irecv(self, array: Array, peer: int, tag: int = 0) -> Work:
        """Begin to receive from `peer` into `array`, whose size in bytes is the message's. Tags: 0 to 2**62 - 1."""
        _check(array, "array", writes=True)
        request = self.transport.irecv(peer, _point_to_point(tag), as_bytes(array))
        return self._work(f"irecv from rank {peer}, tag {tag}", _one(request))

    def send(self, array: Array, peer: int, tag: int = 0) -> None:
        """`isend`, then wait."""
        self.isend(array, peer, tag).wait()

    def recv(self, array: Array, peer: int, tag: int = 0) -> None:
        """`irecv`, then wait."""
        self.irecv(array, peer, tag).wait()

    # ---- time

    def sleep(self, seconds: float) -> None:
        """Let this much time pass, as computing would, while operations move on. Raises when one of them fails."""
        self._engine.sleep(seconds)

    def progress(self, timeout_s: float = 0.0) -> None:
        """Move operations on; waits up to `timeout_s` for something to do."""
        self._engine.progress(timeout_s)

    # ---- how

    def _ring(self, tag: int) -> Ring:
        return Ring(self._engine, range(self.size), tag)

    def _next_tag(self) -> int:
        self._sequence += 1
        return self._sequence << _CHANNEL_BITS

    def _start(self, name: str, steps: Steps, async_op: bool) -> Work:
        work = self._work(f"{name} #{self._sequence}", steps)
        if not async_op:
            work.wait()
        return work

    def _work(self, name: str, steps: Steps) -> Work:
        return Work(self._engine, self._engine.start(name, steps), self.timeout_s)


def _one(item: Waitable) -> Steps:
    yield (item,)


def _point_to_point(tag: int) -> int:
    if not 0 <= tag < _POINT_TO_POINT:
        raise ValueError(f"tag: got {tag}, expected 0 to 2**62 - 1")
    return _POINT_TO_POINT | tag


def _operation(op: str) -> Operation:
    if op not in OPERATIONS:
        raise ValueError(f"op: got {op!r}, expected one of {', '.join(OPERATIONS)}")
    return OPERATIONS[op]


def _check(
    array: Array, name: str, writes: bool = False, like: Array | None = None, numel: int | None = None
) -> None:
    """Refuse what the algorithms cannot work on in place."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name}: got {type(array).__name__}, expected a numpy array")
    if array.dtype not in _DTYPES:
        raise TypeError(f"{name}: got dtype {array.dtype}, expected one of {', '.join(DTYPES)}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name}: got a non-contiguous array, expected a C-contiguous one")
    if writes and not array.flags.writeable:
        raise ValueError(f"{name}: got a read-only array, expected one that can be written to")
    if like is not None and array.dtype != like.dtype:
        raise TypeError(f"{name}: got dtype {array.dtype}, expected {like.dtype}, as the output's")
    if numel is not None and array.size != numel:
        raise ValueError(f"{name}: got {array.size} elements, expected {numel}")

"""The tracker of which operations of a rank's plan may start, given those that have completed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from testbed.workload.plan import QUEUE, Computing, JobPlan, Operation, Pause


class DependencyOrder(NamedTuple):
    """Dependencies among a rank's operations.

    Attributes:
        before: Dependencies of each operation.
        later: Dependents of each operation.
        following: For each operation of fixed duration, its only dependent if that has a fixed duration and no other
            dependency; -1 otherwise.
        queued: Whether any stream is a queue.
    """

    before: list[tuple[int, ...]]
    later: list[list[int]]
    following: list[int]
    queued: bool


def waits(plan: Sequence[Operation]) -> list[tuple[int, ...]]:
    """Return the dependencies of each operation of a rank: its `after`, and the previous operation of its stream.

    On a queue the previous operation is not known in advance.
    """
    last: dict[str, int | None] = {}
    found: list[tuple[int, ...]] = []
    for index, operation in enumerate(plan):
        after, stream = operation.after, operation.stream
        earlier = last.get(stream)
        if earlier is not None:
            after = (*after, earlier)
            last[stream] = index
        elif stream not in last:
            last[stream] = None if stream.startswith(QUEUE) else index
        found.append(after if len(after) < 2 else tuple(sorted(set(after))))
    return found


def dependency_order(plan: Sequence[Operation]) -> DependencyOrder:
    """Return the dependencies among a rank's operations."""
    before = waits(plan)
    later: list[list[int]] = [[] for _ in before]
    for index, own in enumerate(before):
        for earlier in own:
            later[earlier].append(index)
    following = [-1] * len(before)
    for index, own in enumerate(before):
        if len(own) == 1 and len(later[own[0]]) == 1 and _is_timed(plan[index]) and _is_timed(plan[own[0]]):
            following[own[0]] = index
    queued = any(stream.startswith(QUEUE) for stream in {operation.stream for operation in plan})
    return DependencyOrder(before, later, following, queued)


def _is_timed(operation: Operation) -> bool:
    return isinstance(operation, (Computing, Pause)) and not operation.stream.startswith(QUEUE)


def dependency_orders(plan: JobPlan) -> Sequence[DependencyOrder]:
    """Return the dependencies of all ranks, cached by pattern."""
    return [own.cached("order", partial(dependency_order, own.operations)) for own in plan.symmetric.patterns]


@dataclass
class DependencyTracker:
    """A tracker of which operations of a rank's plan are ready and which are done.

    A queue runs one operation at a time. The predecessor of an operation is known once it starts, and is then in
    `before`.

    Attributes:
        plan: The rank's operations.
        order: Dependencies among them, as far as already known.
        ready: Indices of operations that may start; the caller removes those that it starts.
        open: Number of operations that are not done.
    """

    plan: Sequence[Operation]
    order: DependencyOrder | None = None
    ready: list[int] = field(default_factory=list)
    open: int = 0

    def __post_init__(self) -> None:
        self.open = len(self.plan)
        before, self._next, self.following, self._queued = self.order or dependency_order(self.plan)
        self.before = list(before)
        self._done: set[int] = set()
        self._missing = list(map(len, before))
        self._queues: dict[str, deque[int]] = {}  # waiting operations by busy queue
        for index, count in enumerate(self._missing):
            if not count:
                self._mark_ready(index)

    def extend(self, operations: Sequence[Operation]) -> None:
        """Append operations to the plan, which must be a list.

        Each operation depends on its `after`. Only on a queue does it also wait for operations that are already in the
        plan.
        """
        assert isinstance(self.plan, list)
        for operation in operations:
            index = len(self.plan)
            self.plan.append(operation)
            self._queued = self._queued or operation.stream.startswith(QUEUE)
            self.before.append(tuple(sorted(set(operation.after))))
            self._next.append([])
            for earlier in self.before[index]:
                self._next[earlier].append(index)
            self._missing.append(sum(earlier not in self._done for earlier in self.before[index]))
            self.open += 1
            if not self._missing[index]:
                self._mark_ready(index)

    def _mark_ready(self, index: int) -> None:
        """Mark an operation without open dependencies as ready, unless its queue is busy."""
        if not self._queued:
            self.ready.append(index)
            return
        stream = self.plan[index].stream
        if stream in self._queues:
            self._queues[stream].append(index)
            return
        if stream.startswith(QUEUE):
            self._queues[stream] = deque()
        self.ready.append(index)

    def _release_queue(self, index: int) -> None:
        """Let the next operation of the queue start, if there is one."""
        stream = self.plan[index].stream
        if stream not in self._queues:
            return
        if not self._queues[stream]:
            del self._queues[stream]
            return
        following = self._queues[stream].popleft()
        self.before[following] = (*self.before[following], index)
        self.ready.append(following)

    def done(self, index: int) -> None:
        """Mark an operation as done and add the operations that it unblocks to `ready`."""
        self.open -= 1
        self._done.add(index)
        if self._queues:
            self._release_queue(index)
        missing = self._missing
        for later in self._next[index]:
            missing[later] -= 1
            if missing[later]:
                continue
            if self._queued:
                self._mark_ready(later)
            else:
                self.ready.append(later)

    def done_chain(self, index: int, many: int) -> None:
        """Mark `many` operations as done: `index` and its successors by `following`, except the last of them."""
        self.open -= many
        self._done.add(index)

    def unfinished(self) -> list[int]:
        """Return the operations that could have started but are not done."""
        return [index for index, count in enumerate(self._missing) if not count and index not in self._done]

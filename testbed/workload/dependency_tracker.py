"""What of a rank's plan may start when, by what its operations wait for."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from testbed.workload.plan import QUEUE, Computing, JobPlan, Operation, Pause
from testbed.workload.plan_patterns import Pattern


class DependencyOrder(NamedTuple):
    """How operations of a rank wait for each other. before: what each waits for; later: what waits for each.

    following: of each that takes its time whatever else goes on, the one of those that waits for it alone, and that
    alone waits for it; -1 where there is none. queued: whether a stream is a queue.
    """

    before: list[tuple[int, ...]]
    later: list[list[int]]
    following: list[int]
    queued: bool


def waits(plan: Sequence[Operation]) -> list[tuple[int, ...]]:
    """What each operation of a rank waits for: what it says, and the one before it on its stream.

    On a queue it is not known beforehand which one that is.
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


def order_of(plan: Sequence[Operation]) -> DependencyOrder:
    """Of a rank's operations."""
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


def orders_of(plan: JobPlan) -> Sequence[DependencyOrder]:
    """Of all ranks, found once."""
    return [pattern_order(own) for own in plan.alike.patterns]


def pattern_order(pattern: Pattern) -> DependencyOrder:
    """Of all ranks that go by it, found once."""
    return pattern.remembered("order", lambda: order_of(pattern.operations))


@dataclass
class DependencyTracker:
    """What of a rank's plan may start, what is done. order: how its operations wait for each other, if that is known.

    before: what each operation waits for. Of a queue's operations one may start at a time; the one before it is known
    then, and is in `before`.
    """

    plan: Sequence[Operation]
    order: DependencyOrder | None = None
    ready: list[int] = field(default_factory=list)
    open: int = 0

    def __post_init__(self) -> None:
        self.open = len(self.plan)
        before, self._next, self.following, self._queued = self.order or order_of(self.plan)
        self.before = list(before)
        self._done: set[int] = set()
        self._missing = list(map(len, before))
        self._queues: dict[str, deque[int]] = {}  # of those that are busy: what waits for them
        for index, count in enumerate(self._missing):
            if not count:
                self._offer(index)

    def extend(self, operations: Sequence[Operation]) -> None:
        """Add operations to the plan, a list, behind those that are there.

        Each waits for what it says, and on no stream but a queue for what is there already.
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
                self._offer(index)

    def _offer(self, index: int) -> None:
        """What waits for nothing any more may start, unless its queue is busy."""
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

    def _leave(self, index: int) -> None:
        """Let the next one of its queue start, if it has one."""
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
        """Note that an operation is over; what it kept waiting is put in `ready`."""
        self.open -= 1
        self._done.add(index)
        if self._queues:
            self._leave(index)
        missing = self._missing
        for later in self._next[index]:
            missing[later] -= 1
            if missing[later]:
                continue
            if self._queued:
                self._offer(later)
            else:
                self.ready.append(later)

    def done_on_the_way(self, index: int, many: int) -> None:
        """Note that so many are over, from this one on, each but the first `following` the one before."""
        self.open -= many
        self._done.add(index)

    def under_way(self) -> list[int]:
        """What could start and is not done."""
        return [index for index, count in enumerate(self._missing) if not count and index not in self._done]

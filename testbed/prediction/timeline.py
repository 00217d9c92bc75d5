"""Start and end times of a plan's operations, with the time breakdown, critical path and memory peak they imply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate

from testbed.errors import TestbedError
from testbed.workload.dependency_tracker import waits
from testbed.workload.dispatch import ExecutedPlan
from testbed.workload.plan import (
    COMPUTE,
    Computing,
    GroupCollective,
    IntraRankTransfer,
    JobPlan,
    Message,
    Operation,
    Pattern,
    Pause,
)


class Deadlock(TestbedError, ValueError):
    """The error for a plan that never completes; it names the ranks and the operations in which they wait."""


@dataclass(frozen=True)
class Timeline:
    """Start and end of each operation, in seconds from the step's start: `spans[rank][index of the operation]`.

    `carried` has the plan and decisions of a step that was not known in advance.
    """

    spans: tuple[tuple[tuple[float, float], ...], ...]
    carried: ExecutedPlan | None = None

    @property
    def plan(self) -> JobPlan | None:
        """The executed plan, if it was not known in advance."""
        return None if self.carried is None else self.carried.plan

    @cached_property
    def step_time_s(self) -> float:
        """Time until the last rank is done, in seconds."""
        return max((end for rank in self.spans for _, end in rank), default=0.0)


Spans = Sequence[Sequence[tuple[float, float]]]
"""Start and end of each operation, by rank and index in its plan, in seconds from the step's start."""


@dataclass(frozen=True)
class TimeBreakdown:
    """A step's time split into compute, exposed communication and bubble, in seconds, as the mean over ranks.

    A rank that does not compute waits for the inputs of its next compute operation. While these are in flight, the time
    is exposed communication of their kind and tier. While nobody has sent them, or not all members have joined a
    collective, the time is bubble. The time from a rank's last operation to the end of the step is also bubble.
    `exposed_s` is by kind of parallelism and tier. All parts add up to the step's time.
    """

    step_time_s: float
    compute_s: float
    bubble_s: float
    exposed_s: Mapping[tuple[str, str], float]


class CommunicationTimes:
    """The times at which each communication was actually in flight."""

    def __init__(self, plan: JobPlan, spans: Spans, buildings: Sequence[int]) -> None:
        self.plan, self.spans, self.buildings = plan, spans, buildings
        self.senders: dict[tuple[int, int, int, int], tuple[int, int]] = {}
        self.members: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._keys: dict[tuple[int, int], tuple[int, ...]] = {}
        for rank, operations in enumerate(plan.ranks):
            seen: dict[tuple[int, ...], int] = {}
            for index, operation in enumerate(operations):
                if isinstance(operation, Message):
                    ends = (rank, operation.peer) if operation.sends else (operation.peer, rank)
                    message = (int(operation.sends), *ends, operation.tag)
                    number = seen[message] = seen.get(message, 0) + 1
                    key = (*ends, operation.tag, number)
                    self._keys[rank, index] = key
                    if operation.sends:
                        self.senders[key] = (rank, index)
                elif isinstance(operation, GroupCollective):
                    number = seen[(operation.group,)] = seen.get((operation.group,), 0) + 1
                    self._keys[rank, index] = (operation.group, number)
                    self.members.setdefault((operation.group, number), []).append((rank, index))

    def origin(self, rank: int, index: int) -> tuple[int, int]:
        """Return the operation that triggered a communication: the send, or the last join of a collective."""
        operation = self.plan.ranks[rank][index]
        key = self._keys.get((rank, index))
        if isinstance(operation, Message) and not operation.sends:
            return self.senders[key]  # type: ignore[index]
        if isinstance(operation, GroupCollective):
            return max(self.members[key], key=lambda own: self.spans[own[0]][own[1]][0])  # type: ignore[index]
        return rank, index

    def in_flight(self, rank: int, index: int) -> tuple[float, float]:
        """Return when a communication could start to progress, and when this rank completed it."""
        source = self.origin(rank, index)
        begun_s, end_s = self.spans[rank][index]
        since_s = self.spans[source[0]][source[1]][0]
        if self.plan.holds_receivers:  # the message left only after its receiver started to wait for it
            since_s = max(since_s, begun_s)
        return min(since_s, end_s), end_s

    def tier(self, rank: int, index: int) -> str:
        """Return the tier an operation crosses: `wan`, `building` or `rank`."""
        operation = self.plan.ranks[rank][index]
        others = [rank]
        if isinstance(operation, IntraRankTransfer):
            return "rank"
        if isinstance(operation, Message):
            others = [operation.peer]
        elif isinstance(operation, GroupCollective):
            others = list(self.plan.groups[operation.group][1])
        return "wan" if any(self.buildings[other] != self.buildings[rank] for other in others) else "building"


def break_down_step(plan: JobPlan, spans: Spans, buildings: Sequence[int]) -> TimeBreakdown:
    """Break down one step's time, as the mean over all ranks."""
    times = CommunicationTimes(plan, spans, buildings)
    step_time_s = max(end for own in spans for _, end in own)
    ranks = len(plan.ranks)
    compute_s = bubble_s = 0.0
    exposed: dict[tuple[str, str], float] = {}
    for rank, operations in enumerate(plan.ranks):
        needs = waits(operations)
        free_s = 0.0
        computing = [
            number for number, operation in enumerate(operations) if isinstance(operation, Computing)
        ]
        for index in sorted(computing, key=lambda number: spans[rank][number]):  # may be on several streams
            begun_s, end_s = spans[rank][index]
            needed = [number for number in needs[index] if operations[number].stream != COMPUTE]
            bubble_s += _attribute(exposed, times, rank, needed, free_s, begun_s)
            compute_s += max(0.0, end_s - max(begun_s, free_s))
            free_s = max(free_s, end_s)
        tail = [index for index, operation in enumerate(operations) if _is_communication(operation)]
        bubble_s += _attribute(exposed, times, rank, tail, free_s, step_time_s)
    return TimeBreakdown(
        step_time_s,
        compute_s / ranks,
        bubble_s / ranks,
        {key: seconds / ranks for key, seconds in sorted(exposed.items())},
    )


def _is_communication(operation: Operation) -> bool:
    return isinstance(operation, IntraRankTransfer) or not isinstance(operation, Computing | Pause)


def _attribute(
    exposed: dict[tuple[str, str], float],
    times: CommunicationTimes,
    rank: int,
    needed: Sequence[int],
    free_s: float,
    until_s: float,
) -> float:
    """Attribute a pause to communications in flight, the latest end first; return the rest, which is bubble."""
    left_s = until_s - free_s
    end_s = until_s
    for index in sorted(needed, key=lambda number: -times.spans[rank][number][1]):
        since_s, done_s = times.in_flight(rank, index)
        taken_s = min(end_s, done_s) - max(free_s, since_s)
        if taken_s > 0:
            operation = times.plan.ranks[rank][index]
            key = operation.kind, times.tier(rank, index)
            exposed[key] = exposed.get(key, 0.0) + taken_s
            left_s -= taken_s
            end_s = max(free_s, since_s)
    return max(0.0, left_s)


@dataclass(frozen=True)
class CriticalOperation:
    """One operation of the critical path, on the rank where it ended, with the span in which it held up the step."""

    rank: int
    index: int
    name: str
    kind: str
    start_s: float
    end_s: float


def find_critical_path(plan: JobPlan, spans: Spans, buildings: Sequence[int]) -> list[CriticalOperation]:
    """Return the chain of operations that determines the step's time; each starts when the previous one ended.

    The search runs backwards: from the operation that ended last to its dependency that ended last, and so on.
    """
    times = CommunicationTimes(plan, spans, buildings)
    needs = [waits(operations) for operations in plan.ranks]
    rank, index = max(
        ((rank, index) for rank, own in enumerate(spans) for index in range(len(own))),
        key=lambda at: spans[at[0]][at[1]][1],
    )
    chain: list[CriticalOperation] = []
    seen: set[tuple[int, int]] = set()
    while (rank, index) not in seen:
        seen.add((rank, index))
        source, origin = times.origin(rank, index)
        operation = plan.ranks[rank][index]
        end_s = spans[rank][index][1]
        own_before, origin_before = needs[rank][index], needs[source][origin]
        # a receive that was posted late waited for its own rank, and any other for the sender
        latest = [(rank, number) for number in own_before] if plan.holds_receivers else []
        latest += [(source, number) for number in origin_before]
        begun_s = max((spans[at][number][1] for at, number in latest), default=0.0)
        chain.append(
            CriticalOperation(rank, index, operation.name, operation.kind, min(begun_s, end_s), end_s)
        )
        if not latest:
            break
        rank, index = max(latest, key=lambda at: spans[at[0]][at[1]][1])
    return chain[::-1]


def peak_activation_bytes(plan: JobPlan, spans: Spans) -> list[float]:
    """Return the maximum of activations that are alive at once on each rank, in real bytes."""
    found = []
    for allocating, own in zip(_allocating(plan), spans, strict=True):
        changes = []
        for index, operation in allocating:
            begun_s, end_s = own[index]
            changes += [(end_s, -operation.gives), (begun_s, operation.holds)]
        found.append(max(accumulate((change for _, change in sorted(changes)), initial=0.0)))
    return found


def _allocating(plan: JobPlan) -> list[list[tuple[int, Computing]]]:
    """Return, for each rank, the compute operations that allocate or free activations, with their indices."""
    return [own.cached("keeping", partial(_find_allocating, own)) for own in plan.symmetric.patterns]


def _find_allocating(pattern: Pattern) -> list[tuple[int, Computing]]:
    return [
        (index, operation)
        for index, operation in enumerate(pattern.operations)
        if isinstance(operation, Computing) and (operation.holds or operation.gives)
    ]

"""The order of operations within streams, which an execution trace does not specify.

A Chakra trace has only dependencies, but in a job's trace a stream runs its nodes in a fixed order. The module chooses
the order in which nodes would start if messages took no time. All ranks are simulated together, so that the job can
complete in that order, despite waits between ranks.
"""

from __future__ import annotations

import contextlib
import heapq
from collections import defaultdict, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from testbed.workload.traces.trace import Collective, Compute, Node, PointToPoint, TraceError


@dataclass(frozen=True)
class Item:
    """A node before its position in the order is known.

    Attributes:
        node: The node.
        where: Place of the node, for errors.
        after: Indices of the rank's items that it depends on.
        begin: Recorded start.
    """

    node: Node
    where: str
    after: tuple[int, ...]
    begin: int = 0


def dependency_order(items: Sequence[Item]) -> list[int]:
    """Return one rank's items in dependency order, else as recorded or listed; raise TraceError for a cycle."""
    sorter = TopologicalSorter({number: item.after for number, item in enumerate(items)})
    with contextlib.suppress(CycleError):
        sorter.prepare()
    ready: list[tuple[int, int]] = []
    found: list[int] = []
    while len(found) < len(items):
        for number in sorter.get_ready():
            heapq.heappush(ready, (items[number].begin, number))
        if not ready:
            stuck = min(set(range(len(items))) - set(found))
            raise TraceError(
                where=items[stuck].where, got="a node that waits for itself", expected="no cycle"
            )
        _, number = heapq.heappop(ready)
        found.append(number)
        sorter.done(number)
    return found


def _chain(node: Node) -> Hashable:
    """Return a key for nodes that run in order even if they take no time: a group's collectives, a pair's messages."""
    if isinstance(node, Collective):
        return node.group
    return (node.peer, node.tag, node.sends) if isinstance(node, PointToPoint) else None


@dataclass
class _Rank:
    """The state of one rank; `waiting` has the ready computations by stream, and dependencies include chains."""

    items: Sequence[Item]
    later: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    missing: list[int] = field(default_factory=list)
    waiting: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    busy: set[str] = field(default_factory=set)
    begun: list[int] = field(default_factory=list)
    done: int = 0

    def __post_init__(self) -> None:
        self.order = dependency_order(self.items)
        self.place = {number: place for place, number in enumerate(self.order)}
        before = [set(item.after) for item in self.items]
        last: dict[Hashable, int] = {}
        for number in self.order:
            if (chain := _chain(self.items[number].node)) is not None:
                if chain in last:
                    before[number].add(last[chain])
                last[chain] = number
        self.missing = list(map(len, before))
        for number, own in enumerate(before):
            for one in own:
                self.later[one].append(number)


class _Simulation:
    """A simulation of all ranks."""

    def __init__(self, ranks: Sequence[Sequence[Item]], groups: Mapping[str, Sequence[int]]) -> None:
        self.ranks = [_Rank(items) for items in ranks]
        self.groups = groups
        self.now_s = 0.0
        self._over: list[tuple[float, int, int, int]] = []
        self._count = 0
        self._arrived: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        self._calls: dict[tuple[int, str], int] = defaultdict(int)
        self._sent: dict[tuple[int, int, int], int] = defaultdict(int)
        self._receives: dict[tuple[int, int, int], deque[tuple[int, int]]] = defaultdict(deque)
        self._open: deque[tuple[int, int]] = deque()
        self._idle: set[int] = set()  # ranks where a stream may start a computation

    def orders(self) -> list[list[int]]:
        for rank, own in enumerate(self.ranks):
            self._open.extend((rank, number) for number in own.place if not own.missing[number])
        self._run_ready()
        while self._over:
            self.now_s = self._over[0][0]
            while self._over and self._over[0][0] == self.now_s:
                _, _, rank, number = heapq.heappop(self._over)
                self.ranks[rank].busy.discard(self.ranks[rank].items[number].node.stream)
                self._idle.add(rank)
                self._done(rank, number)
            self._run_ready()
        self._check()
        return [own.begun for own in self.ranks]

    def _run_ready(self) -> None:
        """Run all nodes that take no time, then start computations, until nothing more can start."""
        while True:
            while self._open:
                rank, number = self._open.popleft()
                self._ready(rank, number)
            if not self._idle:
                return
            for rank in sorted(self._idle):
                self._begin(rank)
            self._idle.clear()

    def _ready(self, rank: int, number: int) -> None:
        own = self.ranks[rank]
        node = own.items[number].node
        if isinstance(node, Compute):
            heapq.heappush(own.waiting[node.stream], own.place[number])
            self._idle.add(rank)
            return
        own.begun.append(number)
        if isinstance(node, Collective):
            call = self._calls[rank, node.group]
            self._calls[rank, node.group] += 1
            arrived = self._arrived[node.group, call]
            arrived.append((rank, number))
            if len(arrived) == len(self.groups[node.group]):
                del self._arrived[node.group, call]
                for member, its in arrived:
                    self._done(member, its)
        elif isinstance(node, PointToPoint):
            key = (rank, node.peer, node.tag) if node.sends else (node.peer, rank, node.tag)
            if node.sends:
                self._sent[key] += 1
                self._done(rank, number)
            else:
                self._receives[key].append((rank, number))
            while self._sent[key] and self._receives[key]:
                self._sent[key] -= 1
                self._done(*self._receives[key].popleft())

    def _begin(self, rank: int) -> None:
        own = self.ranks[rank]
        for stream in [stream for stream in own.waiting if stream not in own.busy]:
            number = own.order[heapq.heappop(own.waiting[stream])]
            if not own.waiting[stream]:
                del own.waiting[stream]
            node = own.items[number].node
            assert isinstance(node, Compute)
            own.begun.append(number)
            own.busy.add(stream)
            self._count += 1
            heapq.heappush(self._over, (self.now_s + node.duration_s, self._count, rank, number))

    def _done(self, rank: int, number: int) -> None:
        own = self.ranks[rank]
        own.done += 1
        for later in own.later[number]:
            own.missing[later] -= 1
            if not own.missing[later]:
                self._open.append((rank, later))

    def _check(self) -> None:
        """Check that all nodes are done; raise TraceError, which names the stuck ones."""
        for (group, call), arrived in self._arrived.items():
            rank, number = arrived[0]
            missing_ranks = sorted(set(self.groups[group]) - {member for member, _ in arrived})
            got = f"collective {call + 1} of group {group}, which rank{'s' * (len(missing_ranks) > 1)} "
            got += f"{', '.join(map(str, missing_ranks))} never start{'s' * (len(missing_ranks) == 1)}"
            raise TraceError(
                where=self.ranks[rank].items[number].where, got=got, expected="all members to start it"
            )
        for receives in self._receives.values():
            if receives:
                rank, number = receives[0]
                item = self.ranks[rank].items[number]
                assert isinstance(item.node, PointToPoint)
                got = f"a message of rank {item.node.peer} with tag {item.node.tag}"
                raise TraceError(where=item.where, got=got, expected="its sender to send one")


def stream_orders(ranks: Sequence[Sequence[Item]], groups: Mapping[str, Sequence[int]]) -> list[list[int]]:
    """Return each rank's item indices in order; raise TraceError, which names stuck nodes, if the job deadlocks."""
    return _Simulation(ranks, groups).orders()

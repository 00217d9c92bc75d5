"""In which order streams do what an execution trace leaves open.

A trace of Chakra says what waits for what, and no more; in a job's trace, a stream does one thing after the other in a
fixed order. It is the one in which things would begin if messages took no time: all ranks are gone through together, so
that the order is one in which the job can end, whatever each rank waits for from others.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from testbed.workload.traces.trace import Collective, Compute, Node, PointToPoint, TraceError


@dataclass(frozen=True)
class Item:
    """A node before it has its place. where: for errors. after: of which items of its rank. begin: when it was seen."""

    node: Node
    where: str
    after: tuple[int, ...]
    begin: int = 0


def in_order(items: Sequence[Item]) -> list[int]:
    """Of one rank: after what each waits for, else as they were seen or listed. TraceError where there is a circle."""
    missing = [len(set(item.after)) for item in items]
    later: dict[int, list[int]] = defaultdict(list)
    for number, item in enumerate(items):
        for before in set(item.after):
            later[before].append(number)
    ready = [(items[number].begin, number) for number, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    found = []
    while ready:
        _, number = heapq.heappop(ready)
        found.append(number)
        for other in later[number]:
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, (items[other].begin, other))
    if len(found) < len(items):
        stuck = next(number for number, count in enumerate(missing) if count)
        raise TraceError(where=items[stuck].where, got="a node that waits for itself", expected="no circle")
    return found


def _chain(node: Node) -> Hashable:
    """What comes one after the other though it may take no time: a group's collectives, messages of one kind."""
    if isinstance(node, Collective):
        return node.group
    return (node.peer, node.tag, node.sends) if isinstance(node, PointToPoint) else None


@dataclass
class _Rank:
    """A rank on its way. before: what items wait for, chains as well; waiting: computing that could begin."""

    items: Sequence[Item]
    later: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    missing: list[int] = field(default_factory=list)
    waiting: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    busy: set[str] = field(default_factory=set)
    begun: list[int] = field(default_factory=list)
    done: int = 0

    def __post_init__(self) -> None:
        self.order = in_order(self.items)
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


class _Together:
    """All ranks, gone through by time."""

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
        self._idle: set[int] = set()  # ranks where a stream may have something to begin

    def orders(self) -> list[list[int]]:
        for rank, own in enumerate(self.ranks):
            self._open.extend((rank, number) for number in own.place if not own.missing[number])
        self._settle()
        while self._over:
            self.now_s = self._over[0][0]
            while self._over and self._over[0][0] == self.now_s:
                _, _, rank, number = heapq.heappop(self._over)
                self.ranks[rank].busy.discard(self.ranks[rank].items[number].node.stream)
                self._idle.add(rank)
                self._done(rank, number)
            self._settle()
        self._check()
        return [own.begun for own in self.ranks]

    def _settle(self) -> None:
        """All that takes no time, and then what streams begin, until nothing more does."""
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
        """TraceError unless all is done, with what stands."""
        for (group, call), arrived in self._arrived.items():
            rank, number = arrived[0]
            absent = sorted(set(self.groups[group]) - {member for member, _ in arrived})
            got = f"collective {call + 1} of group {group}, to which rank{'s' * (len(absent) > 1)} "
            got += f"{', '.join(map(str, absent))} never come{'s' * (len(absent) == 1)}"
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


def orders(ranks: Sequence[Sequence[Item]], groups: Mapping[str, Sequence[int]]) -> list[list[int]]:
    """For each rank its items' numbers in their order. TraceError where the job does not end, with what stands."""
    return _Together(ranks, groups).orders()

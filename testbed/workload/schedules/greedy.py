"""Schedules made by playing: each rank takes what is best of what is there, with times of computing and links in mind.

CrossPipe's dynamic schedules (arXiv:2507.00217) as we read them, and ZBH1 (Qi et al. 2023, "Zero Bubble Pipeline
Parallelism", arXiv:2401.10241) as the same play with links that take no time.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from testbed.workload.schedules.actions import FORWARD, INPUT, WEIGHT, Action, Kind, Order
from testbed.workload.schedules.base import Costs

# stage, forward its negative, microbatch, part: what is further on comes first, ends sooner and gives its memory back
Place = tuple[int, int, int]


@dataclass
class _Rank:
    """One rank at play.

    coming: what can be done later, by when its input is there; there: what can be done now, the best of each sort
    first. Sorts are forward of stages that leave places free, forward of others, INPUT, WEIGHT.
    """

    room: int
    ahead: int
    coming: list[tuple[float, int, Place]] = field(default_factory=list)
    there: tuple[list[Place], ...] = field(default_factory=lambda: ([], [], [], []))
    order: list[Action] = field(default_factory=list)
    free_s: float = 0.0
    alive: int = 0
    forward: int = 0
    started: bool = False
    last: Kind = WEIGHT


_SPARING, _FREELY, _INPUT, _WEIGHT = range(4)


@dataclass(frozen=True)
class Rules:
    """What a rank may do.

    room: microbatches x stages that it can keep alive, until their weight gradients are done. ahead: how many it may be
    forward of its backward, where that is less. parts: in how many a weight gradient is cut. spared: of several stages
    the first leaves so many places free, in which what has begun can be brought to its end.
    """

    room: tuple[int, ...]
    ahead: tuple[int, ...] = ()
    parts: int = 1
    spared: int = 1


def greedy(owners: Sequence[int], microbatches: int, costs: Costs, rules: Rules) -> tuple[Order, ...]:
    """The order of every rank; owners: the rank of each stage.

    A rank that is free takes, of what is there: forward until its first backward comes; then forward and backward
    alternate; weight gradients where memory is full, or nothing else is there.
    """
    return _Play(owners, microbatches, costs, rules).run()


class _Play:
    def __init__(self, owners: Sequence[int], microbatches: int, costs: Costs, rules: Rules) -> None:
        self.owners, self.costs, self.rules = owners, costs, rules
        self.ranks = [
            _Rank(room, rules.ahead[number] if rules.ahead else room)
            for number, room in enumerate(rules.room)
        ]
        self.link_free: dict[tuple[int, int], float] = {}
        self.moments: list[float] = [0.0]
        self.sparing = {
            min(mine)
            for number in range(len(self.ranks))
            if len(mine := [stage for stage, owner in enumerate(owners) if owner == number]) > 1
        }
        for number in range(microbatches):
            self._offer(FORWARD, 0, number, 0.0)

    def run(self) -> tuple[Order, ...]:
        """Until nobody has anything to do."""
        moments = self.moments
        while moments:
            now_s = heapq.heappop(moments)
            while moments and moments[0] == now_s:
                heapq.heappop(moments)
            for rank in self.ranks:
                if rank.free_s <= now_s and (sort := self._choice(rank, now_s)) is not None:
                    self._do(rank, sort, now_s)
        return tuple(tuple(rank.order) for rank in self.ranks)

    def _choice(self, rank: _Rank, now_s: float) -> int | None:
        """Of which sort the next action is."""
        coming, there = rank.coming, rank.there
        while coming and coming[0][0] <= now_s:
            _, sort, place = heapq.heappop(coming)
            heapq.heappush(there[sort], place)
        forward: int | None = None
        room = rank.room - rank.alive
        sparing, freely = there[_SPARING], there[_FREELY]
        if rank.forward < rank.ahead and room > 0:
            if freely:
                forward = _FREELY
            if sparing and room > self.rules.spared and (not freely or sparing[0] < freely[0]):
                forward = _SPARING
        back = _INPUT if there[_INPUT] else None
        weight = _WEIGHT if there[_WEIGHT] else None
        full = forward is None and (sparing or freely)
        wanted: tuple[int | None, ...] = (forward, back, weight)
        if rank.started and full and weight is not None:  # what gives memory back
            wanted = (weight, back) if rank.last is INPUT else (back, weight)
        elif rank.started and rank.last is FORWARD:
            wanted = (back, forward, weight)
        for own in wanted:
            if own is not None:
                return own
        return None

    def _do(self, rank: _Rank, sort: int, now_s: float) -> None:
        stage, microbatch, part = heapq.heappop(rank.there[sort])
        if sort in (_SPARING, _FREELY):
            kind, stage, parts = FORWARD, -stage, 1
        elif sort == _INPUT:
            kind, parts = INPUT, 1
        else:
            kind, parts = WEIGHT, self.rules.parts
        rank.order.append(Action(stage, kind, microbatch, part, parts))
        end_s = now_s + self.costs.seconds(kind) / parts
        rank.free_s, rank.last = end_s, kind
        heapq.heappush(self.moments, end_s)
        if kind is FORWARD:
            rank.alive += 1
            rank.forward += 1
            if stage + 1 < len(self.owners):
                self._pass_on(stage, FORWARD, stage + 1, microbatch, end_s)
            else:
                self._offer(INPUT, stage, microbatch, end_s)
        elif kind is INPUT:
            rank.started = True
            rank.forward -= 1
            for number in range(self.rules.parts):
                self._offer(WEIGHT, stage, microbatch, end_s, number)
            if stage:
                self._pass_on(stage, INPUT, stage - 1, microbatch, end_s)
        elif part == parts - 1:
            rank.alive -= 1

    def _pass_on(self, stage: int, kind: Kind, target: int, microbatch: int, end_s: float) -> None:
        here, there = self.owners[stage], self.owners[target]
        if here != there:
            latency_s, busy_s = self.costs.hop(here, there)
            sent_s = max(end_s, self.link_free.get((here, there), 0.0)) + busy_s
            self.link_free[here, there] = sent_s
            end_s = sent_s + latency_s
        self._offer(kind, target, microbatch, end_s)

    def _offer(self, kind: Kind, stage: int, microbatch: int, since_s: float, part: int = 0) -> None:
        if kind is FORWARD:
            sort, place = _SPARING if stage in self.sparing else _FREELY, (-stage, microbatch, part)
        else:
            sort, place = _INPUT if kind is INPUT else _WEIGHT, (stage, microbatch, part)
        heapq.heappush(self.ranks[self.owners[stage]].coming, (since_s, sort, place))
        heapq.heappush(self.moments, since_s)

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


@dataclass
class _Rank:
    """One rank at play. ready: what could be done, by when its input is there."""

    room: int
    ahead: int
    ready: dict[Action, float] = field(default_factory=dict)
    order: list[Action] = field(default_factory=list)
    free_s: float = 0.0
    alive: int = 0
    forward: int = 0
    started: bool = False
    last: Kind = WEIGHT


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
        for number in range(microbatches):
            self.ranks[owners[0]].ready[Action(0, FORWARD, number)] = 0.0
        self.spared = {
            min(mine)
            for number in range(len(self.ranks))
            if len(mine := [stage for stage, owner in enumerate(owners) if owner == number]) > 1
        }

    def run(self) -> tuple[Order, ...]:
        """Until nobody has anything to do."""
        while self.moments:
            now_s = heapq.heappop(self.moments)
            while self.moments and self.moments[0] == now_s:
                heapq.heappop(self.moments)
            for number, rank in enumerate(self.ranks):
                if rank.free_s <= now_s and (action := self._choice(number, now_s)) is not None:
                    self._do(number, action, now_s)
        return tuple(tuple(rank.order) for rank in self.ranks)

    def _choice(self, number: int, now_s: float) -> Action | None:
        rank = self.ranks[number]
        there = [action for action, since_s in rank.ready.items() if since_s <= now_s]
        best: dict[Kind, Action] = {}
        for kind, sign in ((FORWARD, -1), (INPUT, 1), (WEIGHT, 1)):
            # what is further on comes first: it ends sooner, and gives its memory back
            fitting = [action for action in there if action.kind is kind and self._fits(rank, action)]
            if fitting:
                best[kind] = min(fitting, key=lambda a, sign=sign: (sign * a.stage, a.microbatch, a.part))  # type: ignore[misc]
        waits = FORWARD not in best and any(action.kind is FORWARD for action in there)
        if rank.started and waits and WEIGHT in best:  # memory is full: what gives it back
            wanted = [WEIGHT, INPUT] if rank.last is INPUT else [INPUT, WEIGHT]
        elif rank.started and rank.last is FORWARD:
            wanted = [INPUT, FORWARD, WEIGHT]
        else:
            wanted = [FORWARD, INPUT, WEIGHT]
        return next((best[kind] for kind in wanted if kind in best), None)

    def _fits(self, rank: _Rank, action: Action) -> bool:
        if action.kind is not FORWARD:
            return True
        spare = self.rules.spared if action.stage in self.spared else 0
        return rank.alive < rank.room - spare and rank.forward < rank.ahead

    def _do(self, number: int, action: Action, now_s: float) -> None:
        rank = self.ranks[number]
        del rank.ready[action]
        rank.order.append(action)
        end_s = now_s + self.costs.seconds(action.kind) / action.parts
        rank.free_s, rank.last = end_s, action.kind
        heapq.heappush(self.moments, end_s)
        if action.kind is FORWARD:
            rank.alive += 1
            rank.forward += 1
            if action.stage + 1 < len(self.owners):
                self._pass_on(action.stage, Action(action.stage + 1, FORWARD, action.microbatch), end_s)
            else:
                self._offer(Action(action.stage, INPUT, action.microbatch), end_s)
        elif action.kind is INPUT:
            rank.started = True
            rank.forward -= 1
            for part in range(self.rules.parts):
                self._offer(Action(action.stage, WEIGHT, action.microbatch, part, self.rules.parts), end_s)
            if action.stage:
                self._pass_on(action.stage, Action(action.stage - 1, INPUT, action.microbatch), end_s)
        elif action.part == action.parts - 1:
            rank.alive -= 1

    def _pass_on(self, stage: int, action: Action, end_s: float) -> None:
        here, there = self.owners[stage], self.owners[action.stage]
        if here != there:
            hop = min(here, there)
            busy_s = self.costs.busy_s[hop] if self.costs.busy_s else 0.0
            latency_s = self.costs.latency_s[hop] if self.costs.latency_s else 0.0
            sent_s = max(end_s, self.link_free.get((here, there), 0.0)) + busy_s
            self.link_free[here, there] = sent_s
            end_s = sent_s + latency_s
        self._offer(action, end_s)

    def _offer(self, action: Action, since_s: float) -> None:
        self.ranks[self.owners[action.stage]].ready[action] = since_s
        heapq.heappush(self.moments, since_s)

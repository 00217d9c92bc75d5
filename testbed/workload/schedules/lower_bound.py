"""Before when no order of a pipeline's step can end, without a search: what ranks, links and memory alone say.

A microbatch goes through all stages and back. A rank computes all of its share once the first one has come to it; a
link carries all messages between the first that can go and what is left of the way behind the last; and a rank that
may have K activations alive has each of them for a way to the end and back at the least, so that they take turns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate

from testbed.workload.schedules.actions import FORWARD, INPUT, WEIGHT, Action
from testbed.workload.schedules.cp_sat import Shop


def shortest_s(shop: Shop) -> float:
    """Seconds. Weight gradients may be cut in parts; nothing else."""
    way = _Way(shop)
    return max(*way.by_ranks(), *way.by_links(), *way.by_memory())


class _Way:
    """Of one microbatch alone: every action, when it begins, and what is behind it."""

    def __init__(self, shop: Shop) -> None:
        self.shop, costs = shop, shop.costs
        stages = range(len(shop.owners))
        self.stages = [
            [stage for stage in stages if shop.owners[stage] == rank] for rank in range(shop.ranks)
        ]
        actions = [Action(stage, FORWARD, 0) for stage in stages]
        actions += [Action(stage, INPUT, 0) for stage in reversed(stages)]
        self.ranks = [shop.owners[action.stage] for action in actions]
        self.hops = [
            costs.hop(here, there) if here != there else (0.0, 0.0)
            for here, there in zip(self.ranks, self.ranks[1:], strict=False)
        ]
        takes_s = [costs.of(action) for action in actions]
        moves_s = [latency_s + busy_s for latency_s, busy_s in self.hops]
        both_s = [one + move for one, move in zip(takes_s, [*moves_s, 0.0], strict=True)]
        self.begins_s = [0.0, *accumulate(both_s[:-1])]
        self.ends_s = [begin + takes for begin, takes in zip(self.begins_s, takes_s, strict=True)]
        # the first stage's weight gradient comes after all
        self.whole_s = self.ends_s[-1] + costs.of(Action(0, WEIGHT, 0))

    def by_ranks(self) -> Iterator[float]:
        """Each computes all it has, once the first microbatch is there."""
        shop = self.shop
        for stages in self.stages:
            each_s = sum(
                shop.costs.of(Action(stage, kind, 0)) for stage in stages for kind in (FORWARD, INPUT, WEIGHT)
            )
            yield self.begins_s[stages[0]] + shop.microbatches * each_s

    def by_links(self) -> Iterator[float]:
        """One message at a time in each direction."""
        crossings: dict[tuple[int, int], list[int]] = defaultdict(list)
        for place, (here, there) in enumerate(zip(self.ranks, self.ranks[1:], strict=False)):
            if here != there:
                crossings[here, there].append(place)
        for places in crossings.values():
            latency_s, busy_s = self.hops[places[0]]
            first_s = min(self.ends_s[place] for place in places)
            behind_s = min(self.whole_s - self.begins_s[place + 1] for place in places)
            yield first_s + self.shop.microbatches * len(places) * busy_s + latency_s + behind_s

    def by_memory(self) -> Iterator[float]:
        """An activation is alive from the end of its forward pass to the beginning of the way back at the least."""
        shop, count = self.shop, len(self.shop.owners)
        for stages in self.stages:
            back = [2 * count - 1 - stage for stage in stages]
            alive_s = sum(
                self.begins_s[there] - self.ends_s[stage] for stage, there in zip(stages, back, strict=True)
            )
            first_s = min(self.ends_s[stage] for stage in stages)
            behind_s = min(self.whole_s - self.begins_s[there] for there in back)
            yield first_s + shop.microbatches * alive_s / shop.room + behind_s

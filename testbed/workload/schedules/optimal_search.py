"""The search for the fastest order of a pipeline's step, and a lower bound that tells how good it is.

Known schedules are tried first; the best of them is where OR-Tools' CP-SAT begins. Steps of many actions are searched
in windows of time, one after the other, repeatedly (large-neighbourhood search), on the same model.

The lower bound needs no search. A microbatch goes through all stages and back. A rank computes all of its share once
the first one has reached it; a link carries all messages between the first that can go and what is left of the route
behind the last; and a rank that may hold K activations holds each of them for at least a way to the end and back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from itertools import accumulate

from testbed.workload.schedules.action_times import peak_activations, time_orders
from testbed.workload.schedules.actions import FORWARD, INPUT, WEIGHT, Action, Order, ScheduleError
from testbed.workload.schedules.base import SCHEDULES, ScheduleEntry, ScheduleRequest, SearchResult
from testbed.workload.schedules.cp_sat import JobShop, improve, renamed
from testbed.workload.schedules.greedy import Rules, greedy

WHOLE = 1000  # actions up to which a step is searched as a whole only
WINDOW = 240  # actions of a window
PROVEN = 1e-6  # as near its bound nothing is searched for
HOPELESS = 1.15  # of the time to beat: what a search does not start from, but for a bound
BOUND_ALONE = 8.0  # effort for that
SET_UP = 0.5  # of effort, per 1000 actions of a step: what it takes to state a window
FIRST, ROUND = 0.6, 0.02  # of the effort: what a larger step as a whole takes, and one window at the most

LISTENER: ContextVar[Callable[[str], None] | None] = ContextVar("LISTENER", default=None)
"""Who wants to hear how far a search is."""


def room_of(request: ScheduleRequest) -> int:
    """Activations of stages that a rank may have alive: `memory` times the most that one has under 1F1B."""
    return max(request.chunks, round(request.memory * request.ranks * request.chunks))


def optimum(request: ScheduleRequest, owners: Sequence[int]) -> SearchResult:
    """With stages on these ranks. The same on every machine: effort is counted, not timed. ScheduleError.

    Without effort, or where what is known is as quick as its bound, it is that, and nothing is searched for.
    """
    shop = JobShop(tuple(owners), request.microbatches, request.costs, room_of(request))
    known = sorted(_known(request, shop), key=lambda found: found[1])
    if not known:
        raise ScheduleError(got=f"memory {request.memory}", expected="enough for one schedule that is known")
    effort = request.effort
    if known[0][1] > HOPELESS * request.beat_s:
        effort = min(effort, BOUND_ALONE)
    search = _Search(shop, renamed(known[0][2]), effort, request.beat_s)
    if effort > 0 and search.step_s > search.bound_s * (1 + PROVEN):
        search.run()
    listed = tuple((name, step_s) for name, step_s, _ in known if name)
    step_s, orders = min(
        (known[0][1], known[0][2]), (search.step_s, search.orders), key=lambda found: found[0]
    )
    return SearchResult(orders, step_s, {request.chunks: min(search.bound_s, step_s)}, listed)


class _Search:
    """From orders to better ones, as long as there is effort."""

    def __init__(self, shop: JobShop, orders: tuple[Order, ...], effort: float, beat_s: float) -> None:
        self.shop, self.orders, self.effort, self.beat_s = shop, orders, effort, beat_s
        self.step_s = shop.step_s(orders)
        self.bound_s = shortest_s(shop)
        self._tell()

    def run(self) -> None:
        if sum(map(len, self.orders)) <= WHOLE:
            self._whole(self.effort)
            return
        self._whole(FIRST * self.effort)
        self._windows()

    def _whole(self, effort: float) -> None:
        found = improve(self.shop, self.orders, effort, beat_s=self.beat_s)
        self.bound_s = max(self.bound_s, found.bound_s)
        self.effort -= effort
        self._take(found.orders)

    def _windows(self) -> None:
        """Half a window further each time, until nothing is won from one end to the other."""
        each, first, since_won = ROUND * self.effort, 0, 0
        count = sum(map(len, self.orders))
        while self.effort > 0 and since_won < 2 * count / WINDOW + 1:
            timed = time_orders(self.shop.owners, self.orders, self.shop.costs)
            assert timed is not None
            in_time = sorted(timed.starts_s, key=lambda action: timed.starts_s[action])
            found = improve(self.shop, self.orders, each, in_time[first : first + WINDOW])
            since_won = 0 if self._take(found.orders) else since_won + 1
            self.effort -= each + SET_UP * count / 1000
            first = first + WINDOW // 2 if first + WINDOW < count else 0

    def _take(self, orders: tuple[Order, ...]) -> bool:
        """Whether they are better; those as good are taken, too, as a place to go on from."""
        step_s, before_s = self.shop.step_s(orders), self.step_s
        if step_s <= before_s:
            self.orders, self.step_s = orders, step_s
        self._tell()
        return step_s < before_s * (1 - 1e-9)

    def _tell(self) -> None:
        if (listener := LISTENER.get()) is not None:
            stages = (
                "one stage per rank" if len(self.shop.owners) == self.shop.ranks else "two, there and back"
            )
            listener(f"{stages}: {self.step_s:.4g} s, at least {min(self.bound_s, self.step_s):.4g} s")


def _known(request: ScheduleRequest, shop: JobShop) -> Iterator[tuple[str, float, tuple[Order, ...]]]:
    """(name, step time, orders) of schedules on these stages that fit in memory, and of a play with all of it."""
    for name, entry in SCHEDULES.items():
        if not isinstance(entry, ScheduleEntry) or entry.searched or entry.chunks != request.chunks:
            continue
        found = []
        for costs in dict.fromkeys((request.costs, request.named or request.costs)):
            made = entry.make(replace(request, costs=costs))
            assert not isinstance(made, SearchResult)
            found.append(tuple(map(tuple, made)))
        fitting = [orders for orders in found if peak_activations(orders) <= shop.room + 1e-9]
        if fitting:
            best = min(fitting, key=shop.step_s)
            yield name, shop.step_s(best), best
    rules = Rules((shop.room,) * shop.ranks)
    orders = greedy(shop.owners, shop.microbatches, shop.costs, rules)
    yield "", shop.step_s(orders), orders


def shortest_s(shop: JobShop) -> float:
    """Seconds. Weight gradients may be cut in parts; nothing else."""
    way = _Way(shop)
    return max(*way.by_ranks(), *way.by_links(), *way.by_memory())


class _Way:
    """Of one microbatch alone: every action, when it begins, and what is behind it."""

    def __init__(self, shop: JobShop) -> None:
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

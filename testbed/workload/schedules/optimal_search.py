"""The quickest order that can be found of a pipeline's step, and how far from the best it can be at most.

Whatever is known already is tried first; the best of it is where OR-Tools' CP-SAT begins. Steps of many actions are
gone through in windows of time, one after the other, over and over (large-neighbourhood search), on the same model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace

from testbed.workload.schedules.action_times import carried_out, most_alive
from testbed.workload.schedules.actions import Order, ScheduleError
from testbed.workload.schedules.base import SCHEDULES, ScheduleEntry, ScheduleRequest, Searched
from testbed.workload.schedules.cp_sat import Shop, improve, renamed
from testbed.workload.schedules.greedy import Rules, greedy
from testbed.workload.schedules.lower_bound import shortest_s

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


def optimum(request: ScheduleRequest, owners: Sequence[int]) -> Searched:
    """With stages on these ranks. The same on every machine: effort is counted, not timed. ScheduleError.

    Without effort, or where what is known is as quick as its bound, it is that, and nothing is searched for.
    """
    shop = Shop(tuple(owners), request.microbatches, request.costs, room_of(request))
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
    return Searched(orders, step_s, {request.chunks: min(search.bound_s, step_s)}, listed)


class _Search:
    """From orders to better ones, as long as there is effort."""

    def __init__(self, shop: Shop, orders: tuple[Order, ...], effort: float, beat_s: float) -> None:
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
            timed = carried_out(self.shop.owners, self.orders, self.shop.costs)
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


def _known(request: ScheduleRequest, shop: Shop) -> Iterator[tuple[str, float, tuple[Order, ...]]]:
    """(name, step time, orders) of schedules on these stages that fit in memory, and of a play with all of it."""
    for name, entry in SCHEDULES.items():
        if not isinstance(entry, ScheduleEntry) or entry.searched or entry.chunks != request.chunks:
            continue
        found = []
        for costs in dict.fromkeys((request.costs, request.named or request.costs)):
            made = entry.make(replace(request, costs=costs))
            assert not isinstance(made, Searched)
            found.append(tuple(map(tuple, made)))
        fitting = [orders for orders in found if most_alive(orders) <= shop.room + 1e-9]
        if fitting:
            best = min(fitting, key=shop.step_s)
            yield name, shop.step_s(best), best
    rules = Rules((shop.room,) * shop.ranks)
    orders = greedy(shop.owners, shop.microbatches, shop.costs, rules)
    yield "", shop.step_s(orders), orders

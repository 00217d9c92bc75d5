"""The schedule `optimal`: a search for the fastest order of a pipeline's step, and a lower bound on its time.

Named schedules are tried first; OR-Tools' CP-SAT starts from the best of them. Steps with many actions are searched
repeatedly in consecutive time windows on the same model (large-neighbourhood search). Since a search takes a minute,
results are cached by request, in this process and in the user's cache directory.

The lower bound needs no search. A microbatch passes all stages and returns. A rank does all its computation after the
first microbatch has reached it. A link carries all messages between the time of the first that can be sent and the rest
of the route after the last. A rank that may keep K activations keeps each one for at least a round trip to the end of
the pipeline.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from importlib import metadata
from itertools import accumulate
from pathlib import Path

from testbed.caches import user_cache
from testbed.workload.schedules.action_times import peak_activations, time_orders
from testbed.workload.schedules.actions import (
    FORWARD,
    INPUT,
    WEIGHT,
    Action,
    Order,
    ScheduleError,
    read_csv,
    write_csv,
)
from testbed.workload.schedules.base import SCHEDULES, ScheduleEntry, ScheduleRequest, SearchResult, schedule
from testbed.workload.schedules.cp_sat import JobShop, canonical_orders, improve
from testbed.workload.schedules.greedy import Limits, greedy

SEARCH_VERSION = 2  # increase when the search would give another result
MAX_WHOLE_ACTIONS = 1000  # larger steps are searched in windows, too
WINDOW_ACTIONS = 240
BOUND_TOLERANCE = 1e-6  # relative distance to the bound at which the search stops
MAX_START_RATIO = 1.15  # relative to the time to beat: from a slower start, only a bound is searched for
BOUND_EFFORT = 8.0  # effort of a search for a bound only
SETUP_EFFORT = 0.5  # effort to build the model of a window, per 1000 actions of a step
WHOLE_SHARE = 0.6  # share of the effort for a larger step as a whole
WINDOW_SHARE = 0.02  # largest share of the effort for one window

LISTENER: ContextVar[Callable[[str], None] | None] = ContextVar("LISTENER", default=None)
"""Callback for progress messages of a search."""


@SCHEDULES.register("optimal")
@schedule(chunks=None, split=True, by_costs=True, searched=True)
def optimal(request: ScheduleRequest) -> SearchResult:
    """Search for the best order with one stage per rank, or two in a V; raise ScheduleError for more."""
    if request.chunks > 2:
        raise ScheduleError(where="optimal", got=f"{request.chunks} chunks", expected="1 or 2")
    if (found := _find_cached(request)) is None:
        found = find_optimal(request, request.loop if request.chunks == 1 else request.there_and_back)
        _store(request, found)
    return found


_known: dict[str, SearchResult] = {}


def folder() -> Path:
    """Return the folder of the cache."""
    return user_cache("schedules")


def _find_cached(request: ScheduleRequest) -> SearchResult | None:
    """Return the cached result for an equal request."""
    key = _key(request)
    if key not in _known:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            kept = json.loads((folder() / f"{key}.json").read_text())
            known = tuple((str(name), float(step_s)) for name, step_s in kept["known"])
            orders = read_csv(kept["orders"])
            bounds_s = {int(chunks): float(bound_s) for chunks, bound_s in kept["bounds_s"].items()}
            _known[key] = SearchResult(orders, float(kept["step_s"]), bounds_s, known)
    return _known.get(key)


def _store(request: ScheduleRequest, found: SearchResult) -> None:
    """Cache a result; only in this process if the directory cannot be written."""
    key = _key(request)
    _known[key] = found
    text = json.dumps(
        {
            "orders": write_csv(found.orders),
            "step_s": found.step_s,
            "bounds_s": found.bounds_s,
            "known": found.known,
        }
    )
    with contextlib.suppress(OSError):
        folder().mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder(), prefix=".", delete=False) as file:
            file.write(text)
        Path(file.name).replace(folder() / f"{key}.json")


def _key(request: ScheduleRequest) -> str:
    what = repr((request, SEARCH_VERSION, metadata.version("ortools")))
    return hashlib.sha256(what.encode()).hexdigest()[:24]


def activation_limit(request: ScheduleRequest) -> int:
    """Return the stage activations that a rank may keep: `memory` times the maximum that a rank keeps under 1F1B."""
    return max(request.chunks, round(request.memory * request.ranks * request.chunks))


def find_optimal(request: ScheduleRequest, owners: Sequence[int]) -> SearchResult:
    """Return the best orders found with stages on these ranks; raise ScheduleError if there are none.

    The result is the same on every machine, since effort is counted, not timed. Without effort, or if the best named
    schedule reaches the bound, the result is that schedule.
    """
    shop = JobShop(tuple(owners), request.microbatches, request.costs, activation_limit(request))
    known = sorted(_named_schedules(request, shop), key=lambda found: found[1])
    if not known:
        raise ScheduleError(got=f"memory {request.memory}", expected="enough for one schedule that is known")
    effort = request.effort
    if known[0][1] > MAX_START_RATIO * request.beat_s:
        effort = min(effort, BOUND_EFFORT)
    search = _Search(shop, canonical_orders(known[0][2]), effort, request.beat_s)
    if effort > 0 and search.step_s > search.bound_s * (1 + BOUND_TOLERANCE):
        search.run()
    listed = tuple((name, step_s) for name, step_s, _ in known if name)
    step_s, orders = min(
        (known[0][1], known[0][2]), (search.step_s, search.orders), key=lambda found: found[0]
    )
    return SearchResult(orders, step_s, {request.chunks: min(search.bound_s, step_s)}, listed)


class _Search:
    """A search that improves orders until the effort is used up."""

    def __init__(self, shop: JobShop, orders: tuple[Order, ...], effort: float, beat_s: float) -> None:
        self.shop, self.orders, self.effort, self.beat_s = shop, orders, effort, beat_s
        self.step_s = shop.step_s(orders)
        self.bound_s = lower_bound_s(shop)
        self._report()

    def run(self) -> None:
        if sum(map(len, self.orders)) <= MAX_WHOLE_ACTIONS:
            self._search_whole(self.effort)
            return
        self._search_whole(WHOLE_SHARE * self.effort)
        self._windows()

    def _search_whole(self, effort: float) -> None:
        found = improve(self.shop, self.orders, effort, beat_s=self.beat_s)
        self.bound_s = max(self.bound_s, found.bound_s)
        self.effort -= effort
        self._adopt(found.orders)

    def _windows(self) -> None:
        """Search windows, advancing half a window each time, until a whole pass brings no gain."""
        each, first, since_gain = WINDOW_SHARE * self.effort, 0, 0
        count = sum(map(len, self.orders))
        while self.effort > 0 and since_gain < 2 * count / WINDOW_ACTIONS + 1:
            timed = time_orders(self.shop.owners, self.orders, self.shop.costs)
            assert timed is not None
            in_time = sorted(timed.starts_s, key=lambda action: timed.starts_s[action])
            found = improve(self.shop, self.orders, each, in_time[first : first + WINDOW_ACTIONS])
            since_gain = 0 if self._adopt(found.orders) else since_gain + 1
            self.effort -= each + SETUP_EFFORT * count / 1000
            first = first + WINDOW_ACTIONS // 2 if first + WINDOW_ACTIONS < count else 0

    def _adopt(self, orders: tuple[Order, ...]) -> bool:
        """Return whether orders are better; also adopt equally good ones as a new starting point."""
        step_s, before_s = self.shop.step_s(orders), self.step_s
        if step_s <= before_s:
            self.orders, self.step_s = orders, step_s
        self._report()
        return step_s < before_s * (1 - 1e-9)

    def _report(self) -> None:
        if (listener := LISTENER.get()) is not None:
            stages = (
                "one stage per rank" if len(self.shop.owners) == self.shop.ranks else "two, there and back"
            )
            listener(f"{stages}: {self.step_s:.4g} s, at least {min(self.bound_s, self.step_s):.4g} s")


def _named_schedules(
    request: ScheduleRequest, shop: JobShop
) -> Iterator[tuple[str, float, tuple[Order, ...]]]:
    """Yield name, step time and orders of named schedules that fit in memory, and of a greedy schedule."""
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
    limits = Limits((shop.room,) * shop.ranks)
    orders = greedy(shop.owners, shop.microbatches, shop.costs, limits)
    yield "", shop.step_s(orders), orders


def lower_bound_s(shop: JobShop) -> float:
    """Return a lower bound on the step time in seconds; it allows divided weight gradients, but nothing else."""
    path = _MicrobatchPath(shop)
    return max(*path.by_ranks(), *path.by_links(), *path.by_memory())


class _MicrobatchPath:
    """A single microbatch alone: every action, its start, and the time that follows it."""

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
        compute_s = [costs.of(action) for action in actions]
        transfer_s = [latency_s + busy_s for latency_s, busy_s in self.hops]
        step_times_s = [one + move for one, move in zip(compute_s, [*transfer_s, 0.0], strict=True)]
        self.begins_s = [0.0, *accumulate(step_times_s[:-1])]
        self.ends_s = [begin + takes for begin, takes in zip(self.begins_s, compute_s, strict=True)]
        # the first stage's weight gradient is last
        self.whole_s = self.ends_s[-1] + costs.of(Action(0, WEIGHT, 0))

    def by_ranks(self) -> Iterator[float]:
        """Yield bounds by rank: all its computation after the first microbatch has arrived."""
        shop = self.shop
        for stages in self.stages:
            each_s = sum(
                shop.costs.of(Action(stage, kind, 0)) for stage in stages for kind in (FORWARD, INPUT, WEIGHT)
            )
            yield self.begins_s[stages[0]] + shop.microbatches * each_s

    def by_links(self) -> Iterator[float]:
        """Yield bounds by link: one message at a time in each direction."""
        crossings: dict[tuple[int, int], list[int]] = defaultdict(list)
        for place, (here, there) in enumerate(zip(self.ranks, self.ranks[1:], strict=False)):
            if here != there:
                crossings[here, there].append(place)
        for places in crossings.values():
            latency_s, busy_s = self.hops[places[0]]
            first_s = min(self.ends_s[place] for place in places)
            rest_s = min(self.whole_s - self.begins_s[place + 1] for place in places)
            yield first_s + self.shop.microbatches * len(places) * busy_s + latency_s + rest_s

    def by_memory(self) -> Iterator[float]:
        """Yield bounds by rank: an activation is kept at least from the end of forward to the start of backward."""
        shop, count = self.shop, len(self.shop.owners)
        for stages in self.stages:
            back = [2 * count - 1 - stage for stage in stages]
            alive_s = sum(
                self.begins_s[there] - self.ends_s[stage] for stage, there in zip(stages, back, strict=True)
            )
            first_s = min(self.ends_s[stage] for stage in stages)
            rest_s = min(self.whole_s - self.begins_s[there] for there in back)
            yield first_s + shop.microbatches * alive_s / shop.room + rest_s

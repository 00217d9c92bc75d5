"""The schedule `optimal`, found by search; results are cached, as a search takes a minute."""

from __future__ import annotations

from testbed.workload.schedules import schedule_cache
from testbed.workload.schedules.actions import ScheduleError
from testbed.workload.schedules.base import SCHEDULES, ScheduleRequest, SearchResult, schedule


@SCHEDULES.register("optimal")
@schedule(chunks=None, split=True, by_costs=True, searched=True)
def optimal(request: ScheduleRequest) -> SearchResult:
    """Search for the best order with one stage per rank, or two in a V. Raises ScheduleError for more."""
    from testbed.workload.schedules.optimal_search import find_optimal  # noqa: PLC0415 (it goes by the other schedules)

    if request.chunks > 2:
        raise ScheduleError(where="optimal", got=f"{request.chunks} chunks", expected="1 or 2")
    if (found := schedule_cache.find(request)) is None:
        found = find_optimal(request, request.loop if request.chunks == 1 else request.there_and_back)
        schedule_cache.store(request, found)
    return found

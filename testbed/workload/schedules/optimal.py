"""The schedule that is searched for; what a search found is kept, since it takes a minute."""

from __future__ import annotations

from testbed.workload.schedules import schedule_cache
from testbed.workload.schedules.actions import ScheduleError
from testbed.workload.schedules.base import SCHEDULES, ScheduleRequest, SearchResult, schedule


@SCHEDULES.register("optimal")
@schedule(chunks=None, split=True, by_costs=True, searched=True)
def optimal(request: ScheduleRequest) -> SearchResult:
    """One stage per rank, or two, there and back. ScheduleError for more."""
    from testbed.workload.schedules.optimal_search import optimum  # noqa: PLC0415 (it goes by the other schedules)

    if request.chunks > 2:
        raise ScheduleError(where="optimal", got=f"{request.chunks} chunks", expected="1 or 2")
    if (found := schedule_cache.find(request)) is None:
        found = optimum(request, request.loop if request.chunks == 1 else request.there_and_back)
        schedule_cache.keep(request, found)
    return found

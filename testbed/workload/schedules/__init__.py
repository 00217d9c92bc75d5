"""Pipeline schedules: every rank's order of computation, by name or from a file, with checks.

Each schedule is a function that registers under its name in the module that defines it. A user's own schedule is a
function in a file: see docs/how-to/plugins/schedules.md.
"""

from testbed.workload.schedules.actions import (
    Action,
    Kind,
    Order,
    ScheduleError,
    check_orders,
    implied_actions,
    next_stage,
    read_csv,
    write_csv,
)
from testbed.workload.schedules.base import (
    SCHEDULES,
    Costs,
    Schedule,
    ScheduleEntry,
    ScheduleRequest,
    SearchResult,
    find_schedule,
    make_schedule,
    schedule,
    schedule_of,
)

__all__ = [
    "SCHEDULES",
    "Action",
    "Costs",
    "Kind",
    "Order",
    "Schedule",
    "ScheduleEntry",
    "ScheduleError",
    "ScheduleRequest",
    "SearchResult",
    "check_orders",
    "find_schedule",
    "implied_actions",
    "make_schedule",
    "next_stage",
    "read_csv",
    "schedule",
    "schedule_of",
    "write_csv",
]

"""Pipeline schedules: what every rank computes in which order, by name, from a file, checked."""

from testbed.workload.schedules.actions import (
    Action,
    Kind,
    Order,
    ScheduleError,
    check_orders,
    read_csv,
    write_csv,
)
from testbed.workload.schedules.catalogue import SCHEDULES, Schedule, make_schedule, schedule_of
from testbed.workload.schedules.greedy import Costs

__all__ = [
    "SCHEDULES",
    "Action",
    "Costs",
    "Kind",
    "Order",
    "Schedule",
    "ScheduleError",
    "check_orders",
    "make_schedule",
    "read_csv",
    "schedule_of",
    "write_csv",
]

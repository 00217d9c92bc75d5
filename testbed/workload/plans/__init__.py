"""Workloads: functions that yield every rank's plan, by name or from a file.

Each registers under its name in the module where it stands. A user's own is one in a file of its own: see
docs/plugins/workloads.md.
"""

from testbed.workload.plans.base import WORKLOADS, WorkloadRequest, make_plan
from testbed.workload.plans.builder import Mark, PlanBuilder
from testbed.workload.plans.checking import PlanProblem, check_plan

__all__ = [
    "WORKLOADS",
    "Mark",
    "PlanBuilder",
    "PlanProblem",
    "WorkloadRequest",
    "check_plan",
    "make_plan",
]

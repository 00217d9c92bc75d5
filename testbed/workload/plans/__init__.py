"""The tools of workloads to make plans: the request, a plan builder, and the check that every plan must pass.

The workloads are in `testbed.workload.job.kinds`, or in a file of your own: see docs/how-to/plugins/workloads.md.
"""

from testbed.workload.plans.builder import Mark, PlanBuilder, WorkloadRequest
from testbed.workload.plans.validation import PlanProblem, check_plan

__all__ = ["Mark", "PlanBuilder", "PlanProblem", "WorkloadRequest", "check_plan"]

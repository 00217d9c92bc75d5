"""What workloads are made with: the request for one, a builder of plans, and the check that all plans pass.

Workloads themselves are in `testbed.workload.job.kinds`, or in a file of your own: see
docs/how-to/plugins/workloads.md.
"""

from testbed.workload.plans.builder import Mark, PlanBuilder, WorkloadRequest
from testbed.workload.plans.validation import PlanProblem, check_plan

__all__ = ["Mark", "PlanBuilder", "PlanProblem", "WorkloadRequest", "check_plan"]

"""Workloads: functions that yield every rank's plan, by name or from a file.

Each registers under its name in the module where it stands: the testbed's own, which a scenario describes by keys such
as `model` and `collectives`, as well as those that it names as `plan`. A user's own is one in a file of its own: see
docs/how-to/plugins/workloads.md.
"""

from testbed.workload.job.kinds.base import WORKLOADS, JobRequest, MakePlan, is_added, make_plan, source_of

__all__ = ["WORKLOADS", "JobRequest", "MakePlan", "is_added", "make_plan", "source_of"]

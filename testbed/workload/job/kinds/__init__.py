"""Workloads: functions that return every rank's plan, by name or from a file.

Each registers under its name in the module that defines it. Some are selected by keys of a scenario such as `model` and
`collectives`, others by name as `plan`. A user's own workload is a function in a file: see
docs/how-to/plugins/workloads.md.
"""

from testbed.workload.job.kinds.base import WORKLOADS, MakePlan, is_plugin, make_plan, source_of
from testbed.workload.job.training import JobRequest

__all__ = ["WORKLOADS", "JobRequest", "MakePlan", "is_plugin", "make_plan", "source_of"]

"""Workloads: functions that return every rank's plan, by name or from a file.

Each registers under its name in the module that defines it. Some are selected by keys of a scenario such as `model` and
`collectives`, others by name as `plan`. A user's own workload is a function in a file: see
docs/how-to/plugins/workloads.md.
"""

from testbed.workload.job.kinds.base import WORKLOADS, JobRequest, MakePlan, is_plugin, make_plan, source_of

__all__ = ["WORKLOADS", "JobRequest", "MakePlan", "is_plugin", "make_plan", "source_of"]

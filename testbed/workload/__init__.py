"""What every rank does in a step: models, gradient buckets, parallelism, schedules; plans of operations on streams."""

from testbed.workload.alike import partners, plan_collectives, plan_data_parallel, uneven_rows
from testbed.workload.buckets import Bucket, gradient_buckets
from testbed.workload.models import Parameter, parameters

__all__ = [
    "Bucket",
    "Parameter",
    "gradient_buckets",
    "parameters",
    "partners",
    "plan_collectives",
    "plan_data_parallel",
    "uneven_rows",
]

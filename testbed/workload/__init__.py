"""What every rank does in a training step: models, gradient buckets, programs."""

from testbed.workload.buckets import Bucket, gradient_buckets
from testbed.workload.models import Parameter, parameters
from testbed.workload.program import (
    Action,
    Collective,
    Compute,
    Exchange,
    WaitAll,
    partners,
    step_program,
    training_step,
    uneven_rows,
)

__all__ = [
    "Action",
    "Bucket",
    "Collective",
    "Compute",
    "Exchange",
    "Parameter",
    "WaitAll",
    "gradient_buckets",
    "parameters",
    "partners",
    "step_program",
    "training_step",
    "uneven_rows",
]

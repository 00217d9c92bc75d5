"""What every rank does in a training step: models, gradient buckets, programs."""

from testbed.workload.buckets import Bucket, gradient_buckets
from testbed.workload.models import Parameter, parameters
from testbed.workload.program import (
    Action,
    Collective,
    Compute,
    Exchange,
    WaitAll,
    step_program,
    training_step,
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
    "step_program",
    "training_step",
]

"""What every rank does in a training step: models, gradient buckets, programs."""

from testbed.workload.buckets import Bucket, gradient_buckets
from testbed.workload.models import Parameter, parameters
from testbed.workload.program import Action, AllReduce, Compute, WaitAll, training_step

__all__ = [
    "Action",
    "AllReduce",
    "Bucket",
    "Compute",
    "Parameter",
    "WaitAll",
    "gradient_buckets",
    "parameters",
    "training_step",
]

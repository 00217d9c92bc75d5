"""Gradient buckets as PyTorch's DistributedDataParallel makes them.

Source: torch/csrc/distributed/c10d/reducer.cpp, `Reducer::rebuild_buckets` and `compute_bucket_assignment_by_size`.
After its first step DDP assigns parameters in the order in which their gradients came, which is the reverse of their
registration in a model that uses its layers in turn: parameters are taken one by one, whole, and a bucket is closed
once its bytes reach the cap, however far the last one carries it beyond. The first bucket has a smaller cap of its
own (`dist._DEFAULT_FIRST_BUCKET_BYTES`, 1 MiB), the others `bucket_cap_mb` (25 MiB unless the user sets it), so that
communication starts early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.workload.models import Parameter


@dataclass(frozen=True)
class Bucket:
    """Gradients that are reduced together, in the order in which backward finishes them."""

    parameters: tuple[Parameter, ...]

    @property
    def name(self) -> str:
        """Its first parameter, and its last if it has more than one."""
        names = [parameter.name for parameter in self.parameters]
        return names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}"

    @property
    def numel(self) -> int:
        """Number of elements."""
        return sum(parameter.numel for parameter in self.parameters)


def gradient_buckets(
    parameters: Sequence[Parameter], itemsize: int, cap_bytes: int, first_cap_bytes: int
) -> tuple[Bucket, ...]:
    """Buckets in the order in which backward fills them.

    `parameters` in the order of registration; `itemsize` in bytes per element; a cap holds for the bytes of a bucket.
    """
    buckets: list[Bucket] = []
    filling: list[Parameter] = []
    filled = 0
    for parameter in reversed(parameters):
        filling.append(parameter)
        filled += parameter.numel * itemsize
        if filled >= (cap_bytes if buckets else first_cap_bytes):
            buckets.append(Bucket(tuple(filling)))
            filling, filled = [], 0
    if filling:
        buckets.append(Bucket(tuple(filling)))
    return tuple(buckets)

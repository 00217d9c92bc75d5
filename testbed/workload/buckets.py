"""Gradient buckets as PyTorch's DistributedDataParallel makes them.

Source: torch/csrc/distributed/c10d/reducer.cpp, `compute_bucket_assignment_by_size`: parameters are taken in turn, a
bucket is closed once its size reaches the cap, and after the first bucket the next, larger cap holds. DDP gives the
parameters in reverse order of registration, which is about the order in which backward finishes them, and the caps
`[dist._DEFAULT_FIRST_BUCKET_BYTES (1 MiB), bucket_cap_mb]` (torch/nn/parallel/distributed.py).
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
    def numel(self) -> int:
        """Number of elements."""
        return sum(parameter.numel for parameter in self.parameters)


def gradient_buckets(
    parameters: Sequence[Parameter], itemsize: int, cap_bytes: int, first_cap_bytes: int
) -> tuple[Bucket, ...]:
    """Buckets in the order in which backward fills them; `parameters` in the order of registration."""
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

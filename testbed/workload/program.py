"""The program of a rank: what it does in one training step, as a list of actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from testbed.scale import UNSCALED, Scale
from testbed.workload.buckets import gradient_buckets
from testbed.workload.models import parameters

if TYPE_CHECKING:
    from testbed.config import WorkloadSpec


@dataclass(frozen=True)
class Compute:
    """Keep computing for `duration_s` seconds; outstanding collectives go on meanwhile."""

    name: str
    duration_s: float


@dataclass(frozen=True)
class AllReduce:
    """Start reducing `numel` elements over all ranks and go on."""

    bucket: int
    name: str
    numel: int


@dataclass(frozen=True)
class WaitAll:
    """Wait for every collective that was started."""


Action = Compute | AllReduce | WaitAll


def training_step(workload: WorkloadSpec, scale: Scale = UNSCALED) -> tuple[Action, ...]:
    """One step of data-parallel training: forward; backward bucket by bucket, each reduced as soon as it is full; wait.

    Computing takes 6 floating-point operations per parameter and token, 2 forward and 4 backward, at `peak_flops` x
    `flops_utilisation` (Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 2.1, arXiv:2001.08361;
    attention scores, which grow with the sequence, are left out there and here). Backward time is shared out by the
    matrix products behind each bucket's gradients: those of embeddings and norms come at next to no cost.
    `scale` divides element counts, of which at least one stays, and stretches computing.
    """
    model = parameters(workload.model)
    tokens = workload.sequence_length * workload.local_batch_size
    flops = workload.peak_flops * workload.flops_utilisation
    forward_s = scale.emulated_s(2 * sum(parameter.numel for parameter in model) * tokens / flops)
    itemsize = np.dtype(workload.gradient_dtype).itemsize
    buckets = gradient_buckets(model, itemsize, workload.bucket_cap_bytes, workload.first_bucket_cap_bytes)
    work = [sum(p.numel for p in bucket.parameters if p.matmul) for bucket in buckets]
    actions: list[Action] = [Compute("forward", forward_s)]
    for index, bucket in enumerate(buckets):
        actions.append(Compute(f"backward {index}", 2 * forward_s * work[index] / sum(work)))
        numel = max(1, round(scale.emulated_bytes(bucket.numel)))
        actions.append(AllReduce(index, bucket.name, numel))
    actions.append(WaitAll())
    return tuple(actions)

"""The program of a rank: what it does in one training step, as a list of actions."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
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
class Collective:
    """Start a collective over all ranks and go on.

    numel: elements of a rank's larger array. algorithm: "" takes the variant's. dscp: its class of traffic, which has
    connections of its own.
    """

    bucket: int
    name: str
    numel: int
    collective: str = "all_reduce"
    algorithm: str = ""
    dscp: int = 0


@dataclass(frozen=True)
class Exchange:
    """As a pipeline of two stages does: `messages` times `numel` elements there, `compute_s` of computing, and back.

    Between the ranks of the first building and those of the last, by their places there; the others go on at once.
    """

    name: str
    numel: int
    messages: int
    compute_s: float
    dscp: int = 0


@dataclass(frozen=True)
class WaitAll:
    """Wait for every collective that was started."""


Action = Compute | Collective | Exchange | WaitAll


def partners(buildings: Sequence[int]) -> Mapping[int, int]:
    """In an exchange, by the buildings of all ranks: for each of the first building its partner in the last, by their
    places there; and the reverse."""
    first = [rank for rank, building in enumerate(buildings) if building == min(buildings)]
    last = [rank for rank, building in enumerate(buildings) if building == max(buildings)]
    if min(buildings) == max(buildings):
        return {}
    pairs = list(zip(first, last, strict=False))
    return {**dict(pairs), **{there: here for here, there in pairs}}


def uneven_rows(ranks: int, most: int) -> list[list[int]]:
    """What each rank has for each in an all_to_all_v: anything up to the most, the same in every run."""
    rngs = [random.Random(f"{source}/{ranks}/{most}") for source in range(ranks)]
    return [[rng.randint(0, most) for _ in range(ranks)] for rng in rngs]


def step_program(workload: WorkloadSpec, ranks: int, scale: Scale = UNSCALED) -> tuple[Action, ...]:
    """What a rank does in a step: train a model, or the collectives and messages that the workload names."""
    if workload.model is not None:
        return training_step(workload, scale)
    itemsize = np.dtype(workload.gradient_dtype).itemsize

    def numel(size_bytes: int, parts: int) -> int:
        return max(1, round(scale.emulated_bytes(size_bytes) / itemsize / parts)) * parts

    actions: list[Action] = []
    if workload.compute_s:
        actions.append(Compute("forward", scale.emulated_s(workload.compute_s)))
    for index, spec in enumerate(workload.collectives or ()):
        parts = 1 if spec.collective == "all_reduce" else ranks
        size = numel(spec.size_bytes, parts)
        algorithm = spec.algorithm
        if spec.collective == "all_to_all_v" and algorithm == "auto":
            algorithm = "late_counts"
        actions.append(Collective(index, spec.collective, size, spec.collective, algorithm, spec.dscp))
    if (exchange := workload.exchange) is not None:
        size, compute_s = numel(exchange.size_bytes, 1), scale.emulated_s(exchange.compute_s)
        actions.append(Exchange("exchange", size, exchange.messages, compute_s, exchange.dscp))
    return (*actions, WaitAll())


def training_step(workload: WorkloadSpec, scale: Scale = UNSCALED) -> tuple[Action, ...]:
    """One step of data-parallel training: forward; backward bucket by bucket, each reduced as soon as it is full; wait.

    Computing takes 6 floating-point operations per token and parameter that works on it, 2 forward and 4 backward, at
    `workload.flops` (Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 2.1, arXiv:2001.08361;
    attention scores, which grow with the sequence, are left out there and here). Backward time is shared out by the
    matrix products behind each bucket's gradients: those of embeddings and norms come at next to no cost.
    `scale` divides element counts, of which at least one stays, and stretches computing.
    """
    assert workload.model is not None
    model = parameters(workload.model)
    tokens = workload.sequence_length * workload.local_batch_size
    forward_s = scale.emulated_s(2 * sum(parameter.active for parameter in model) * tokens / workload.flops)
    itemsize = np.dtype(workload.gradient_dtype).itemsize
    buckets = gradient_buckets(model, itemsize, workload.bucket_cap_bytes, workload.first_bucket_cap_bytes)
    work = [sum(p.active for p in bucket.parameters if p.matmul) for bucket in buckets]
    actions: list[Action] = [Compute("forward", forward_s)]
    for index, bucket in enumerate(buckets):
        actions.append(Compute(f"backward {index}", 2 * forward_s * work[index] / sum(work)))
        numel = max(1, round(scale.emulated_bytes(bucket.numel)))
        actions.append(Collective(index, bucket.name, numel))
    actions.append(WaitAll())
    return tuple(actions)

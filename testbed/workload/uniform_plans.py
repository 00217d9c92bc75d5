"""Plans of steps in which all ranks do the same work: data parallelism alone, or collectives and messages.

Each collective involves all ranks, has its own stream, and uses the variant's algorithm if it does not name one.

Gradient buckets are those of PyTorch's DistributedDataParallel (torch/csrc/distributed/c10d/reducer.cpp,
`Reducer::rebuild_buckets` and `compute_bucket_assignment_by_size`). After its first step, DDP assigns parameters in the
order in which their gradients became ready. In a model that uses its layers in order, this is the reverse of their
registration. Whole parameters are added one by one. A bucket is closed once its bytes reach the cap, however far the
last parameter exceeds it. The first bucket has a smaller cap (`dist._DEFAULT_FIRST_BUCKET_BYTES`, 1 MiB), so that
communication starts early; the others have `bucket_cap_mb` (25 MiB unless the user sets it).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from testbed.comm.collectives import AUTO, collective_of
from testbed.spec.scale import UNSCALED, Scale
from testbed.workload.models import Parameter, parameters
from testbed.workload.plan import (
    COMPUTE,
    EVERYBODY,
    Computing,
    GroupCollective,
    JobPlan,
    Message,
    Operation,
    RankPlan,
)
from testbed.workload.stages import block_of, layers_of, scores_of

if TYPE_CHECKING:
    from testbed.spec.workload import ExchangeSpec, WorkloadSpec


def plan_data_parallel(
    workload: WorkloadSpec,
    buildings: Sequence[int],
    scale: Scale = UNSCALED,
    slowdowns: Mapping[int, float] = MappingProxyType({}),
) -> JobPlan:
    """Return the plan of a data-parallel training step of the workload's model, one replica per rank.

    The forward pass comes first, then the backward pass bucket by bucket; each bucket is reduced as soon as it is full.

    Computation takes 6 floating-point operations per token and active parameter, 2 forward and 4 backward, at
    `workload.flops` (Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 2.1, arXiv:2001.08361).
    Attention scores, which grow with the sequence length, are left out there. They are also left out here, unless
    `workload.attention_scores` counts them in addition to a block's parameters. Backward time is divided between
    buckets by the matrix products behind their gradients: gradients of embeddings and norms take almost no time.

    Args:
        workload: The workload.
        buildings: Building of each rank.
        scale: Divides element counts, leaving at least one element, and stretches computation.
        slowdowns: Factor by which a rank computes more slowly.
    """
    planner = _UniformPlanner(len(buildings))
    assert workload.model is not None
    model = parameters(workload.model)
    tokens = workload.sequence_length * workload.local_batch_size
    scores, (blocks, *_) = scores_of(workload), layers_of(workload.model)
    products = sum(parameter.active for parameter in model)
    forward_s, backward_s = (
        scale.emulated_s(2 * (passes * products + count * len(blocks)) * tokens / workload.flops)
        for passes, count in zip((1, 2), scores, strict=True)
    )
    itemsize = np.dtype(workload.gradient_dtype).itemsize
    buckets = gradient_buckets(model, itemsize, workload.bucket_cap_bytes, workload.first_bucket_cap_bytes)

    def worked(parameter: Parameter) -> float:
        number = block_of(parameter)
        beside = 0.0 if number is None else scores.backward / 2 / blocks[number].active
        return parameter.active * (1 + beside)

    work = [sum(worked(p) for p in bucket.parameters if p.matmul) for bucket in buckets]
    planner.compute("forward", forward_s)
    for index, bucket in enumerate(buckets):
        planner.compute(f"backward {index}", backward_s * work[index] / sum(work))
        planner.collective(bucket.name, max(1, round(scale.emulated_bytes(bucket.numel))))
    ranks = [_slow_down(planner.operations, slowdowns.get(rank, 1.0)) for rank in range(len(buildings))]
    return planner.plan(buildings, ranks)


def _slow_down(operations: RankPlan, factor: float) -> RankPlan:
    if factor == 1.0:
        return operations
    return tuple(
        replace(own, duration_s=own.duration_s * factor) if isinstance(own, Computing) else own
        for own in operations
    )


def plan_collectives(workload: WorkloadSpec, buildings: Sequence[int], scale: Scale = UNSCALED) -> JobPlan:
    """Return the plan of a step of the collectives and messages that the workload names.

    Args:
        workload: The workload.
        buildings: Building of each rank.
        scale: As in `plan_data_parallel`.
    """
    planner = _UniformPlanner(len(buildings))
    if workload.compute_s:
        planner.compute("forward", scale.emulated_s(workload.compute_s))
    for spec in workload.collectives or ():
        collective = collective_of(spec.collective)
        size = _numel(workload, scale, spec.size_bytes, collective.parts(planner.ranks))
        algorithm = spec.algorithm
        if collective.uneven and algorithm == AUTO:
            algorithm = collective.automatic(spec.size_bytes, ())
        planner.collective(spec.collective, size, spec.collective, algorithm, spec.dscp)
    ranks = [planner.operations] * len(buildings)
    if workload.exchange is not None:
        planner.dscps[_EXCHANGE] = workload.exchange.dscp
        size = _numel(workload, scale, workload.exchange.size_bytes)
        peers, last = exchange_partners(buildings), planner.last
        ranks = [
            (
                *own,
                *_exchange_operations(
                    workload.exchange, peers[rank], size, scale, last, buildings[rank] == min(buildings)
                ),
            )
            if rank in peers
            else own
            for rank, own in enumerate(ranks)
        ]
    return planner.plan(buildings, ranks)


def exchange_partners(buildings: Sequence[int]) -> Mapping[int, int]:
    """Return the partner of each rank in an exchange.

    Ranks of the first building pair with those of the last, in order.
    """
    first = [rank for rank, building in enumerate(buildings) if building == min(buildings)]
    last = [rank for rank, building in enumerate(buildings) if building == max(buildings)]
    if min(buildings) == max(buildings):
        return {}
    pairs = list(zip(first, last, strict=False))
    return {**dict(pairs), **{there: here for here, there in pairs}}


def uneven_rows(ranks: int, most: int) -> list[list[int]]:
    """Return a reproducible table of the elements, up to `most`, that each rank sends to each in an all_to_all_v."""
    rngs = [random.Random(f"{source}/{ranks}/{most}") for source in range(ranks)]
    return [[rng.randint(0, most) for _ in range(ranks)] for rng in rngs]


_EXCHANGE = "exchange"


class _UniformPlanner:
    """A collector of the operations that every rank has, in order.

    Attributes:
        classes: DSCPs, each with its own group of all ranks.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.operations: RankPlan = ()
        self.last: tuple[int, ...] = ()
        self.classes: list[int] = []
        self.dscps: dict[str, int] = {}

    def compute(self, name: str, seconds: float) -> None:
        """Add a computation that later operations wait for; the first word of its name is its kind."""
        index = len(self.operations)
        made = Computing(name, COMPUTE, name.split(maxsplit=1)[0], self.last, seconds)
        self.operations = (*self.operations, made)
        self.last = (index,)

    def collective(
        self, name: str, numel: int, collective: str = "all_reduce", algorithm: str = "", dscp: int = 0
    ) -> None:
        """Add a collective that waits for the last computation, and runs concurrently with everything else."""
        if dscp not in self.classes:
            self.classes.append(dscp)
        kind = f"{collective}, DSCP {dscp}" if dscp else collective
        self.dscps[kind] = dscp
        table: tuple[tuple[int, ...], ...] = ()
        if collective_of(collective).uneven:
            most = numel // self.ranks
            table = tuple(map(tuple, uneven_rows(self.ranks, most)))
        made = GroupCollective(
            name,
            f"collective {len(self.operations)}",
            kind,
            self.last,
            self.classes.index(dscp),
            collective,
            numel,
            algorithm,
            table=table,
        )
        self.operations = (*self.operations, made)

    def plan(self, buildings: Sequence[int], ranks: Sequence[RankPlan]) -> JobPlan:
        """Return the plan, with a group of all ranks for each traffic class."""
        groups = tuple((EVERYBODY, tuple(range(self.ranks))) for _ in self.classes)
        dscps = {kind: dscp for kind, dscp in self.dscps.items() if dscp}
        return JobPlan(tuple(ranks), groups, dscps=dscps, buildings=tuple(buildings))


def _numel(workload: WorkloadSpec, scale: Scale, size_bytes: int, parts: int = 1) -> int:
    itemsize = np.dtype(workload.gradient_dtype).itemsize
    return max(1, round(scale.emulated_bytes(size_bytes) / itemsize / parts)) * parts


def _exchange_operations(
    spec: ExchangeSpec, peer: int, numel: int, scale: Scale, last: tuple[int, ...], leads: bool
) -> list[Operation]:
    """Return one rank's part of an exchange: send, compute, and send the same amount back, one message at a time.

    This is the traffic of a pipeline with two stages, between ranks of the first building and of the last one. Other
    messages start at once.
    """
    found: list[Operation] = []
    between = (
        [] if leads else [Computing(_EXCHANGE, _EXCHANGE, _EXCHANGE, (), scale.emulated_s(spec.compute_s))]
    )
    for number in range(spec.messages):
        there = Message(_EXCHANGE, _EXCHANGE, _EXCHANGE, last, peer, numel, 2 * number, leads)
        back = Message(_EXCHANGE, _EXCHANGE, _EXCHANGE, (), peer, numel, 2 * number + 1, not leads)
        found += [there, *between, back]
    return found


@dataclass(frozen=True)
class Bucket:
    """Gradients that are reduced together, in the order in which backward finishes them."""

    parameters: tuple[Parameter, ...]

    @property
    def name(self) -> str:
        """The name of its first parameter, and of its last if there are several."""
        names = [parameter.name for parameter in self.parameters]
        return names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}"

    @property
    def numel(self) -> int:
        """The number of elements."""
        return sum(parameter.numel for parameter in self.parameters)


def gradient_buckets(
    parameters: Sequence[Parameter], itemsize: int, cap_bytes: int, first_cap_bytes: int
) -> tuple[Bucket, ...]:
    """Return the buckets in the order in which backward fills them.

    Args:
        parameters: Parameters in order of registration.
        itemsize: Bytes per element.
        cap_bytes: Bytes at which a bucket is closed.
        first_cap_bytes: Bytes at which the first bucket is closed.
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

"""The time of collectives among a rank's own accelerators, from NCCL's cost model of a ring, in real figures.

The time is the sum of the launch, a hop latency for each step of the ring, and the bytes at the rate of the slowest
link (NVIDIA/nccl, src/graph/tuning.cc, `ncclTopoTuneModel`). Hops between scale-up domains take longer than hops within
one. A ring enters and leaves a domain through the NICs of all its members, each with an equal share of the array. An
all-to-all is one step, in which the traffic within the domain and the traffic that leaves it overlap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from testbed.workload.parallelism import CONTEXT, EXPERT, EXPERT_SHARD, SHARD, TENSOR, Mesh


@dataclass(frozen=True)
class Tiers:
    """The scale-up and scale-out links of an accelerator.

    Attributes:
        scale_up: Number of accelerators in a scale-up domain.
        up_rate: Bytes/s from an accelerator to others in its domain, in one direction.
        out_rate: Bytes/s from an accelerator out of its domain, in one direction.
        up_latency_s: Latency of a hop within a domain.
        out_latency_s: Latency of a hop between domains.
        launch_s: Time to launch a collective.
    """

    scale_up: int
    up_rate: float
    out_rate: float
    up_latency_s: float
    out_latency_s: float
    launch_s: float


@dataclass(frozen=True)
class GroupSpread:
    """The spread of a group of accelerators within a rank over scale-up domains.

    Attributes:
        count: Number of members of the group.
        together: Number of members that share a domain.
    """

    count: int
    together: int

    @property
    def domains(self) -> int:
        """The number of domains; the last one may have more members of the group in another rank."""
        return math.ceil(self.count / self.together)


@dataclass(frozen=True)
class IntraNodeTime:
    """The time of traffic within a rank that accompanies a collective, in seconds.

    Attributes:
        before_s: Time before the collective on the network.
        after_s: Time after the collective on the network.
        alone_s: Total time if there is no collective on the network.
    """

    before_s: float = 0.0
    after_s: float = 0.0
    alone_s: float = 0.0

    def __add__(self, other: IntraNodeTime) -> IntraNodeTime:
        """Return the total time of two collectives in sequence."""
        return IntraNodeTime(
            self.before_s + other.before_s, self.after_s + other.after_s, self.alone_s + other.alone_s
        )


NO_TIME = IntraNodeTime()


@dataclass(frozen=True)
class IntraNodeModel:
    """A model of the time of collectives within a rank.

    Attributes:
        tiers: Links of the accelerators.
        members: Spread of the group of each kind of traffic, for the kinds that occur within a rank.
        shards: Number of accelerators, over all ranks, that share the parameters.
        expert_shards: Number of accelerators that share an expert's parameters.
    """

    tiers: Tiers
    members: Mapping[str, GroupSpread]
    shards: int
    expert_shards: int

    def collective_time(self, kind: str, collective: str, size: float) -> IntraNodeTime:
        """Return the time within the rank for a collective.

        The network carries the combined data of a rank's accelerators. So an all-reduce has a reduce-scatter within the
        rank before it, and an all-gather after it.

        Args:
            kind: Kind of traffic.
            collective: Name of the collective.
            size: Bytes of the larger array of one accelerator.
        """
        own = self.members.get(kind)
        if own is None or not size:
            return NO_TIME
        if collective.startswith("all_to_all"):
            turn_s = self._exchange_s(own, size)
            return IntraNodeTime(before_s=turn_s, alone_s=turn_s)
        turn_s = self._ring_s(own, size)
        if collective == "all_gather":
            return IntraNodeTime(after_s=turn_s, alone_s=turn_s)
        if collective == "reduce_scatter":
            return IntraNodeTime(before_s=turn_s, alone_s=turn_s)
        return IntraNodeTime(turn_s, turn_s, 2 * turn_s - self.tiers.launch_s)

    def replicated_bytes(self, dense: float, experts: float) -> float:
        """Return the bytes of a layer's gradients that an accelerator keeps and that replicas reduce.

        Args:
            dense: Bytes of one accelerator's gradients, excluding experts.
            experts: Bytes of the gradients of its experts.
        """
        return dense / self.shards + experts / self.expert_shards

    def blocking_s(self, tensor: float, expert: float) -> float:
        """Return the time within the rank that blocks a layer's computation in one direction.

        This is the time for two sums of partial results, and for sending tokens to their experts and back.

        Args:
            tensor: Bytes of one accelerator's array of partial sums.
            expert: Bytes of one accelerator's tokens on their way to experts.
        """
        sums_s = self.collective_time(TENSOR, "all_reduce", tensor).alone_s
        return 2 * (sums_s + self.collective_time(EXPERT, "all_to_all", expert).alone_s)

    def _ring_s(self, own: GroupSpread, size: float) -> float:
        tiers = self.tiers
        outer = own.domains - 1
        rates = [tiers.up_rate] if own.together > 1 else []
        rates += [own.together * tiers.out_rate] if outer else []
        hops_s = (own.count - 1 - outer) * tiers.up_latency_s + outer * tiers.out_latency_s
        return tiers.launch_s + hops_s + size * (own.count - 1) / own.count / min(rates)

    def _exchange_s(self, own: GroupSpread, size: float) -> float:
        tiers = self.tiers
        inner = size * (own.together - 1) / own.count / tiers.up_rate
        outer = size * (own.count - own.together) / own.count / tiers.out_rate
        hop_s = tiers.out_latency_s if own.domains > 1 else tiers.up_latency_s
        return tiers.launch_s + hop_s + max(inner, outer)


def model_intra_node(mesh: Mesh, tiers: Tiers) -> IntraNodeModel:
    """Return the model for a mesh.

    The stride between members of a dimension is the number of accelerators in all inner dimensions. Context-parallel
    ranks shard parameters, too.
    """
    found: dict[str, GroupSpread] = {}
    stride = 1
    for name in reversed(mesh.order):
        inside = mesh.inside[name]
        if name == SHARD and (experts := math.gcd(mesh.degrees[EXPERT], inside)) > 1:
            found[EXPERT] = _spread(experts, stride, tiers, mesh.degrees[EXPERT] > experts)
        if inside > 1:
            found[name] = _spread(inside, stride, tiers, mesh.degrees[name] > inside)
        stride *= inside
    if (context := found.get(CONTEXT)) is not None:
        shard = found.get(SHARD, GroupSpread(1, 1))
        found[SHARD] = GroupSpread(context.count * shard.count, context.together * shard.together)
    shards, experts = mesh.degrees[SHARD] * mesh.degrees[CONTEXT], mesh.degrees[EXPERT]
    # accelerators with the same experts are `apart` apart
    apart, sharing = math.gcd(experts, mesh.inside[SHARD]), found.get(SHARD, GroupSpread(1, 1))
    if sharing.count > apart:
        found[EXPERT_SHARD] = GroupSpread(sharing.count // apart, max(1, sharing.together // apart))
    return IntraNodeModel(tiers, found, shards, max(1, shards // experts))


def _spread(count: int, stride: int, tiers: Tiers, beyond: bool) -> GroupSpread:
    """Return the spread of `count` accelerators that are `stride` apart, with the same number in each domain.

    `beyond` is true if the group continues in other ranks; these have the rest of a domain that is only partly in this
    rank.
    """
    most = max(1, tiers.scale_up // stride)
    return GroupSpread(count, most if beyond and count > most else math.gcd(count, most))

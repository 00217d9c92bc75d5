"""What a rank's accelerators take to send each other what no network carries: NCCL's own model of a ring. Real figures.

A collective takes its launch, a hop's latency for each step of the ring, those between domains that links of their own
join (scale-up) being longer, and its bytes at the pace of the slowest link (NVIDIA/nccl, src/graph/tuning.cc,
`ncclTopoTuneModel`). A ring through a domain goes in and out by each of its members' cards, a share of the array each.
An all-to-all is one step, of what stays in the domain and what leaves it at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from testbed.workload.parallelism import CONTEXT, EXPERT, EXPERT_SHARD, SHARD, TENSOR, Mesh


@dataclass(frozen=True)
class Tiers:
    """Accelerators of a domain, bytes/s of each to others in it and out of it, one way; seconds of hops, a launch."""

    scale_up: int
    up_rate: float
    out_rate: float
    up_latency_s: float
    out_latency_s: float
    launch_s: float


@dataclass(frozen=True)
class GroupSpread:
    """Of a group within a rank: how many, and how many of those share a domain."""

    count: int
    together: int

    @property
    def domains(self) -> int:
        """Over how many domains they are spread; the last may have more of the group in another rank."""
        return math.ceil(self.count / self.together)


@dataclass(frozen=True)
class IntraNodeTime:
    """Seconds within a rank before and after what a collective does over the network; alone_s: where it has no more."""

    before_s: float = 0.0
    after_s: float = 0.0
    alone_s: float = 0.0

    def __add__(self, other: IntraNodeTime) -> IntraNodeTime:
        """One after the other."""
        return IntraNodeTime(
            self.before_s + other.before_s, self.after_s + other.after_s, self.alone_s + other.alone_s
        )


NO_TIME = IntraNodeTime()


@dataclass(frozen=True)
class IntraNodeModel:
    """Says what collectives take within a rank.

    members: by kind of traffic; none of kinds that no rank has inside. shards: of how many accelerators, in all ranks,
    each has its part of what is sharded; expert_shards: of an expert.
    """

    tiers: Tiers
    members: Mapping[str, GroupSpread]
    shards: int
    expert_shards: int

    def around(self, kind: str, collective: str, size: float) -> IntraNodeTime:
        """size: bytes of the array of one accelerator, as large as it is where it is whole.

        Over the network goes what ranks have together: an all-reduce is a reduce-scatter before, an all-gather after.
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

    def own_bytes(self, dense: float, experts: float) -> float:
        """What an accelerator keeps of a layer's gradients, and replicas reduce. Of an array of all but experts, and of
        those that it works on."""
        return dense / self.shards + experts / self.expert_shards

    def blocking_s(self, tensor: float, expert: float) -> float:
        """Of a layer in one direction, what its computing waits for: two partial sums, tokens to experts and back.

        tensor, expert: bytes of one accelerator's arrays.
        """
        sums_s = self.around(TENSOR, "all_reduce", tensor).alone_s
        return 2 * (sums_s + self.around(EXPERT, "all_to_all", expert).alone_s)

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
    """Of a mesh: a dimension's members are as far apart as those inside of it take. A sequence's share data, too."""
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
    # each next accelerator with the same experts is as many away as share them out
    apart, sharing = math.gcd(experts, mesh.inside[SHARD]), found.get(SHARD, GroupSpread(1, 1))
    if sharing.count > apart:
        found[EXPERT_SHARD] = GroupSpread(sharing.count // apart, max(1, sharing.together // apart))
    return IntraNodeModel(tiers, found, shards, max(1, shards // experts))


def _spread(count: int, stride: int, tiers: Tiers, beyond: bool) -> GroupSpread:
    """Of neighbours that are `stride` accelerators apart; as many in each domain.

    beyond: whether the group goes on in other ranks, which have the rest of a domain that is not whole in this one.
    """
    most = max(1, tiers.scale_up // stride)
    return GroupSpread(count, most if beyond and count > most else math.gcd(count, most))

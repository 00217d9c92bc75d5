"""The computation and traffic of one rank for a layer: tensor, context, expert and data parallelism.

- tensor_parallel: two all-reduces per block and direction (Megatron-LM, arXiv:1909.08053).
- context_parallel: keys and values travel around a ring, one hop for each other rank; in the backward pass, together
  with their gradients (Ring Attention, arXiv:2310.01889).
- expert_parallel: tokens travel to their experts and back, with an all-to-all each time.
- data_parallel_shard: a layer's parameters are gathered a few layers ahead, and gradients are reduce-scattered after
  the last microbatch (FSDP, arXiv:2304.11277). With a pipeline, parameters stay gathered for the whole step, as in
  torchtitan.
- data_parallel_replicate: gradients, or this rank's shard of them, are all-reduced in buckets; or, once in several
  steps, the change of the weights is exchanged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random

from testbed.comm.collectives import AUTO, collective_of
from testbed.workload.intra_node import NO_TIME, IntraNodeTime
from testbed.workload.layer_compute import ComputePlanner, compute_s
from testbed.workload.local_sgd import WHOLE_BITS
from testbed.workload.parallelism import CONTEXT, EXPERT, EXPERT_SHARD, REPLICATE, SHARD, TENSOR
from testbed.workload.plan import GroupCollective, IntraRankTransfer, Message, replace_fields
from testbed.workload.plan_options import Group, Options
from testbed.workload.schedules import Action, Kind
from testbed.workload.sequence_parallel import BlockPlanner
from testbed.workload.stages import Part

FSDP = "fsdp"
_ALGORITHMS = {"all_to_all": "direct", "all_to_all_v": "late_counts"}


class LayerPlanner(ComputePlanner):
    """A builder of one rank's plan, layer by layer.

    Attributes:
        order: Actions of the rank.
        pipelined: Whether the rank has only a part of the layers.
    """

    def __init__(
        self,
        rank: int,
        groups: Mapping[str, Group],
        order: Sequence[Action],
        options: Options,
        *,
        pipelined: bool,
    ) -> None:
        super().__init__(rank, options.scale, options.slowdowns.get(rank, 1.0))
        self.groups, self.order, self.options = groups, order, options
        self.pipelined = pipelined
        self.within = options.within[rank] if options.within else None
        self._gathering: dict[tuple[int, int], list[int]] = {}  # by stage and layer
        self.sharded = FSDP in groups or self.has_inside(SHARD)
        self._gathers: dict[int, list[tuple[str, float, IntraNodeTime]]] = {}  # by id of the layer's part
        # by group, collective and size: one operation; others differ from it only in name and dependencies
        self._collectives: dict[tuple[str, str, float], GroupCollective] = {}
        self.gathered: set[int] = set()  # stages whose parameters are gathered for the rest of the step
        self._compute_only: dict[int, bool] = {}  # by stage, whether only gradients are sent
        self._bucket, self._inner_bucket, self._bucket_after = 0.0, 0.0, 0
        self._replicated_bytes = 0.0  # bytes of gradients of parameters that replicas share
        completing = (Kind.FULL_BACKWARD, Kind.BACKWARD_WEIGHT)
        self._last = {
            action.stage: action for action in order if action.kind in completing
        }  # of the last microbatch
        self._tensor_blocks: BlockPlanner | None = None
        if options.blocks is not None and TENSOR in groups:
            self._tensor_blocks = BlockPlanner(self, options.blocks, *groups[TENSOR])

    def layer(self, action: Action, number: int, part: Part) -> None:
        """Add all work of an action on one of its layers."""
        self._gather(action, number, part)
        name = f"{action} layer {number}"
        seconds = compute_s(part, action.kind)
        if action.kind is Kind.BACKWARD_WEIGHT or not (part.tensor or part.context or part.expert):
            self.compute(name, action.kind, seconds)
        elif part.tensor and self._tensor_blocks is not None:
            size = self.numel(part.tensor / self._tensor_blocks.size)
            for half in ("attention", "feed-forward"):
                self._tensor_blocks.plan(f"{name} {half}", action.kind, seconds / 2, part.rows, size)
        else:
            # attention, then the rest of the layer
            scores_s = part.scores_s if action.kind is Kind.FORWARD else part.scores_input_s
            after_s = (seconds - scores_s) * (part.routed or 0.5)
            self._add_attention(name, action.kind, seconds - after_s, part)
            self._sum_partials(name, "attention", part.tensor)
            after_s *= self._route(name, action, number, part)
            self.compute(name, action.kind, after_s)
            self._route(name, action, number, part, returns=True)
            self._sum_partials(name, "feed-forward", part.tensor)
        self.inner_traffic(name, action, [part])
        if self.completes_weights(action):
            self.reduce(action, number, part)

    def is_compute_only(self, action: Action, parts: Sequence[Part]) -> bool:
        """Return whether an action is only computation: it has its parameters, and keeps its gradients for now."""
        if self.completes_weights(action):
            return False
        if action.kind is Kind.BACKWARD_WEIGHT:
            return True
        if self.sharded and action.stage not in self.gathered:
            return False
        if action.stage not in self._compute_only:
            talks = any(part.tensor or part.context or part.expert for part in parts)
            self._compute_only[action.stage] = not (talks or self._inner_s(parts))
        return self._compute_only[action.stage]

    def inner_traffic(self, name: str, action: Action, parts: Sequence[Part]) -> None:
        """Add traffic between the rank's own accelerators that blocks the next computation, for all these layers."""
        if action.kind is Kind.BACKWARD_WEIGHT or not (seconds := self._inner_s(parts)):
            return
        after = tuple({*self.gate, self.computed[-1]})
        index = self._add_inside(
            name, TENSOR if self.has_inside(TENSOR) else EXPERT, after, seconds / action.parts
        )
        if index is not None:
            self.gate = [index]

    def _inner_s(self, parts: Sequence[Part]) -> float:
        if (within := self.within) is None:
            return 0.0
        return sum(within.blocking_s(part.inner.tensor, part.inner.expert) for part in parts)

    def has_inside(self, kind: str) -> bool:
        """Return whether ranks have traffic of this kind between their own accelerators that takes time."""
        return self.within is not None and kind in self.within.members

    def _route(self, name: str, action: Action, number: int, part: Part, *, returns: bool = False) -> float:
        """Send tokens to their experts, or back.

        Returns:
            The load of this rank's experts, relative to an even share.
        """
        skew = self.options.routing_skew
        if EXPERT not in self.groups or not (skew or part.expert):
            return 1.0
        name = f"{name} {'combine' if returns else 'dispatch'}"
        if not skew:
            self._collective(name, EXPERT, "all_to_all", part.expert)
            return 1.0
        group = self.groups[EXPERT]
        rng = Random(f"{self.options.seed}/{group.number}/{action.stage}/{number}/{action.microbatch}")
        weights = routing_weights(rng, len(group.members), skew)
        shares = [weight / sum(weights) for weight in weights]
        counts = tuple(self.numel(part.expert * share) for share in shares)
        self._collective(name, EXPERT, "all_to_all_v", part.expert, counts, returns)
        return len(shares) * shares[group.members.index(self.rank)]

    def _sum_partials(self, name: str, half: str, size: float) -> None:
        """Sum the partial results of all tensor-parallel ranks."""
        if TENSOR not in self.groups or not size:
            return
        collectives = ("reduce_scatter", "all_gather") if self.options.sequence_parallel else ("all_reduce",)
        for collective in collectives:
            self._collective(f"{name} {half}", TENSOR, collective, size)

    def _add_attention(self, name: str, kind: Kind, seconds: float, part: Part) -> None:
        """Compute on this rank's keys and values first, then on each other rank's as they arrive."""
        if not part.context:
            self.compute(name, kind, seconds)
            return
        members = self.groups[CONTEXT].members
        own, size = members.index(self.rank), len(members)
        to, source = members[(own + 1) % size], members[own - 1]
        numel = self.numel(part.context * (1 if kind is Kind.FORWARD else 2))
        begins = tuple({*self.gate, *self.computed[-1:]})
        arrived: tuple[int, ...] = begins
        for step in range(size - 1):
            after = begins if not step else arrived
            self.add(Message(f"{name} keys to {to}", "context send", CONTEXT, after, to, numel, step, True))
            got = Message(f"{name} keys of {source}", "context receive", CONTEXT, after, source, numel, step)
            arrived = (self.add(got),)
            self.compute(f"{name} {step}", kind, seconds / size)
            self.gate += arrived
        self.compute(f"{name} {size - 1}", kind, seconds / size)

    def _gather(self, action: Action, number: int, part: Part) -> None:
        """Make the next computation wait for a layer's parameters.

        Without a pipeline, each microbatch gathers them again.
        """
        key = (action.stage, number)
        if key not in self._gathering:
            self._begin_gather(action, number, part, self.options.prefetch)
        self.gate += self._gathering.pop(key, ())
        if self.pipelined:
            self._gathering[key] = []  # stays gathered for the whole step

    def gather_ahead(self, action: Action, next_layers: Sequence[tuple[int, Part]]) -> None:
        """Start to gather the next layers' parameters, so that they are sent before the gradients of this layer."""
        for ahead, (number, part) in enumerate(next_layers[: self.options.prefetch], start=1):
            if (action.stage, number) not in self._gathering:
                self._begin_gather(action, number, part, self.options.prefetch - ahead)

    def _begin_gather(self, action: Action, number: int, part: Part, prefetch: int) -> None:
        """Start a gather after all computations except the last `prefetch`."""
        if not self.sharded or action.kind is Kind.BACKWARD_WEIGHT:
            return
        after = tuple(self.computed[-1 - prefetch : -prefetch or None])
        name = f"{action} layer {number} parameters"
        if id(part) not in self._gathers:
            inner = part.inner.gathered, part.inner.expert_gathered
            self._gathers[id(part)] = [
                (group, size, self._sharded_time(group, "all_gather", *inner))
                for group, size, _ in self._sharding_groups(part)
            ]
        gathers = [
            self._start(name, group, "all_gather", size, after, inner=inner)
            for group, size, inner in self._gathers[id(part)]
        ]
        self._gathering[action.stage, number] = [index for index in gathers if index is not None]

    def reduce(self, action: Action, number: int, part: Part) -> None:
        """Reduce a layer's gradients, which are complete."""
        computed = self.computed[-1]
        local_bytes, last = 0.0, computed
        for group, _, size in self._sharding_groups(part):
            name = f"{action} layer {number} gradients"
            inner = self._sharded_time(group, "reduce_scatter", part.inner.reduced, part.inner.expert_reduced)
            index = self._start(name, group, "reduce_scatter", size, (computed,), inner=inner)
            local_bytes += size / (len(self.groups[group].members) if group in self.groups else 1)
            last = last if index is None else index
        self._replicated_bytes += local_bytes
        replicated = REPLICATE in self.groups or self.has_inside(REPLICATE)
        if replicated and self.options.outer is None:
            self._bucket += local_bytes
            if self.within is not None:
                self._inner_bucket += self.within.replicated_bytes(
                    part.inner.reduced, part.inner.expert_reduced
                )
            self._bucket_after = last
            if self._bucket >= self.options.bucket_cap:
                self.close_bucket()

    @property
    def _experts_apart(self) -> bool:
        """Whether experts' parameters and gradients have their own collectives."""
        return EXPERT in self.groups or EXPERT_SHARD in self.groups

    def _sharding_groups(self, part: Part) -> list[tuple[str, float, float]]:
        """Return the groups that shard a layer's parameters, with bytes of parameters and of gradients."""
        if not self._experts_apart:
            gathered, reduced = part.gathered + part.expert_gathered, part.reduced + part.expert_reduced
            return [(FSDP, gathered, reduced)]
        experts = (EXPERT_SHARD, part.expert_gathered, part.expert_reduced)
        return [(FSDP, part.gathered, part.reduced), experts]

    def close_bucket(self) -> None:
        """Start the replicas' all-reduce of the pending gradients."""
        if self._bucket:
            inner = self._inner_time(REPLICATE, "all_reduce", self._inner_bucket)
            after = (self._bucket_after,)
            self._start("gradients", REPLICATE, "all_reduce", self._bucket, after, inner=inner)
            self._bucket = self._inner_bucket = 0.0

    def exchange(self) -> GroupCollective | None:
        """Return the replicas' exchange of one part of the weight changes, after the step is planned.

        The result is None if replicas reduce gradients in every step.
        """
        outer, group = self.options.outer, self.groups.get(REPLICATE)
        if outer is None or group is None:
            return None
        whole_bytes = self._replicated_bytes * WHOLE_BITS / 8 / self.options.itemsize
        collective, size = outer.collective(whole_bytes, len(group.members))
        parts = collective_of(collective).parts(len(group.members))
        numel = self.numel(size / parts) * parts
        algorithm = self.options.algorithms.get(REPLICATE, "" if outer.is_summable else AUTO)
        return GroupCollective(
            "outer gradients", REPLICATE, REPLICATE, (), group.number, collective, numel, algorithm
        )

    def completes_weights(self, action: Action) -> bool:
        """Return whether this action completes the gradients of its stage's weights."""
        return self._last.get(action.stage) is action

    def _collective(
        self,
        name: str,
        group: str,
        collective: str,
        size: float,
        counts: tuple[int, ...] = (),
        returns: bool = False,
    ) -> None:
        """Start a collective on the last computation's result; it blocks the next computation."""
        after = tuple({*self.gate, *self.computed[-1:]})
        index = self._start(name, group, collective, size, after, counts, returns)
        if index is not None:
            self.gate = [index]

    def _start(
        self,
        name: str,
        group: str,
        collective: str,
        size: float,
        after: tuple[int, ...],
        counts: tuple[int, ...] = (),
        returns: bool = False,
        inner: IntraNodeTime = NO_TIME,
    ) -> int | None:
        """Add a collective and return the index of its last operation.

        The result is None if the rank is in no such group, or there is nothing to send. `inner` is the accompanying
        traffic between the accelerators of a rank.
        """
        kind = SHARD if group in (FSDP, EXPERT_SHARD) else group
        if group not in self.groups or not size:
            return self._add_inside(name, kind, after, inner.alone_s)
        before = None if inner is NO_TIME else self._add_inside(name, kind, after, inner.before_s)
        if before is not None:
            after = (before,)
        key = group, collective, size
        if (template := self._collectives.get(key)) is None or counts:
            own = self.groups[group]
            parts = collective_of(collective).parts(len(own.members))
            numel = (max(counts) if counts else self.numel(size / parts)) * parts
            usual = _ALGORITHMS.get(collective, "" if group == REPLICATE else "ring")
            algorithm = self.options.algorithms.get(kind, usual)
            template = self._collectives[key] = GroupCollective(
                name, group, kind, after, own.number, collective, numel, algorithm, counts, returns
            )
        index = self.add(replace_fields(template, name=name, after=after))
        within = None if inner is NO_TIME else self._add_inside(name, kind, (index,), inner.after_s)
        return index if within is None else within

    def _inner_time(self, kind: str, collective: str, inner: float) -> IntraNodeTime:
        return NO_TIME if self.within is None else self.within.collective_time(kind, collective, inner)

    def _sharded_time(self, group: str, collective: str, dense: float, experts: float) -> IntraNodeTime:
        """Return the time of the intra-rank traffic for a layer's arrays, given the bytes per accelerator.

        If no ranks share its experts, the experts are treated like all other parameters.
        """
        of_experts = self._inner_time(EXPERT_SHARD, collective, experts)
        if group == EXPERT_SHARD:
            return of_experts
        found = self._inner_time(SHARD, collective, dense)
        return found if self._experts_apart else found + of_experts

    def _add_inside(self, name: str, kind: str, after: tuple[int, ...], seconds: float) -> int | None:
        """Add traffic within the rank, on a stream of its kind; None for none."""
        if not seconds:
            return None
        duration_s = self.options.scale.emulated_s(seconds)
        return self.add(IntraRankTransfer(f"{name} within", f"within {kind}", kind, after, duration_s))

    def numel(self, size_bytes: float) -> int:
        """Return the number of elements that represent this many real bytes."""
        return max(1, round(self.options.scale.emulated_bytes(size_bytes) / self.options.itemsize))


def routing_weights(rng: Random, count: int, skew: float) -> list[float]:
    """Return the relative token counts of `count` receivers.

    They are log-normal, with a standard deviation of `skew` times the mean.
    """
    width = math.sqrt(math.log(1 + skew**2))
    return [rng.lognormvariate(0.0, width) for _ in range(count)]

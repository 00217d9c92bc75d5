"""Every rank's plan from a pipeline schedule: the rank's actions in order, and messages between stages.

Activations travel forward, and their gradients back. `layers` plans the operations within an action, and `send_tokens`
plans how replicas take turns to send to another building.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import permutations

from testbed.caches import IdentityCache, SizedCache
from testbed.workload.layer_compute import compute_s, with_memory
from testbed.workload.layers import FSDP, LayerPlanner
from testbed.workload.local_sgd import repeat_steps
from testbed.workload.parallelism import (
    CONTEXT,
    EXPERT,
    EXPERT_SHARD,
    PIPELINE,
    REPLICATE,
    SHARD,
    TENSOR,
    Mesh,
)
from testbed.workload.plan import (
    Computing,
    GroupCollective,
    JobPlan,
    Message,
    Pattern,
    RankPlan,
    Relocation,
    SymmetricPlans,
)
from testbed.workload.plan_options import (
    Group,
    Options,
    SendToken,
    symmetry_key,
)
from testbed.workload.schedules import Action, Kind, Schedule
from testbed.workload.send_tokens import find_turns, with_tokens
from testbed.workload.stages import Part, Stage

# a search often requests the same plan again, since many values that it varies do not change the plan
MAX_CACHED_PLANS, MAX_CACHED_OPERATIONS = 8, 500_000
_plans: SizedCache[JobPlan] = SizedCache(
    MAX_CACHED_OPERATIONS, lambda plan: max(plan.operations, MAX_CACHED_OPERATIONS / MAX_CACHED_PLANS)
)
_patterns: SizedCache[Pattern] = SizedCache(MAX_CACHED_OPERATIONS, len)


def plan_job(
    mesh: Mesh,
    schedule: Schedule,
    stages: Sequence[Stage],
    options: Options,
    replica_schedules: Sequence[Schedule] = (),
) -> JobPlan:
    """Return the plan of every rank of the mesh; recent plans are cached.

    Args:
        mesh: The mesh of ranks.
        schedule: Every pipeline rank's order of actions.
        stages: The pipeline's stages.
        options: Options of the plan.
        replica_schedules: Each replica's schedule, if replicas differ.
    """
    groups = tuple(groups_of(mesh, apart=bool(options.within)))
    pipelines = {rank: pipeline for pipeline in mesh.groups(PIPELINE) for rank in pipeline}
    replicas = {rank: members for members in mesh.groups(REPLICATE, SHARD) for rank in members}
    replica_pipelines = [
        tuple(pipelines.get(member, (member,)) for member in replicas.get(rank, (rank,)))
        for rank in range(mesh.size)
    ]
    kinds = {SHARD if name in (FSDP, EXPERT_SHARD) else name for name, _ in groups}
    options = replace(
        options,
        algorithms={kind: own for kind, own in options.algorithms.items() if kind in kinds},
        send_tokens=_contended_tokens(options.send_tokens, set(replica_pipelines)),
    )
    places = [
        (coordinate[PIPELINE], coordinate[REPLICATE] if replica_schedules else 0)
        for coordinate in mesh.coordinates
    ]
    schedules = [own.content_hash for own in replica_schedules or [schedule]]
    # hashed once here, since a tuple would hash its parts again at each look-up
    common = hash((_hash_stages(stages), options.key))
    tokens = tuple(options.send_tokens.items())
    key = hash((groups, tuple(replica_pipelines), tuple(places), tuple(schedules), common, tokens))
    return _plans.of(
        key,
        lambda: _make_plan(
            groups, replica_pipelines, places, replica_schedules or [schedule], stages, options, common
        ),
    )


def _hash_stages(stages: Sequence[Stage]) -> int:
    """Return a cached hash of the stages, which have thousands of numbers."""
    own = tuple(stages)
    return _stage_hashes.of(own, partial(hash, own))


_stage_hashes: IdentityCache[int] = IdentityCache(256)


Pipeline = tuple[int, ...]  # the ranks of a pipeline


def _make_plan(
    groups: tuple[tuple[str, tuple[int, ...]], ...],
    pipelines: Sequence[tuple[Pipeline, ...]],
    places: Sequence[tuple[int, int]],
    schedules: Sequence[Schedule],
    stages: Sequence[Stage],
    options: Options,
    common: int,
) -> JobPlan:
    """Make the plan that `plan_job` caches.

    Args:
        groups: Name and members of each group.
        pipelines: By rank, the pipelines of its replicas.
        places: By rank, its position in the pipeline, and the index of its schedule.
        schedules: Distinct schedules.
        stages: The pipeline's stages.
        options: Options of the plan.
        common: Key for stages and options, without send tokens.
    """
    rank_groups: list[dict[str, Group]] = [{} for _ in places]
    for number, (name, members) in enumerate(groups):
        for rank in members:
            rank_groups[rank][name] = Group(number, members)
    patterns: list[Pattern] = []
    relocations: list[Relocation | None] = []
    exchanges: list[GroupCollective | None] = []
    for rank, (position, schedule_index) in enumerate(places):
        pipeline = next(pipeline for pipeline in pipelines[rank] if rank in pipeline)
        own = schedules[schedule_index]
        planner = partial(_RankPlanner, rank, position, schedule=own, stages=stages, options=options)
        symmetry = symmetry_key(rank, rank_groups[rank], options)
        relocation: Relocation | None = None
        exchange: GroupCollective | None = None
        if symmetry is None or options.outer:
            rank_planner = planner(pipeline, rank_groups[rank])
            pattern = rank_planner.pattern()
            exchange = rank_planner.exchange()
        else:
            numbers = tuple(group.number for group in rank_groups[rank].values())
            relocation = Relocation(numbers, tuple(pipeline))
            own_groups = {
                name: Group(place, group.members)
                for place, (name, group) in enumerate(rank_groups[rank].items())
            }
            alike = partial(planner, range(len(pipeline)), own_groups)
            key = common, own.content_hash, position, symmetry
            pattern = _patterns.of(key, partial(_make_pattern, alike))
        if turns := tuple(find_turns(rank, pipelines[rank], options.send_tokens, options.itemsize)):
            pattern, relocation = with_tokens(pattern, relocation, turns), None
        patterns.append(pattern)
        relocations.append(relocation)
        exchanges.append(exchange)
    ranks: Sequence[RankPlan] = SymmetricPlans(patterns, relocations)
    if options.training_steps > 1 or options.outer:
        ranks = tuple(repeat_steps(ranks, options.training_steps, options.outer, exchanges))
    return JobPlan(ranks, groups, not options.early_receives, options.jitter, options.seed, options.dscps)


def _make_pattern(make_planner: Callable[[], _RankPlanner]) -> Pattern:
    return make_planner().pattern()


def _contended_tokens(
    tokens: Mapping[tuple[int, int], SendToken], replicas: set[tuple[Pipeline, ...]]
) -> dict[tuple[int, int], SendToken]:
    """Return the tokens that several replicas would use; a single sender need not wait for its turn."""
    found: dict[tuple[int, int], SendToken] = {}
    for pipelines in replicas if tokens else ():
        for own, there in permutations(range(len(pipelines[0])), 2):
            pairs = [(pipeline[own], pipeline[there]) for pipeline in pipelines]
            directions = Counter(tokens[pair].direction for pair in pairs if pair in tokens)
            found |= {
                pair: tokens[pair]
                for pair in pairs
                if pair in tokens and directions[tokens[pair].direction] > 1
            }
    return found


def groups_of(mesh: Mesh, apart: bool = False) -> list[tuple[str, tuple[int, ...]]]:
    """Return the groups of ranks that run collectives together, by purpose.

    Args:
        mesh: The mesh of ranks.
        apart: Whether parameters of experts that are spread within ranks get their own groups.
    """
    found = [(name, members) for name in (REPLICATE, TENSOR, CONTEXT) for members in mesh.groups(name)]
    found += [(FSDP, members) for members in mesh.groups(SHARD, CONTEXT)]
    ranks = mesh.degrees[EXPERT] // mesh.inside[SHARD]
    if ranks > 1:
        for members in mesh.groups(SHARD):
            found += [(EXPERT, members[first : first + ranks]) for first in range(0, len(members), ranks)]
        for members in mesh.groups(SHARD, CONTEXT):
            same_experts = [members[first::ranks] for first in range(ranks)]
            found += [(EXPERT_SHARD, sharing) for sharing in same_experts if len(sharing) > 1]
    elif apart and mesh.degrees[EXPERT] > 1:
        found += [(EXPERT_SHARD, members) for members in mesh.groups(SHARD, CONTEXT)]
    return found


class _RankPlanner(LayerPlanner):
    """A planner of one rank, action by action.

    Attributes:
        position: Position of the rank in the pipeline.
        pipeline: Ranks of the pipeline.
    """

    def __init__(
        self,
        rank: int,
        position: int,
        pipeline: Sequence[int],
        groups: dict[str, Group],
        schedule: Schedule,
        stages: Sequence[Stage],
        options: Options,
    ) -> None:
        super().__init__(rank, groups, schedule.orders[position], options, pipelined=len(pipeline) > 1)
        self.position, self.pipeline, self.schedule, self.stages = position, pipeline, schedule, stages
        self.received: dict[tuple[int, Kind, int], int] = {}

    def pattern(self) -> Pattern:
        if self.options.early_receives:
            self._post_receives()
        for action in self.order:
            self._add_action(action)
        self.close_bucket()
        return Pattern(tuple(self.plan))

    # ---- the pipeline

    def _post_receives(self) -> None:
        """Post all receives in the order in which their senders send."""
        for action, target in self.schedule.arrivals[self.position]:
            self._receive(target, action, ())

    def _receive(self, stage: int, source: Action, after: tuple[int, ...]) -> None:
        kind = Kind.FORWARD if source.kind is Kind.FORWARD else Kind.BACKWARD_INPUT
        peer = self.pipeline[self.schedule.owners[source.stage]]
        self.received[stage, kind, source.microbatch] = self._message(stage, source, peer, after, sends=False)

    def _message(self, stage: int, source: Action, peer: int, after: tuple[int, ...], *, sends: bool) -> int:
        """Add one end of the message that carries the result of `source` to a stage."""
        forward, microbatch = source.kind is Kind.FORWARD, source.microbatch
        what = f"{'SEND' if sends else 'RECV'}_{'F' if forward else 'B'}"
        shown, size = source.stage if sends else stage, self.stages[min(stage, source.stage)].activation
        message = Message(
            f"{shown}{what}{microbatch}",
            f"{what} {peer}",
            PIPELINE,
            after,
            peer,
            self.numel(size),
            tag=2 * (stage * self.schedule.microbatches + microbatch) + (not forward),
            sends=sends,
        )
        return self.add(message)

    def _add_action(self, action: Action) -> None:
        stage = self.stages[action.stage]
        source = _source_stage(action, len(self.stages))
        if source is not None and self.schedule.owners[source] != self.position:
            kind = Kind.FORWARD if action.kind is Kind.FORWARD else Kind.BACKWARD_INPUT
            if not self.options.early_receives:
                sender = Action(source, kind, action.microbatch)
                self._receive(action.stage, sender, tuple(self.computed[-1:]))
            self.gate.append(self.received[action.stage, kind, action.microbatch])
        first = len(self.plan)
        if self._is_whole(action):
            seconds = sum(compute_s(part, action.kind) for part in stage.parts) / action.parts
            self.compute(str(action), action.kind, seconds)
            self.inner_traffic(str(action), action, stage.parts)
            if self.completes_weights(action):
                for number, part in reversed(list(enumerate(stage.parts))):
                    self.reduce(action, number, part)
            self._record_memory(action, first, stage.kept)
        elif self.is_compute_only(action, stage.parts):
            self.compute_layers(action, stage.parts, stage.kept)
        else:
            self._add_layers(action, stage.parts)
            self._record_memory(action, first, stage.kept)
        target = self.schedule.passed_on[self.position].get(action)
        if target is not None:
            peer = self.pipeline[self.schedule.owners[target]]
            self._message(target, action, peer, tuple({*self.gate, self.computed[-1]}), sends=True)

    def _add_layers(self, action: Action, parts: Sequence[Part]) -> None:
        layers, forward = list(enumerate(parts)), action.kind is Kind.FORWARD
        if not forward:
            layers.reverse()
        for place, (number, part) in enumerate(layers):
            if self.options.prefetch_first and not forward:
                self.gather_ahead(action, layers[place + 1 :])
            self.layer(action, number, part)
        if self.pipelined and action.kind is not Kind.BACKWARD_WEIGHT:
            self.gathered.add(action.stage)

    # ---- actions

    def _record_memory(self, action: Action, first: int, kept: float) -> None:
        """Add allocated and freed memory to the action's computations, which start at index `first` of the plan."""
        indices = self.computed[bisect_left(self.computed, first) :]
        ends = indices[:: len(indices) - 1 or 1]
        for index, operation in zip(
            ends, with_memory([self._computed(one) for one in ends], action, kept), strict=True
        ):
            self.plan[index] = operation

    def _computed(self, index: int) -> Computing:
        operation = self.plan[index]
        assert isinstance(operation, Computing)
        return operation

    def _is_whole(self, action: Action) -> bool:
        """Return whether there are no operations between the layers of an action."""
        between = action.kind is not Kind.BACKWARD_WEIGHT and self._has_traffic
        return action.parts > 1 or not (
            between or (self._reduces_gradients and self.completes_weights(action))
        )

    @cached_property
    def _has_traffic(self) -> bool:
        """Whether individual layers have traffic."""
        return not {TENSOR, CONTEXT, EXPERT, FSDP}.isdisjoint(self.groups) or self.has_inside(SHARD)

    @cached_property
    def _reduces_gradients(self) -> bool:
        """Whether gradients are reduced."""
        return bool(self.groups) or self.has_inside(REPLICATE)


def _source_stage(action: Action, stages: int) -> int | None:
    """Return the other stage whose result an action requires."""
    if action.kind is Kind.FORWARD:
        return action.stage - 1 if action.stage else None
    if action.kind.gives_gradient:
        return action.stage + 1 if action.stage + 1 < stages else None
    return None

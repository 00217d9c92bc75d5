"""From a schedule to every rank's plan: computing layer by layer, and what each dimension of parallelism sends.

pipeline_parallel: activations and their gradients between stages. tensor_parallel: two all-reduces per block and
direction (Megatron-LM, arXiv:1909.08053). context_parallel: keys and values round a ring, as often as there are other
ranks; backward with their gradients (Ring Attention, arXiv:2310.01889). expert_parallel: tokens to their experts and
back, each an all-to-all. data_parallel_shard: parameters of a layer gathered some layers ahead, gradients
reduce-scattered after the last microbatch (FSDP, arXiv:2304.11277); with a pipeline they stay gathered for the whole
step, as in torchtitan. data_parallel_replicate: gradients, or this rank's shard of them, all-reduced in buckets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from testbed.scale import UNSCALED, Scale
from testbed.workload.parallelism import CONTEXT, EXPERT, PIPELINE, REPLICATE, SHARD, TENSOR, Mesh
from testbed.workload.plan import COMPUTE, Computing, GroupCollective, JobPlan, Message, Operation
from testbed.workload.schedules import Action, Kind, Schedule
from testbed.workload.stages import Part, Stage

EXPERT_SHARD = "expert_shard"
FSDP = "fsdp"


class Group(NamedTuple):
    """Ranks that do collectives together: their number in the plan, and who they are."""

    number: int
    members: tuple[int, ...]


@dataclass(frozen=True)
class Options:
    """itemsize: bytes of an element that travels. bucket_cap: bytes of gradients that are all-reduced together.

    prefetch: how many layers ahead parameters are gathered. algorithm: of replicas' all-reduces. early_receives: if
    receives are posted as early as their senders' order has them, and messages leave at once; else a receive is posted
    when its action is next, and its message leaves then. sequence_parallel: tensor ranks share out the sequence.
    slowdowns: factor of a rank's computing. jitter, seed: of computing, see JobPlan.
    """

    itemsize: int
    bucket_cap: float
    prefetch: int = 1
    algorithm: str = "ring"
    early_receives: bool = True
    sequence_parallel: bool = False
    slowdowns: Mapping[int, float] = field(default_factory=dict)
    jitter: float = 0.0
    seed: int = 0
    scale: Scale = UNSCALED


def plan_job(mesh: Mesh, schedule: Schedule, stages: Sequence[Stage], options: Options) -> JobPlan:
    """The plan of every rank of the mesh."""
    groups: list[tuple[str, tuple[int, ...]]] = []
    of_rank: list[dict[str, Group]] = [{} for _ in range(mesh.size)]
    for name, members in _groups(mesh):
        for rank in members:
            of_rank[rank][name] = Group(len(groups), members)
        groups.append((name, members))
    plans = []
    for rank, place in enumerate(mesh.places()):
        line = [mesh.rank({**place, PIPELINE: number}) for number in range(mesh.outside[PIPELINE])]
        plans.append(_RankPlanner(rank, place, line, of_rank[rank], schedule, stages, options).run())
    return JobPlan(tuple(plans), tuple(groups), not options.early_receives, options.jitter, options.seed)


def _groups(mesh: Mesh) -> list[tuple[str, tuple[int, ...]]]:
    found = [(name, members) for name in (REPLICATE, TENSOR, CONTEXT) for members in mesh.groups(name)]
    found += [(FSDP, members) for members in mesh.groups(SHARD, CONTEXT)]
    ranks = mesh.degrees[EXPERT] // mesh.inside[SHARD]
    if ranks > 1:
        for members in mesh.groups(SHARD):
            found += [(EXPERT, members[first : first + ranks]) for first in range(0, len(members), ranks)]
        for members in mesh.groups(SHARD, CONTEXT):
            same = [members[first::ranks] for first in range(ranks)]
            found += [(EXPERT_SHARD, others) for others in same if len(others) > 1]
    return found


class _RankPlanner:
    """One rank's plan on its way."""

    def __init__(
        self,
        rank: int,
        place: dict[str, int],
        line: Sequence[int],
        groups: dict[str, Group],
        schedule: Schedule,
        stages: Sequence[Stage],
        options: Options,
    ) -> None:
        self.rank, self.groups, self.options = rank, groups, options
        self.line, self.schedule, self.stages = line, schedule, stages
        self.order = schedule.orders[place[PIPELINE]]
        self.own = place[PIPELINE]
        self.plan: list[Operation] = []
        self.gate: list[int] = []  # what the next computing waits for
        self.received: dict[tuple[int, Kind, int], int] = {}
        self.computed: list[int] = []  # computing so far, in its order
        self.gathered: dict[tuple[int, int], int] = {}
        self.bucket, self.bucket_after = 0.0, 0
        self.last = self._last_microbatches()

    def run(self) -> tuple[Operation, ...]:
        if self.options.early_receives:
            self._post_all()
        for action in self.order:
            self._act(action)
        self._close_bucket()
        return tuple(self.plan)

    # ---- the pipeline

    def _post_all(self) -> None:
        """Receives in the order in which their senders send."""
        for peer, order in enumerate(self.schedule.orders):
            if peer != self.own:
                for action in order:
                    target = _next_stage(action, len(self.stages))
                    if target is not None and self.schedule.owners[target] == self.own:
                        self._receive(target, action, ())

    def _receive(self, stage: int, source: Action, after: tuple[int, ...]) -> None:
        kind = Kind.FORWARD if source.kind is Kind.FORWARD else Kind.BACKWARD_INPUT
        peer = self.line[self.schedule.owners[source.stage]]
        self.received[stage, kind, source.microbatch] = self._message(stage, source, peer, after, sends=False)

    def _message(self, stage: int, source: Action, peer: int, after: tuple[int, ...], *, sends: bool) -> int:
        """One end of what `source` gives to a stage."""
        forward = source.kind is Kind.FORWARD
        what = f"{'SEND' if sends else 'RECV'}_{'F' if forward else 'B'}"
        shown = source.stage if sends else stage
        size = self.stages[min(stage, source.stage)].activation
        return self._add(
            Message(
                f"{shown}{what}{source.microbatch}",
                f"{what} {peer}",
                PIPELINE,
                after,
                peer=peer,
                numel=self._numel(size),
                tag=(stage * self.schedule.microbatches + source.microbatch) * 2 + (not forward),
                sends=sends,
            )
        )

    def _act(self, action: Action) -> None:
        stage = self.stages[action.stage]
        source = _source_stage(action, len(self.stages))
        if source is not None and self.schedule.owners[source] != self.own:
            kind = Kind.FORWARD if action.kind is Kind.FORWARD else Kind.BACKWARD_INPUT
            if not self.options.early_receives:
                sender = Action(source, kind, action.microbatch)
                self._receive(action.stage, sender, tuple(self.computed[-1:]))
            self.gate.append(self.received[action.stage, kind, action.microbatch])
        first = len(self.plan)
        if self._whole(action):
            seconds = sum(_seconds(part, action.kind) for part in stage.parts) / action.parts
            self._compute(str(action), action.kind, seconds)
            if self._gives_weights(action):
                for number, part in reversed(list(enumerate(stage.parts))):
                    self._reduce(action, number, part)
        elif action.kind is Kind.FORWARD:
            for number, part in enumerate(stage.parts):
                self._layer(action, number, part)
        else:
            for number in reversed(range(len(stage.parts))):
                self._layer(action, number, stage.parts[number])
        self._account(action, first, stage.kept)
        target = _next_stage(action, len(self.stages))
        if target is not None and self.schedule.owners[target] != self.own:
            after = tuple({*self.gate, self.computed[-1]})
            self._message(target, action, self.line[self.schedule.owners[target]], after, sends=True)

    def _account(self, action: Action, first: int, kept: float) -> None:
        """Note memory with the action's computing."""
        places = [place for place in self.computed if place >= first]
        if action.kind is Kind.FORWARD:
            self.plan[places[0]] = replace(self._computing(places[0]), holds=kept)
        elif action.kind is not Kind.BACKWARD_INPUT:
            self.plan[places[-1]] = replace(self._computing(places[-1]), gives=kept / action.parts)

    def _computing(self, place: int) -> Computing:
        operation = self.plan[place]
        assert isinstance(operation, Computing)
        return operation

    def _whole(self, action: Action) -> bool:
        """Whether nothing happens between the layers of an action."""
        within = {TENSOR, CONTEXT, EXPERT, FSDP} & set(self.groups)
        if action.kind is Kind.BACKWARD_WEIGHT:
            within = set()
        return action.parts > 1 or not (within or (self.groups and self._gives_weights(action)))

    def _gives_weights(self, action: Action) -> bool:
        """Whether this action ends the gradients of its stage's weights."""
        return self.last.get(action.stage) == action

    def _last_microbatches(self) -> dict[int, Action]:
        kinds = (Kind.FULL_BACKWARD, Kind.BACKWARD_WEIGHT)
        return {action.stage: action for action in self.order if action.kind in kinds}

    # ---- a layer

    def _layer(self, action: Action, number: int, part: Part) -> None:
        self._gather(action, number, part)
        name = f"{action} layer {number}"
        seconds = _seconds(part, action.kind)
        if action.kind is Kind.BACKWARD_WEIGHT or not (part.tensor or part.context or part.expert):
            self._compute(name, action.kind, seconds)
        else:
            # attention, then what comes after it
            self._attention(name, action.kind, seconds / 2, part)
            self._tensor(f"{name} attention", part.tensor)
            self._collective(f"{name} dispatch", EXPERT, "all_to_all", part.expert)
            self._compute(name, action.kind, seconds / 2)
            self._collective(f"{name} combine", EXPERT, "all_to_all", part.expert)
            self._tensor(f"{name} feed-forward", part.tensor)
        if self._gives_weights(action):
            self._reduce(action, number, part)

    def _tensor(self, name: str, size: float) -> None:
        """Partial sums of all tensor ranks put together."""
        ways = ("reduce_scatter", "all_gather") if self.options.sequence_parallel else ("all_reduce",)
        for collective in ways:
            self._collective(name, TENSOR, collective, size)

    def _attention(self, name: str, kind: Kind, seconds: float, part: Part) -> None:
        """Own keys and values first; then, while they are worked on, those of one rank after the other."""
        if not part.context:
            self._compute(name, kind, seconds)
            return
        members = self.groups[CONTEXT].members
        own, size = members.index(self.rank), len(members)
        to, source = members[(own + 1) % size], members[own - 1]
        numel = self._numel(part.context * (1 if kind is Kind.FORWARD else 2))
        begins = tuple({*self.gate, *self.computed[-1:]})
        arrived: tuple[int, ...] = begins
        for turn in range(size - 1):
            after = begins if not turn else arrived
            self._add(Message(f"{name} keys to {to}", "context send", CONTEXT, after, to, numel, turn, True))
            got = Message(f"{name} keys of {source}", "context receive", CONTEXT, after, source, numel, turn)
            arrived = (self._add(got),)
            self._compute(f"{name} {turn}", kind, seconds / size)
            self.gate += arrived
        self._compute(f"{name} {size - 1}", kind, seconds / size)

    def _gather(self, action: Action, number: int, part: Part) -> None:
        """A layer's parameters, if they are not there: needed anew for each microbatch where there is no pipeline."""
        if FSDP not in self.groups or action.kind is Kind.BACKWARD_WEIGHT:
            return
        key = (action.stage, number)
        if len(self.line) > 1 and key in self.gathered:
            return
        ahead = self.computed[-1 - self.options.prefetch : -self.options.prefetch or None]
        for group, size, _ in self._shares(part):
            place = self._start(
                f"{action} layer {number} parameters", group, "all_gather", size, tuple(ahead)
            )
            if place is not None:
                self.gate.append(place)
                self.gathered[key] = place

    def _reduce(self, action: Action, number: int, part: Part) -> None:
        """A layer's gradients, which are whole now."""
        computed = self.computed[-1]
        left, last = 0.0, computed
        for group, _, size in self._shares(part):
            name = f"{action} layer {number} gradients"
            place = self._start(name, group, "reduce_scatter", size, (computed,))
            if place is None:
                left += size
            else:
                left, last = left + size / len(self.groups[group].members), place
        if REPLICATE in self.groups:
            self.bucket += left
            self.bucket_after = last
            if self.bucket >= self.options.bucket_cap:
                self._close_bucket()

    def _shares(self, part: Part) -> list[tuple[str, float, float]]:
        """Who shares parameters of a layer, bytes of those and of their gradients; experts may be shared by others."""
        if EXPERT not in self.groups:
            gathered, reduced = part.gathered + part.expert_gathered, part.reduced + part.expert_reduced
            return [(FSDP, gathered, reduced)]
        experts = (EXPERT_SHARD, part.expert_gathered, part.expert_reduced)
        return [(FSDP, part.gathered, part.reduced), experts]

    def _close_bucket(self) -> None:
        if self.bucket:
            self._start("gradients", REPLICATE, "all_reduce", self.bucket, (self.bucket_after,))
            self.bucket = 0.0

    # ---- operations

    def _add(self, operation: Operation) -> int:
        self.plan.append(operation)
        return len(self.plan) - 1

    def _compute(self, name: str, kind: Kind, seconds: float) -> None:
        after, self.gate = tuple(self.gate), []
        duration_s = self.options.scale.emulated_s(seconds) * self.options.slowdowns.get(self.rank, 1.0)
        self.computed.append(
            self._add(Computing(name, COMPUTE, kind.name.lower(), after, duration_s=duration_s))
        )

    def _collective(self, name: str, group: str, collective: str, size: float) -> None:
        """One that the next computing waits for, of what was computed last."""
        place = self._start(name, group, collective, size, tuple({*self.gate, *self.computed[-1:]}))
        if place is not None:
            self.gate = [place]

    def _start(
        self, name: str, group: str, collective: str, size: float, after: tuple[int, ...]
    ) -> int | None:
        """None where the rank is in no such group, or there is nothing to send."""
        if group not in self.groups or not size:
            return None
        own = self.groups[group]
        parts = 1 if collective == "all_reduce" else len(own.members)
        numel = self._numel(size / parts) * parts
        algorithm = "direct" if collective == "all_to_all" else "ring"
        if group == REPLICATE:
            algorithm = self.options.algorithm
        kind = SHARD if group in (FSDP, EXPERT_SHARD) else group
        return self._add(GroupCollective(name, group, kind, after, own.number, collective, numel, algorithm))

    def _numel(self, size_bytes: float) -> int:
        return max(1, round(self.options.scale.emulated_bytes(size_bytes) / self.options.itemsize))


def _seconds(part: Part, kind: Kind) -> float:
    return {
        Kind.FORWARD: part.forward_s,
        Kind.BACKWARD_INPUT: part.input_s,
        Kind.BACKWARD_WEIGHT: part.weight_s,
        Kind.FULL_BACKWARD: part.input_s + part.weight_s,
    }[kind]


def _next_stage(action: Action, stages: int) -> int | None:
    """Which stage goes on with what an action gives."""
    if action.kind is Kind.FORWARD:
        return action.stage + 1 if action.stage + 1 < stages else None
    if action.kind.gives_gradient:
        return action.stage - 1 if action.stage else None
    return None


def _source_stage(action: Action, stages: int) -> int | None:
    """Which stage's result an action needs, of another stage."""
    if action.kind is Kind.FORWARD:
        return action.stage - 1 if action.stage else None
    if action.kind.gives_gradient:
        return action.stage + 1 if action.stage + 1 < stages else None
    return None

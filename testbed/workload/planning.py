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
from dataclasses import replace

from testbed.workload.layers import EXPERT_SHARD, FSDP, Group, LayerPlanner, Options, computing_s
from testbed.workload.parallelism import CONTEXT, EXPERT, PIPELINE, REPLICATE, SHARD, TENSOR, Mesh
from testbed.workload.plan import Computing, JobPlan, Message, Operation, Pause
from testbed.workload.schedules import Action, Kind, Schedule
from testbed.workload.stages import Stage


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
        lines = _lines(mesh, place)
        plans.append(_RankPlanner(rank, place, lines, of_rank[rank], schedule, stages, options).run())
    return JobPlan(
        tuple(plans),
        tuple(groups),
        not options.early_receives,
        options.jitter,
        options.seed,
        options.dscps,
    )


def _lines(mesh: Mesh, place: Mapping[str, int]) -> dict[tuple[int, int], tuple[int, ...]]:
    """Ranks of the pipelines that a place of the mesh could be in, by their number among replicas and shards."""
    outside = mesh.outside
    return {
        (replica, shard): tuple(
            mesh.rank({**place, REPLICATE: replica, SHARD: shard, PIPELINE: number})
            for number in range(outside[PIPELINE])
        )
        for replica in range(outside[REPLICATE])
        for shard in range(outside[SHARD])
    }


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


class _RankPlanner(LayerPlanner):
    """One rank's plan: the pipeline, action by action. lines: ranks of its own pipeline and of its replicas."""

    def __init__(
        self,
        rank: int,
        place: dict[str, int],
        lines: Mapping[tuple[int, int], Sequence[int]],
        groups: dict[str, Group],
        schedule: Schedule,
        stages: Sequence[Stage],
        options: Options,
    ) -> None:
        self.line, self.lines = lines[place[REPLICATE], place[SHARD]], tuple(lines.values())
        super().__init__(
            rank, groups, schedule.orders[place[PIPELINE]], options, pipelined=len(self.line) > 1
        )
        self.schedule, self.stages = schedule, stages
        self.own = place[PIPELINE]
        self.received: dict[tuple[int, Kind, int], int] = {}
        self.turns = {peer: iter(range(self._messages_to(peer))) for peer in self.line}

    def run(self) -> tuple[Operation, ...]:
        if self.options.early_receives:
            self._post_all()
        for action in self.order:
            self._act(action)
        self.close_bucket()
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
        return self.add(
            Message(
                f"{shown}{what}{source.microbatch}",
                f"{what} {peer}",
                PIPELINE,
                after,
                peer=peer,
                numel=self.numel(size),
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
            seconds = sum(computing_s(part, action.kind) for part in stage.parts) / action.parts
            self.compute(str(action), action.kind, seconds)
            if self.gives_weights(action):
                for number, part in reversed(list(enumerate(stage.parts))):
                    self.reduce(action, number, part)
        elif action.kind is Kind.FORWARD:
            for number, part in enumerate(stage.parts):
                self.layer(action, number, part)
        else:
            for number in reversed(range(len(stage.parts))):
                self.layer(action, number, stage.parts[number])
        self._account(action, first, stage.kept)
        target = _next_stage(action, len(self.stages))
        if target is not None and self.schedule.owners[target] != self.own:
            peer = self.line[self.schedule.owners[target]]
            self._send(target, action, peer, tuple({*self.gate, self.computed[-1]}))

    # ---- turns of replicas: each sends for as long as its message takes, then tells the next one

    def _messages_to(self, peer: int) -> int:
        """How many messages of its schedule this rank sends to another stage's."""
        targets = (_next_stage(action, len(self.stages)) for action in self.order)
        return sum(
            target is not None and self.line[self.schedule.owners[target]] == peer for target in targets
        )

    def _send(self, target: int, action: Action, peer: int, after: tuple[int, ...]) -> None:
        turn, others = next(self.turns[peer]), self._sharing(peer)
        if len(others) <= 1:
            self._message(target, action, peer, after, sends=True)
            return
        own = others.index(self.rank)
        if turn or own:
            after = (*after, self._turn_of(peer, turn, others[own - 1], (), sends=False))
        place = self._message(target, action, peer, after, sends=True)
        message = self.plan[place]
        assert isinstance(message, Message)
        seconds = message.numel * self.options.itemsize / self.options.turns[self.rank, peer].rate
        over = self.add(Pause(f"turn of {message.name}", f"turn {peer}", "turn", after, seconds))
        if own < len(others) - 1:
            self._turn_of(peer, turn, others[own + 1], (over,), sends=True)
        elif turn < self._messages_to(peer) - 1:
            self._turn_of(peer, turn + 1, others[0], (over,), sends=True)

    def _sharing(self, peer: int) -> list[int]:
        """Ranks of replicas that send what this rank sends to `peer`, from the same building to the same other one."""
        own = self.options.turns.get((self.rank, peer))
        if own is None:
            return []
        there = self.line.index(peer)
        pairs = [(line[self.own], line[there]) for line in self.lines]
        return [
            pair[0]
            for pair in pairs
            if pair in self.options.turns and self.options.turns[pair].way == own.way
        ]

    def _turn_of(self, peer: int, turn: int, replica: int, after: tuple[int, ...], *, sends: bool) -> int:
        """One end of the word that a replica may send its message number `turn` to its `peer`."""
        tag = 2 * turn + (self.line.index(peer) > self.own)
        return self.add(
            Message(
                f"turn {turn}", f"turn {peer}", "turn", after, peer=replica, numel=1, tag=tag, sends=sends
            )
        )

    # ---- actions

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
        return action.parts > 1 or not (within or (self.groups and self.gives_weights(action)))


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

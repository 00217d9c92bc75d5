"""Who the members of each step are: the coordinator's state machine, without clock, sockets or processes of its own.

It alone says (epoch, members). The failure of a rank is that of its replica: the rank's connection closed, or it was
not heard for `detect_s`. A rank that was found lost hears Leave and nothing more, so nobody whom others have given up
ever commits anything.

When a member is lost in the middle of a step, the others stop and report which of the step's operations they have.
What all have keeps its sum: everybody has the same, even if the lost one's part is in it. All else is done once more by
everybody, in the next epoch, from inputs that are kept until the step is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from testbed.comm.replicas.loss_policy import Policy
from testbed.comm.replicas.messages import (
    CatchUp,
    CaughtUp,
    Done,
    FromRank,
    Hello,
    Leave,
    Operations,
    Order,
    Outbox,
    Part,
    Ready,
    Report,
    Start,
    Stop,
    ToRank,
    View,
)

_OVER = Leave("all steps are done", over=True)


class Phase(Enum):
    """What the members do."""

    FORMING = "wait for whoever is expected"
    STEPPING = "do a step"
    GATHERING = "report what they have"
    HOLDING = "wait for who catches up"
    OVER = "have done all steps"


class State(Enum):
    """What a replica is."""

    AWAY = "not all of its ranks are there"
    WAITING = "there, without the state"
    CATCHING_UP = "receives the state"
    CAUGHT_UP = "has the state"
    MEMBER = "takes part"


@dataclass
class _Replica:
    ranks: tuple[int, ...]
    state: State = State.AWAY
    here: set[int] = field(default_factory=set)
    failed: bool = False  # ever
    attempt: int = 0
    source: int = -1
    missing: set[int] = field(default_factory=set)


class Membership:
    """replicas: ranks of each, in the order of their inner coordinates. Orders and records gather in `outbox`."""

    def __init__(self, replicas: Sequence[Sequence[int]], policy: Policy) -> None:
        self.policy = policy
        self.outbox = Outbox()
        self.phase = Phase.FORMING
        self.epoch = 0
        self.step = 0
        self._replicas = [_Replica(tuple(ranks)) for ranks in replicas]
        self._place = {
            rank: (number, place) for number, ranks in enumerate(replicas) for place, rank in enumerate(ranks)
        }
        self._incarnation = dict.fromkeys(self._place, -1)
        self._least = dict.fromkeys(self._place, 0)  # the next one that may say Hello
        self._heard_s: dict[int, float] = {}
        self._not_before_s = float("-inf")
        self._attempts = 0
        self._ready: set[int] = set()
        self._done: set[int] = set()
        self._reports: dict[int, Operations] = {}
        self._settled: list[set[tuple[int, int]]] = [set() for _ in self._replicas[0].ranks]
        self._started = False
        self._changed = False  # who the members are, since the last view

    # ---- what comes in

    def receive(self, rank: int, incarnation: int, message: FromRank, now_s: float) -> None:
        """A message of a rank. Of one that was found lost only the Hello of its next incarnation counts."""
        if self.phase is Phase.OVER:
            if isinstance(message, Hello):
                self._tell(rank, _OVER)
            return
        if incarnation < self._least[rank]:
            return
        number, _ = self._place[rank]
        replica = self._replicas[number]
        if isinstance(message, Hello):
            self._incarnation[rank] = incarnation
            self._heard_s[rank] = now_s
            replica.here.add(rank)
            if len(replica.here) == len(replica.ranks):
                self._complete(number, now_s)
            return
        if rank not in replica.here:
            return
        self._heard_s[rank] = now_s
        if isinstance(message, CaughtUp):
            self._on_caught_up(rank, number, message, now_s)
        elif replica.state is State.MEMBER:
            self._on_member(rank, message, now_s)

    def _on_caught_up(self, rank: int, number: int, message: CaughtUp, now_s: float) -> None:
        replica = self._replicas[number]
        if replica.state is not State.CATCHING_UP or message.attempt != replica.attempt:
            return
        replica.missing.discard(rank)
        if not replica.missing:
            replica.state = State.CAUGHT_UP
            self._write(now_s, "caught up", replica=number, attempt=message.attempt)
            self._look_at_boundary(now_s)

    def _on_member(self, rank: int, message: FromRank, now_s: float) -> None:
        """How far a member's rank is."""
        if isinstance(message, Ready) and message.step == self.step:
            self._ready.add(rank)
            self._look_at_start(now_s)
        elif isinstance(message, Done) and self.phase is Phase.STEPPING:
            if (message.step, message.epoch) == (self.step, self.epoch):
                self._done.add(rank)
                self._look_at_commit(now_s)
        elif isinstance(message, Report) and self.phase is Phase.GATHERING and message.epoch == self.epoch:
            self._reports[rank] = message.operations
            self._look_at_reports(now_s)

    def closed(self, rank: int, incarnation: int, now_s: float) -> None:
        """The connection of this incarnation of a rank has ended."""
        if incarnation >= self._least[rank]:
            self._incarnation[rank] = max(self._incarnation[rank], incarnation)
            self._lose(rank, "its connection closed", now_s)

    def tick(self, now_s: float) -> None:
        """Time has passed."""
        for rank, heard_s in list(self._heard_s.items()):
            if rank in self._heard_s and now_s - heard_s >= self.policy.detect_s:
                self._lose(rank, f"not heard for {now_s - heard_s:.3g} s", now_s)
        if self.phase is Phase.FORMING:
            self._look_at_forming(now_s)

    def next_s(self) -> float:
        """When `tick` may have something to do."""
        heard_s = min(self._heard_s.values(), default=float("inf")) + self.policy.detect_s
        waits = self.phase is Phase.FORMING and self._not_before_s > float("-inf")
        return min(heard_s, self._not_before_s) if waits else heard_s

    @property
    def members(self) -> tuple[int, ...]:
        """Replicas that take part."""
        return tuple(number for number, replica in enumerate(self._replicas) if replica.state is State.MEMBER)

    # ---- who is there

    def _complete(self, number: int, now_s: float) -> None:
        replica = self._replicas[number]
        replica.state = State.WAITING
        self._write(now_s, "returned" if replica.failed else "there", replica=number)
        if self.phase is Phase.FORMING:
            self._look_at_forming(now_s)
        elif self.policy.catch_up == "non_blocking" or self.phase is Phase.HOLDING:
            self._catch_up(number, now_s)

    def _lose(self, rank: int, why: str, now_s: float) -> None:
        """A rank is lost, and so is its replica."""
        if self.phase is Phase.OVER:
            return
        number, _ = self._place[rank]
        replica = self._replicas[number]
        was = replica.state
        self._dismiss(number, rank, f"rank {rank} of replica {number} is lost: {why}")
        replica.failed = True
        lost = Part(tuple((mate, self._least[mate] - 1) for mate in replica.ranks if self._least[mate]))
        for other in self._replicas:
            for mate in other.here:
                self._tell(mate, lost)
        self._write(now_s, "lost", replica=number, rank=rank, why=why, member=was is State.MEMBER)
        if was is State.MEMBER:
            self._lose_member(number, now_s)
        if self.phase is Phase.FORMING:
            self._look_at_forming(now_s)
        elif self.phase is Phase.HOLDING:
            self._look_at_boundary(now_s)

    def _dismiss(self, number: int, lost: int | None, reason: str) -> None:
        """Send a replica's ranks away; they count again as their next incarnations.

        lost: the rank that is the reason, which may not have said Hello yet. Its mates that have not are still welcome.
        """
        replica = self._replicas[number]
        for rank in replica.ranks:
            if rank in replica.here:
                self._tell(rank, Leave(reason))
                self._least[rank] = self._incarnation[rank] + 1
            elif rank == lost:
                self._least[rank] = self._incarnation[rank] + 1
            self._heard_s.pop(rank, None)
            self._ready.discard(rank)
            self._done.discard(rank)
            self._reports.pop(rank, None)
        replica.here.clear()
        replica.missing.clear()
        replica.state = State.AWAY

    def _lose_member(self, number: int, now_s: float) -> None:
        self._changed = True
        if self.policy.mode == "restart" or not self.members:
            self._begin_again(now_s)
            return
        for other, replica in enumerate(self._replicas):
            if replica.state is State.CATCHING_UP and replica.source == number:
                self._catch_up(other, now_s)
        if self.phase is Phase.STEPPING:
            self.phase = Phase.GATHERING
            self._reports.clear()
            self._tell_members(Stop(self.epoch))
        elif self.phase is Phase.GATHERING:
            self._look_at_reports(now_s)

    def _begin_again(self, now_s: float) -> None:
        """From the last checkpoint: nobody has newer state, or nobody is to use it."""
        for number, replica in enumerate(self._replicas):
            if replica.state is State.MEMBER:
                self._dismiss(number, None, "all begin again from the last checkpoint")
            elif replica.state is not State.AWAY:
                replica.state = State.WAITING
                replica.missing.clear()
        checkpoint = self.step - self.step % self.policy.checkpoint_every
        self._write(now_s, "restart", step=self.step, checkpoint=checkpoint)
        self.step = checkpoint
        self.phase = Phase.FORMING
        self._not_before_s = now_s + self.policy.restart_s

    # ---- the first members, or the first after all were lost

    def _look_at_forming(self, now_s: float) -> None:
        there = [number for number, replica in enumerate(self._replicas) if replica.state is State.WAITING]
        expected = self.policy.mode == "restart" or any(
            not replica.failed and replica.state is State.AWAY for replica in self._replicas
        )
        if not there or now_s < self._not_before_s or (expected and len(there) < len(self._replicas)):
            return
        self._not_before_s = float("-inf")
        for number in there:
            self._replicas[number].state = State.MEMBER
        self.epoch += 1
        self._begin_step(now_s)

    # ---- steps

    def _begin_step(self, now_s: float) -> None:
        """Say who the members of the step are."""
        self.phase = Phase.STEPPING
        self._started = False
        self._ready.clear()
        self._done.clear()
        for settled in self._settled:
            settled.clear()
        self._write(now_s, "view", step=self.step, epoch=self.epoch, members=list(self.members))
        self._tell_view()

    def _look_at_start(self, now_s: float) -> None:
        """The step begins for all at once, when all are ready."""
        if self._started or not self._all_of(self._ready) or self.phase is not Phase.STEPPING:
            return
        self._started = True
        start_s = now_s + self.policy.lead_s
        if self.policy.beat_s:
            start_s += -start_s % self.policy.beat_s
        self._write(now_s, "start", step=self.step, epoch=self.epoch, start_s=start_s)
        self._tell_members(Start(self.step, start_s))

    def _look_at_commit(self, now_s: float) -> None:
        """Once all members have the whole step, it stands."""
        if not self._all_of(self._done):
            return
        self._write(now_s, "committed", step=self.step, epoch=self.epoch, members=list(self.members))
        self.step += 1
        if self.step >= self.policy.steps:
            self._finish()
            return
        self.phase = Phase.HOLDING
        if self.policy.catch_up == "blocking":
            for number, replica in enumerate(self._replicas):
                if replica.state is State.WAITING:
                    self._catch_up(number, now_s)
        self._look_at_boundary(now_s)

    def _finish(self) -> None:
        self._tell_members(View(self.epoch, self.members, self.step))
        for replica in self._replicas:
            if replica.state is not State.MEMBER:
                for rank in replica.here:
                    self._tell(rank, _OVER)
        self.phase = Phase.OVER

    def _look_at_boundary(self, now_s: float) -> None:
        """Between two steps: the next one begins, unless members wait for who catches up."""
        if self.phase is not Phase.HOLDING or not self.members:
            return
        catching_up = any(replica.state is State.CATCHING_UP for replica in self._replicas)
        if self.policy.catch_up == "blocking" and catching_up:
            return
        for number, replica in enumerate(self._replicas):
            if replica.state is State.CAUGHT_UP:
                replica.state = State.MEMBER
                self._changed = True
                self._write(now_s, "joined", replica=number, step=self.step)
        if self._changed:
            self.epoch += 1
        self._begin_step(now_s)

    def _look_at_reports(self, now_s: float) -> None:
        """Once all that live have reported: what all of one coordinate have is settled."""
        if not self._all_of(self._reports):
            return
        for place, settled in enumerate(self._settled):
            reports = [self._reports[self._replicas[number].ranks[place]] for number in self.members]
            settled.update(frozenset.intersection(*reports))
        self.epoch += 1
        self.phase = Phase.STEPPING
        self._done.clear()
        self._write(
            now_s,
            "view",
            step=self.step,
            epoch=self.epoch,
            members=list(self.members),
            settled=sum(map(len, self._settled)),
        )
        self._tell_view()
        self._look_at_start(now_s)

    def _catch_up(self, number: int, now_s: float) -> None:
        """Have a member send its state to this replica: the one with the fewest to send to."""
        busy = [
            replica.source for replica in self._replicas if replica.state is State.CATCHING_UP
        ]  # whoever was lost is no member
        replica = self._replicas[number]
        self._attempts += 1
        replica.state = State.CATCHING_UP
        replica.attempt = self._attempts
        replica.source = min(self.members, key=lambda member: (busy.count(member), (member - number) % 64))
        replica.missing = set(replica.ranks)
        self._write(now_s, "catch up", replica=number, source=replica.source, attempt=replica.attempt)
        message = CatchUp(replica.attempt, replica.source, number, self.step)
        for rank in (*replica.ranks, *self._replicas[replica.source].ranks):
            self._tell(rank, message)

    # ---- telling

    def _all_of(self, ranks: object) -> bool:
        """Whether every rank of every member is among them."""
        return all(
            rank in ranks  # type: ignore[operator]
            for number in self.members
            for rank in self._replicas[number].ranks
        )

    def _tell(self, rank: int, message: ToRank) -> None:
        self.outbox.orders.append(Order(rank, message))

    def _tell_members(self, message: ToRank) -> None:
        for number in self.members:
            for rank in self._replicas[number].ranks:
                self._tell(rank, message)

    def _tell_view(self) -> None:
        self._changed = False
        for number in self.members:
            for place, rank in enumerate(self._replicas[number].ranks):
                settled = frozenset(self._settled[place])
                self._tell(rank, View(self.epoch, self.members, self.step, settled))

    def _write(self, now_s: float, event: str, **what: object) -> None:
        self.outbox.records.append({"event": event, "time_s": now_s, **what})

"""Membership of each step: the coordinator's state machine, without clock, sockets or processes.

The coordinator alone decides (epoch, members). The failure of a rank is the failure of its replica: its connection
closes, or it is silent for `detect_s`. A lost rank receives Leave and nothing more, so a rank that others have given up
never commits anything.

When a member is lost during a step, the others stop and report which operations of the step they have finished.
Operations that all have finished keep their sum: all members have the same, even if it includes the lost member.
All members repeat all other operations in the next epoch, from inputs that are saved until the step is committed.
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
    Outbox,
    OutgoingMessage,
    RanksLost,
    Ready,
    Report,
    Start,
    Stop,
    ToRank,
    View,
)

_OVER = Leave("all steps are done", over=True)


class Phase(Enum):
    """The current activity of the members."""

    FORMING = "waiting for expected replicas"
    STEPPING = "executing a step"
    GATHERING = "reporting finished operations"
    HOLDING = "waiting for replicas that catch up"
    OVER = "done with all steps"


class State(Enum):
    """The state of a replica."""

    AWAY = "not all of its ranks are connected"
    WAITING = "connected, without the state"
    CATCHING_UP = "receiving the state"
    CAUGHT_UP = "has the state"
    MEMBER = "takes part in steps"


@dataclass
class _Replica:
    ranks: tuple[int, ...]
    state: State = State.AWAY
    connected: set[int] = field(default_factory=set)
    failed: bool = False  # whether it has ever failed
    attempt: int = 0
    source: int = -1
    missing: set[int] = field(default_factory=set)


class Membership:
    """The membership state machine. Messages and records accumulate in `outbox`.

    replicas: the ranks of each replica, in the order of their inner coordinates.
    """

    def __init__(self, replicas: Sequence[Sequence[int]], policy: Policy) -> None:
        self.policy = policy
        self.outbox = Outbox()
        self.phase = Phase.FORMING
        self.epoch = 0
        self.step = 0
        self._replicas = [_Replica(tuple(ranks)) for ranks in replicas]
        self._positions = {
            rank: (number, place) for number, ranks in enumerate(replicas) for place, rank in enumerate(ranks)
        }
        self._incarnation = dict.fromkeys(self._positions, -1)
        self._next_incarnation = dict.fromkeys(self._positions, 0)  # lowest incarnation that may say Hello
        self._last_heard_s: dict[int, float] = {}
        self._not_before_s = float("-inf")
        self._attempts = 0
        self._ready: set[int] = set()
        self._done: set[int] = set()
        self._reports: dict[int, Operations] = {}
        self._settled: list[set[tuple[int, int]]] = [set() for _ in self._replicas[0].ranks]
        self._started = False
        self._changed = False  # whether members changed since the last view

    # ---- inputs

    def receive(self, rank: int, incarnation: int, message: FromRank, now_s: float) -> None:
        """Process a message of a rank. From a lost rank, only the Hello of its next incarnation counts."""
        if self.phase is Phase.OVER:
            if isinstance(message, Hello):
                self._send(rank, _OVER)
            return
        if incarnation < self._next_incarnation[rank]:
            return
        number, _ = self._positions[rank]
        replica = self._replicas[number]
        if isinstance(message, Hello):
            self._incarnation[rank] = incarnation
            self._last_heard_s[rank] = now_s
            replica.connected.add(rank)
            if len(replica.connected) == len(replica.ranks):
                self._on_replica_connected(number, now_s)
            return
        if rank not in replica.connected:
            return
        self._last_heard_s[rank] = now_s
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
            self._record(now_s, "caught up", replica=number, attempt=message.attempt)
            self._try_next_step(now_s)

    def _on_member(self, rank: int, message: FromRank, now_s: float) -> None:
        if isinstance(message, Ready) and message.step == self.step:
            self._ready.add(rank)
            self._try_start(now_s)
        elif isinstance(message, Done) and self.phase is Phase.STEPPING:
            if (message.step, message.epoch) == (self.step, self.epoch):
                self._done.add(rank)
                self._try_commit(now_s)
        elif isinstance(message, Report) and self.phase is Phase.GATHERING and message.epoch == self.epoch:
            self._reports[rank] = message.operations
            self._try_settle(now_s)

    def connection_closed(self, rank: int, incarnation: int, now_s: float) -> None:
        """Process the end of the connection of this incarnation of a rank."""
        if incarnation >= self._next_incarnation[rank]:
            self._incarnation[rank] = max(self._incarnation[rank], incarnation)
            self._lose(rank, "its connection closed", now_s)

    def tick(self, now_s: float) -> None:
        """Process the passage of time."""
        for rank, heard_s in list(self._last_heard_s.items()):
            if rank in self._last_heard_s and now_s - heard_s >= self.policy.detect_s:
                self._lose(rank, f"silent for {now_s - heard_s:.3g} s", now_s)
        if self.phase is Phase.FORMING:
            self._try_form(now_s)

    def next_deadline_s(self) -> float:
        """Return the time at which `tick` may have something to do."""
        heard_s = min(self._last_heard_s.values(), default=float("inf")) + self.policy.detect_s
        waits = self.phase is Phase.FORMING and self._not_before_s > float("-inf")
        return min(heard_s, self._not_before_s) if waits else heard_s

    @property
    def members(self) -> tuple[int, ...]:
        """The replicas that take part."""
        return tuple(number for number, replica in enumerate(self._replicas) if replica.state is State.MEMBER)

    # ---- arrivals and losses

    def _on_replica_connected(self, number: int, now_s: float) -> None:
        replica = self._replicas[number]
        replica.state = State.WAITING
        self._record(now_s, "returned" if replica.failed else "there", replica=number)
        if self.phase is Phase.FORMING:
            self._try_form(now_s)
        elif self.policy.catch_up == "non_blocking" or self.phase is Phase.HOLDING:
            self._catch_up(number, now_s)

    def _lose(self, rank: int, why: str, now_s: float) -> None:
        if self.phase is Phase.OVER:
            return
        number, _ = self._positions[rank]
        replica = self._replicas[number]
        was = replica.state
        self._dismiss(number, rank, f"rank {rank} of replica {number} is lost: {why}")
        replica.failed = True
        lost = RanksLost(
            tuple(
                (mate, self._next_incarnation[mate] - 1)
                for mate in replica.ranks
                if self._next_incarnation[mate]
            )
        )
        for other in self._replicas:
            for mate in other.connected:
                self._send(mate, lost)
        self._record(now_s, "lost", replica=number, rank=rank, why=why, member=was is State.MEMBER)
        if was is State.MEMBER:
            self._lose_member(number, now_s)
        if self.phase is Phase.FORMING:
            self._try_form(now_s)
        elif self.phase is Phase.HOLDING:
            self._try_next_step(now_s)

    def _dismiss(self, number: int, lost: int | None, reason: str) -> None:
        """Dismiss the ranks of a replica; they are accepted again as their next incarnations.

        `lost` is the rank that caused it, which may not have sent Hello yet. Other ranks of the replica that have not
        sent it are still accepted.
        """
        replica = self._replicas[number]
        for rank in replica.ranks:
            if rank in replica.connected:
                self._send(rank, Leave(reason))
                self._next_incarnation[rank] = self._incarnation[rank] + 1
            elif rank == lost:
                self._next_incarnation[rank] = self._incarnation[rank] + 1
            self._last_heard_s.pop(rank, None)
            self._ready.discard(rank)
            self._done.discard(rank)
            self._reports.pop(rank, None)
        replica.connected.clear()
        replica.missing.clear()
        replica.state = State.AWAY

    def _lose_member(self, number: int, now_s: float) -> None:
        self._changed = True
        if self.policy.mode == "restart" or not self.members:
            self._restart(now_s)
            return
        for other, replica in enumerate(self._replicas):
            if replica.state is State.CATCHING_UP and replica.source == number:
                self._catch_up(other, now_s)
        if self.phase is Phase.STEPPING:
            self.phase = Phase.GATHERING
            self._reports.clear()
            self._send_to_members(Stop(self.epoch))
        elif self.phase is Phase.GATHERING:
            self._try_settle(now_s)

    def _restart(self, now_s: float) -> None:
        """Restart from the last checkpoint: no member has newer state, or none may use it."""
        for number, replica in enumerate(self._replicas):
            if replica.state is State.MEMBER:
                self._dismiss(number, None, "all ranks restart from the last checkpoint")
            elif replica.state is not State.AWAY:
                replica.state = State.WAITING
                replica.missing.clear()
        checkpoint = self.step - self.step % self.policy.checkpoint_every
        self._record(now_s, "restart", step=self.step, checkpoint=checkpoint)
        self.step = checkpoint
        self.phase = Phase.FORMING
        self._not_before_s = now_s + self.policy.restart_s

    # ---- the first members, also after all were lost

    def _try_form(self, now_s: float) -> None:
        waiting = [number for number, replica in enumerate(self._replicas) if replica.state is State.WAITING]
        expected = self.policy.mode == "restart" or any(
            not replica.failed and replica.state is State.AWAY for replica in self._replicas
        )
        if not waiting or now_s < self._not_before_s or (expected and len(waiting) < len(self._replicas)):
            return
        self._not_before_s = float("-inf")
        for number in waiting:
            self._replicas[number].state = State.MEMBER
        self.epoch += 1
        self._begin_step(now_s)

    # ---- steps

    def _begin_step(self, now_s: float) -> None:
        self.phase = Phase.STEPPING
        self._started = False
        self._ready.clear()
        self._done.clear()
        for settled in self._settled:
            settled.clear()
        self._record(now_s, "view", step=self.step, epoch=self.epoch, members=list(self.members))
        self._send_view()

    def _try_start(self, now_s: float) -> None:
        """Start the step for all ranks at once, when all are ready."""
        if self._started or not self._all_of(self._ready) or self.phase is not Phase.STEPPING:
            return
        self._started = True
        start_s = now_s + self.policy.lead_s
        if self.policy.beat_s:
            start_s += -start_s % self.policy.beat_s
        self._record(now_s, "start", step=self.step, epoch=self.epoch, start_s=start_s)
        self._send_to_members(Start(self.step, start_s))

    def _try_commit(self, now_s: float) -> None:
        """Commit the step once all members have finished it."""
        if not self._all_of(self._done):
            return
        self._record(now_s, "committed", step=self.step, epoch=self.epoch, members=list(self.members))
        self.step += 1
        if self.step >= self.policy.steps:
            self._finish()
            return
        self.phase = Phase.HOLDING
        if self.policy.catch_up == "blocking":
            for number, replica in enumerate(self._replicas):
                if replica.state is State.WAITING:
                    self._catch_up(number, now_s)
        self._try_next_step(now_s)

    def _finish(self) -> None:
        self._send_to_members(View(self.epoch, self.members, self.step))
        for replica in self._replicas:
            if replica.state is not State.MEMBER:
                for rank in replica.connected:
                    self._send(rank, _OVER)
        self.phase = Phase.OVER

    def _try_next_step(self, now_s: float) -> None:
        """Start the next step, unless members wait for a replica that catches up."""
        if self.phase is not Phase.HOLDING or not self.members:
            return
        catching_up = any(replica.state is State.CATCHING_UP for replica in self._replicas)
        if self.policy.catch_up == "blocking" and catching_up:
            return
        for number, replica in enumerate(self._replicas):
            if replica.state is State.CAUGHT_UP:
                replica.state = State.MEMBER
                self._changed = True
                self._record(now_s, "joined", replica=number, step=self.step)
        if self._changed:
            self.epoch += 1
        self._begin_step(now_s)

    def _try_settle(self, now_s: float) -> None:
        """Settle operations that all ranks of one coordinate have finished, once all survivors have reported."""
        if not self._all_of(self._reports):
            return
        for place, settled in enumerate(self._settled):
            reports = [self._reports[self._replicas[number].ranks[place]] for number in self.members]
            settled.update(frozenset.intersection(*reports))
        self.epoch += 1
        self.phase = Phase.STEPPING
        self._done.clear()
        self._record(
            now_s,
            "view",
            step=self.step,
            epoch=self.epoch,
            members=list(self.members),
            settled=sum(map(len, self._settled)),
        )
        self._send_view()
        self._try_start(now_s)

    def _catch_up(self, number: int, now_s: float) -> None:
        """Have a member send its state to this replica: the one with the fewest other receivers."""
        busy = [replica.source for replica in self._replicas if replica.state is State.CATCHING_UP]
        replica = self._replicas[number]
        self._attempts += 1
        replica.state = State.CATCHING_UP
        replica.attempt = self._attempts
        replica.source = min(self.members, key=lambda member: (busy.count(member), (member - number) % 64))
        replica.missing = set(replica.ranks)
        self._record(now_s, "catch up", replica=number, source=replica.source, attempt=replica.attempt)
        message = CatchUp(replica.attempt, replica.source, number, self.step)
        for rank in (*replica.ranks, *self._replicas[replica.source].ranks):
            self._send(rank, message)

    # ---- output

    def _all_of(self, ranks: object) -> bool:
        """Return whether every rank of every member is in `ranks`."""
        return all(
            rank in ranks  # type: ignore[operator]
            for number in self.members
            for rank in self._replicas[number].ranks
        )

    def _send(self, rank: int, message: ToRank) -> None:
        self.outbox.messages.append(OutgoingMessage(rank, message))

    def _send_to_members(self, message: ToRank) -> None:
        for number in self.members:
            for rank in self._replicas[number].ranks:
                self._send(rank, message)

    def _send_view(self) -> None:
        self._changed = False
        for number in self.members:
            for place, rank in enumerate(self._replicas[number].ranks):
                settled = frozenset(self._settled[place])
                self._send(rank, View(self.epoch, self.members, self.step, settled))

    def _record(self, now_s: float, event: str, **what: object) -> None:
        self.outbox.records.append({"event": event, "time_s": now_s, **what})

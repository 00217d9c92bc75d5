"""Who the members are: at any interleaving of messages, kills and returns, those that live commit the same."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed.comm.replicas.loss_policy import CatchUpMode, Mode, Policy
from testbed.comm.replicas.member import Member, Summed
from testbed.comm.replicas.membership import Membership
from testbed.comm.replicas.messages import (
    Alive,
    CatchUp,
    CaughtUp,
    Done,
    Hello,
    Leave,
    MessageError,
    Operation,
    RanksLost,
    Ready,
    Report,
    Start,
    Stop,
    View,
    pack_message,
    unpack_message,
)

DETECT_S = 1.0


@dataclass
class Life:
    """One incarnation of a rank, as a simulation has it."""

    rank: int
    member: Member
    said: int = 0
    heard: deque[object] = field(default_factory=deque)
    begun: set[Operation] = field(default_factory=set)
    step: int = -1
    epoch: int = 0
    ready: bool = False
    finished: bool = False
    dead: bool = False


class World:
    """Ranks that do steps of `operations` operations each, a coordinator, and whatever order `choose` gives."""

    def __init__(self, replicas: int, ranks: int, policy: Policy, operations: int) -> None:
        self.replicas = [[number * ranks + place for place in range(ranks)] for number in range(replicas)]
        self.place = {rank: (n, k) for n, row in enumerate(self.replicas) for k, rank in enumerate(row)}
        self.membership = Membership(self.replicas, policy)
        self.operations = operations
        self.steps = policy.steps
        self.now_s = 0.0
        self.lives: dict[int, Life] = {}
        self.to_coordinator: dict[int, deque[tuple[int, object]]] = {rank: deque() for rank in self.place}
        self.incarnations = dict.fromkeys(self.place, -1)
        self.commits: dict[tuple[int, int, int, Operation], Summed] = {}
        self.restarts = 0
        self.generations: dict[int, int] = {}  # restarts before an epoch: in each a step is done once
        self.parts: set[tuple[int, int, Operation, int]] = set()  # who took part in what, in which epoch
        for rank in self.place:
            self.live(rank)

    # ---- a rank

    def live(self, rank: int) -> None:
        self.incarnations[rank] += 1
        self.lives[rank] = Life(rank, Member(self.incarnations[rank]))
        self.flush(self.lives[rank])

    def flush(self, life: Life) -> None:
        for message in life.member.outbox[life.said :]:
            self.to_coordinator[life.rank].append((life.member.incarnation, message))
        life.said = len(life.member.outbox)

    def kill(self, rank: int) -> None:
        """What it has said still arrives; then its connection closes."""
        life = self.lives[rank]
        if life.dead:
            return
        life.dead = True
        self.to_coordinator[rank].append((life.member.incarnation, "closed"))

    def hear(self, life: Life) -> None:
        message = unpack_message(pack_message(life.heard.popleft()))  # type: ignore[arg-type]
        member = life.member
        before_step, before_epoch = member.step, member.epoch
        again = member.receive(message)  # type: ignore[arg-type]
        assert member.epoch >= before_epoch, "a view grows"
        life.begun -= again
        if isinstance(message, View):
            if message.step != before_step:
                if before_step >= 0 and message.step == before_step + 1:
                    self.commit(life, before_step, message)
                life.begun.clear()
                life.ready = life.finished = False
            elif message.epoch != before_epoch:
                life.begun = {operation for operation in life.begun if operation in member.summed}
        if isinstance(message, CatchUp) and message.target == self.place[life.rank][0]:
            member.outbox.append(CaughtUp(message.attempt))
        if member.dismissed is not None and not life.dead:
            life.dead = True  # it leaves
            self.to_coordinator[life.rank].append((member.incarnation, "closed"))
        self.flush(life)

    def commit(self, life: Life, step: int, view: View) -> None:
        """Whoever commits an operation of a step, has the same sum."""
        _, coordinate = self.place[life.rank]
        assert len(life.member.committed) == self.operations
        for operation, summed in life.member.committed.items():
            key = (self.generations[summed.epoch], step, coordinate, operation)
            assert self.commits.setdefault(key, summed) == summed, (key, life.rank)

    def can(self, life: Life) -> list[Operation]:
        """What it can do with operations: begin the next one, or end one whose members have all begun it."""
        member = life.member
        if life.dead or member.view is None or not life.ready or member.start_s is None:
            return []
        found = []
        for number in range(self.operations):
            operation = (0, number)
            if operation in member.summed:
                continue
            if operation not in life.begun:
                found.append(operation)
                break
            mates = [
                self.lives[self.replicas[other][self.place[life.rank][1]]] for other in member.view.members
            ]
            if all(self.took_part(mate, operation, member.epoch) for mate in mates):
                found.append(operation)
        return found

    def took_part(self, life: Life, operation: Operation, epoch: int) -> bool:
        return (self.place[life.rank][1], life.rank, operation, epoch) in self.parts

    def act(self, life: Life, operation: Operation) -> None:
        member = life.member
        assert member.view is not None
        if operation not in life.begun:
            life.begun.add(operation)
            self.parts.add((self.place[life.rank][1], life.rank, operation, member.epoch))
        else:
            assert member.complete(operation, member.view)
        self.flush(life)

    def do(self, life: Life) -> bool:
        """What a rank's own program does next; whether there was anything."""
        member = life.member
        if life.dead or member.dismissed is not None or member.step < 0 or member.step >= self.steps:
            return False
        if member.view is not None and not life.ready:
            life.ready = True
            self.forget_parts(life)
            member.ready()
            self.flush(life)
            return True
        if not life.finished and len(life.begun) == self.operations and len(member.summed) == self.operations:
            life.finished = True
            member.finish(self.operations)
            self.flush(life)
            return True
        return False

    def forget_parts(self, life: Life) -> None:
        """Tags have the step in them."""
        self.parts = {part for part in self.parts if part[1] != life.rank}

    # ---- what can happen

    def choices(self) -> list[tuple[str, int]]:
        found = []
        for rank, life in self.lives.items():
            if self.to_coordinator[rank]:
                found.append(("send", rank))
            if life.heard and not life.dead:
                found.append(("hear", rank))
            if self.can(life):
                found.append(("operate", rank))
            member = life.member
            due = member.view is not None and not life.ready
            whole = len(member.summed) == self.operations and not life.finished
            if not life.dead and 0 <= member.step < self.steps and (due or whole):
                found.append(("do", rank))
            if life.dead and not self.to_coordinator[rank] and not self.over:
                found.append(("return", rank))
        return found

    @property
    def over(self) -> bool:
        return self.membership.phase.name == "OVER"

    def happen(self, what: str, rank: int) -> None:
        life = self.lives[rank]
        if what == "send":
            incarnation, message = self.to_coordinator[rank].popleft()
            if message == "closed":
                self.membership.connection_closed(rank, incarnation, self.now_s)
            else:
                known = unpack_message(pack_message(message))  # type: ignore[arg-type]
                self.membership.receive(rank, incarnation, known, self.now_s)  # type: ignore[arg-type]
            self.route()
        elif what == "hear":
            self.hear(life)
        elif what == "operate":
            self.act(life, self.can(life)[0])
        elif what == "do":
            self.do(life)
        elif what == "return":
            self.live(rank)

    def silent(self, rank: int) -> None:
        """It stands still for longer than is allowed: all others are heard."""
        self.now_s += DETECT_S * 1.01
        for other in self.place:
            if other != rank and not self.lives[other].dead:
                self.membership.receive(other, self.incarnations[other], Alive(), self.now_s)
        self.membership.tick(self.now_s)
        self.route()

    def route(self) -> None:
        for record in self.membership.outbox.records:
            if record["event"] == "restart":
                self.restarts += 1
            elif record["event"] == "view":
                self.generations[self.membership.epoch] = self.restarts
        self.membership.outbox.records.clear()
        for order in self.membership.outbox.messages:
            life = self.lives[order.rank]
            if not life.dead:
                life.heard.append(order.message)
        self.membership.outbox.messages.clear()


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    mode: Mode = draw(st.sampled_from(["ftar", "ftar", "restart"]))
    catch_up: CatchUpMode = draw(st.sampled_from(["blocking", "non_blocking"]))
    return Policy(mode, catch_up, DETECT_S, checkpoint_every=draw(st.integers(1, 2)), steps=3)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(policies(), st.integers(2, 4), st.integers(1, 2), st.integers(1, 3), st.data())
def test_those_that_live_commit_the_same(
    policy: Policy, replicas: int, ranks: int, operations: int, data: st.DataObject
) -> None:
    world = World(replicas, ranks, policy, operations)
    random = data.draw(st.randoms(use_true_random=False))
    kills = data.draw(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 99), st.booleans()), max_size=5))
    due = deque(sorted(kills))
    moves = 0
    while not world.over:
        while due and due[0][0] <= moves:
            _, which, pauses = due.popleft()
            rank = which % len(world.place)
            if pauses:
                world.silent(rank)
            else:
                world.kill(rank)
        choices = world.choices()
        assert choices, f"nothing can happen: {world.membership.phase}"
        world.happen(*random.choice(choices))
        moves += 1
        assert moves < 20_000, "no progress"
    assert world.membership.step == policy.steps


def test_without_failures_there_is_one_epoch() -> None:
    world = World(3, 2, Policy(steps=4), 2)
    while not world.over:
        world.happen(*world.choices()[0])
    assert world.membership.epoch == 1
    while choices := world.choices():
        world.happen(*choices[0])
    members = (0, 1, 2)
    assert set(world.commits.values()) == {Summed(1, members)}
    assert len(world.commits) == 4 * 2 * 2


def both(ranks: int = 1, **policy: Any) -> Membership:
    """Two replicas in their first step, nobody has heard of any."""
    membership = Membership(
        [range(ranks), range(ranks, 2 * ranks)],
        Policy(steps=9, **policy),
    )
    for rank in range(2 * ranks):
        membership.receive(rank, 0, Hello(0), 0.0)
    membership.outbox.messages.clear()
    return membership


def told(membership: Membership, rank: int) -> list[object]:
    orders = membership.outbox.messages
    mine: list[object] = [order.message for order in orders if order.rank == rank]
    orders[:] = [order for order in orders if order.rank != rank]
    return mine


def test_what_all_that_live_have_is_settled_for_each_coordinate() -> None:
    membership = Membership([(0, 1), (2, 3), (4, 5)], Policy(steps=2))
    for rank in range(6):
        membership.receive(rank, 0, Hello(0), 0.0)
    membership.outbox.messages.clear()
    membership.connection_closed(5, 0, 0.1)
    assert told(membership, 0) == [RanksLost(((4, 0), (5, 0))), Stop(1)]
    assert [type(message) for message in told(membership, 4)] == [Leave]
    first, second = (0, 0), (0, 1)
    membership.receive(0, 0, Report(0, 1, frozenset({first, second})), 0.2)
    membership.receive(2, 0, Report(0, 1, frozenset({first})), 0.2)
    membership.receive(1, 0, Report(0, 1, frozenset({second})), 0.2)
    assert not told(membership, 0)
    membership.receive(3, 0, Report(0, 1, frozenset()), 0.2)
    assert told(membership, 0) == [View(2, (0, 1), 0, frozenset({first}))]
    assert told(membership, 3)[-1] == View(2, (0, 1), 0, frozenset())


def test_silence_is_death_and_late_words_of_the_dead_do_not_count() -> None:
    membership = both(detect_s=0.5)
    membership.receive(0, 0, Alive(), 0.4)
    assert membership.next_deadline_s() == 0.5
    membership.tick(0.5)
    assert membership.members == (0,)
    membership.receive(0, 0, Report(0, 1, frozenset()), 0.6)
    assert membership.epoch == 2
    membership.receive(1, 0, Done(0, 2), 0.6)
    membership.receive(1, 0, Hello(0), 0.6)
    assert membership.members == (0,)
    membership.receive(0, 0, Done(0, 2), 0.7)
    assert membership.step == 1


def test_a_replica_returns_at_a_boundary_once_it_has_caught_up() -> None:
    membership = both(catch_up="non_blocking")
    membership.connection_closed(1, 0, 0.1)
    membership.receive(0, 0, Report(0, 1, frozenset()), 0.1)
    membership.receive(1, 1, Hello(1), 0.2)
    attempt = CatchUp(1, 0, 1, 0)
    assert attempt in told(membership, 0)
    assert told(membership, 1)[-1] == attempt
    membership.receive(0, 0, Done(0, 2), 0.3)
    assert told(membership, 0) == [View(2, (0,), 1)], "nobody waits"
    membership.receive(1, 1, CaughtUp(1), 0.4)
    assert not told(membership, 1)
    membership.receive(0, 0, Done(1, 2), 0.5)
    assert told(membership, 1) == [View(3, (0, 1), 2)]


def test_who_blocks_waits_for_the_returned_at_the_boundary() -> None:
    membership = both(catch_up="blocking")
    membership.connection_closed(1, 0, 0.1)
    membership.receive(0, 0, Report(0, 1, frozenset()), 0.1)
    membership.receive(1, 1, Hello(1), 0.2)
    told(membership, 1)
    assert not told(membership, 1), "the state is sent while members wait"
    told(membership, 0)
    membership.receive(0, 0, Done(0, 2), 0.3)
    attempt = CatchUp(1, 0, 1, 1)
    assert told(membership, 0) == [attempt]
    membership.receive(1, 1, CaughtUp(1), 0.4)
    assert told(membership, 0) == [View(3, (0, 1), 1)]


def test_a_source_that_is_lost_is_replaced() -> None:
    membership = Membership([(0,), (1,), (2,)], Policy(steps=9))
    for rank in range(3):
        membership.receive(rank, 0, Hello(0), 0.0)
    membership.connection_closed(0, 0, 0.1)
    membership.receive(1, 0, Report(0, 1, frozenset()), 0.1)
    membership.receive(2, 0, Report(0, 1, frozenset()), 0.1)
    membership.receive(0, 1, Hello(1), 0.2)
    first = next(message for message in told(membership, 0) if isinstance(message, CatchUp))
    membership.connection_closed(first.source, 0, 0.3)
    second = next(message for message in told(membership, 0) if isinstance(message, CatchUp))
    assert (second.attempt, second.source) == (2, 3 - first.source)
    membership.receive(0, 1, CaughtUp(1), 0.4)
    membership.receive(second.source, 0, Report(0, 2, frozenset()), 0.4)
    membership.receive(second.source, 0, Done(0, 3), 0.5)
    assert membership.members == (second.source,), "the first attempt brought nothing whole"


def test_a_restart_goes_back_to_the_checkpoint_and_waits() -> None:
    membership = both(mode="restart", restart_s=10.0, checkpoint_every=2, detect_s=100.0)
    for step in range(3):
        for rank in range(2):
            membership.receive(rank, 0, Done(step, 1), 0.1)
    membership.connection_closed(1, 0, 1.0)
    assert membership.step == 2
    for rank in range(2):
        membership.receive(rank, 1, Hello(1), 2.0)
    membership.tick(10.9)
    membership.outbox.messages.clear()
    assert membership.next_deadline_s() == 11.0
    membership.tick(11.0)
    assert told(membership, 1) == [View(2, (0, 1), 2)]


def test_a_step_begins_for_all_on_a_beat() -> None:
    membership = both(lead_s=0.01, beat_s=0.25)
    membership.receive(0, 0, Ready(0), 1.0)
    assert not told(membership, 0)
    membership.receive(1, 0, Ready(0), 1.0)
    assert told(membership, 0) == [Start(0, 1.25)]


def test_packets_are_what_they_were() -> None:
    view = View(3, (0, 2), 7, frozenset({(0, 1), (1, 4)}))
    assert unpack_message(pack_message(view)) == view
    with pytest.raises(MessageError, match="expected one of Hello"):
        unpack_message(b'["Goodbye", {}]')
    with pytest.raises(MessageError, match="fewer operations"):
        pack_message(View(1, (0,), 0, frozenset((0, number) for number in range(20_000))))

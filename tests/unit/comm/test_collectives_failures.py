"""Failures stay where they belong: communicators that lose a peer, are aborted, agree, shrink; peers that come back."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.comm.collectives import CollectiveTimeout, Communicator, Revoked
from testbed.comm.collectives.failure_scopes import Agreement, Scopes, Vote
from testbed.comm.transport import MemoryNetwork, PeerLost, TcpTransport, Transport, TransportError
from tests.unit.measure.ranks import (
    Places,
    Program,
    forked,
    in_memory,
    in_place,
    over_channels,
    over_tcp,
    through_slots,
    with_cost,
)

Runner = Callable[[int, Program], list[Any]]
RUNNERS: list[Runner] = [in_memory, with_cost, over_tcp, over_channels, in_place, through_slots]
runners = pytest.mark.parametrize("runner", RUNNERS, ids=lambda runner: runner.__name__)


def sum_of(communicator: Communicator) -> float:
    array = np.full(1000, float(communicator.transport.rank))
    communicator.all_reduce(array, algorithm="ring")
    assert (array == array[0]).all()
    return float(array[0])


def made(transport: Transport, *groups: list[int]) -> list[Communicator | None]:
    """Everybody and these groups, of which all ranks make each."""
    world = Communicator(transport, timeout_s=20)
    found: list[Communicator | None] = [world]
    for ranks in groups:
        own = ranks if transport.rank in ranks else [transport.rank]
        group = world.split(own)
        found.append(group if transport.rank in ranks else None)
    world.barrier()
    return found


# ---- scope


@runners
def test_a_lost_peer_fails_the_communicators_that_contain_it_and_no_others(runner: Runner) -> None:
    def program(transport: Transport) -> Any:
        world, near, mixed, rest = made(transport, [0, 1], [1, 2, 3], [0, 1, 2])
        assert world is not None
        if transport.rank == 3:
            world.sleep(0.2)  # the others are out of the barrier
            transport.abort("its card burnt")
            return None
        under_way = None if mixed is None else mixed.irecv(np.zeros(1), 0 if mixed.rank else 1)
        with pytest.raises(PeerLost, match="lost peer 3: it aborted: its card burnt"):
            world.barrier()
        if mixed is not None:
            assert under_way is not None
            with pytest.raises(PeerLost, match="lost peer 3"):  # though it waits for somebody else
                under_way.wait()
            with pytest.raises(PeerLost, match="lost peer 3"):
                sum_of(mixed)
            assert isinstance(mixed.failure, PeerLost)
        assert rest is not None
        rest.barrier()  # nobody leaves before
        if near is None:
            return None
        assert near.failure is None
        return [sum_of(near) for _ in range(3)]

    assert runner(4, program)[:3] == [[1.0] * 3, [1.0] * 3, None]


@runners
def test_a_goodbye_fails_only_who_still_waits_for_it(runner: Runner) -> None:
    def program(transport: Transport) -> Any:
        world = Communicator(transport, timeout_s=20)
        world.barrier()
        if transport.rank == 2:
            return None  # its transport is closed
        late = np.zeros(1)
        work = world.irecv(late, 1 - transport.rank)
        world.sleep(0.2)  # the goodbye comes meanwhile
        world.isend(np.ones(1), 1 - transport.rank)
        work.wait()
        with pytest.raises(PeerLost, match="lost peer 2: it closed its end"):
            world.irecv(late, 2).wait()
        return late[0]

    assert runner(3, program) == [1.0, 1.0, None]


@runners
def test_an_abort_of_one_communicator_reaches_its_members_and_leaves_the_others(runner: Runner) -> None:
    def program(transport: Transport) -> Any:
        world, group = made(transport, [0, 1, 2])
        assert world is not None
        words = None
        if group is not None:
            if group.rank == 1:
                group.progress()
                group.abort("changed its mind")
            with pytest.raises(Revoked) as caught:  # nobody sends what 0 and 2 wait for
                group.irecv(np.zeros(1), (group.rank + 1) % 3).wait()
            words = (caught.value.by, caught.value.reason)
            with pytest.raises(Revoked):
                group.barrier()
        return words, sum_of(world)

    assert runner(4, program) == [((1, "changed its mind"), 6.0)] * 3 + [(None, 6.0)]


@pytest.mark.parametrize("said", [b"", b"[]", b"{}", b'{"communicator": "x"}', b"[" * 4000])
def test_a_peer_that_tells_nonsense_is_lost(said: bytes) -> None:
    def program(transport: TcpTransport) -> None:
        world = Communicator(transport, timeout_s=20)
        world.barrier()
        if transport.rank == 1:
            transport.send_note(0, said)
            world.sleep(0.2)
        else:
            with pytest.raises(PeerLost, match="lost peer 1: it sent an invalid note"):
                world.irecv(np.zeros(1), 1).wait()

    over_tcp(2, program)


def test_a_note_longer_than_any_is_refused() -> None:
    def program(transport: TcpTransport) -> None:
        world = Communicator(transport, timeout_s=20)
        world.barrier()
        if transport.rank == 1:
            transport.send_note(0, bytes(5000))
            with pytest.raises(PeerLost):
                world.sleep(10)
        else:
            with pytest.raises(PeerLost, match="lost peer 1: its note announces 5000 bytes"):
                world.irecv(np.zeros(1), 1).wait()

    over_tcp(2, program)


# ---- agree and shrink


@runners
def test_the_living_shrink_and_go_on(runner: Runner) -> None:
    def program(transport: Transport) -> Any:
        world = Communicator(transport, [0, 0, 1, 1, 1], timeout_s=20)
        world.barrier()
        if transport.rank == 2:
            world.sleep(0.2)
            transport.abort("gone")
            return None
        with pytest.raises((PeerLost, Revoked)):  # lost, or told so by who has shrunk already
            world.irecv(np.ones(1), 2).wait()
        work = world.all_reduce(np.ones(100), async_op=True)
        left = world.shrink(name="left")
        with pytest.raises((PeerLost, Revoked)):
            work.wait()
        assert left.ranks == (0, 1, 3, 4)
        assert left.groups == (0, 0, 1, 1)
        found, flags = sum_of(left), left.agree(0b110 | left.rank)
        smaller = left.shrink(exclude=[0]) if left.rank else None
        return found, flags, None if smaller is None else sum_of(smaller)

    flags = 0b110 & 0b111
    assert runner(5, program) == [
        (8.0, flags, None),
        (8.0, flags, 8.0),
        None,
        (8.0, flags, 8.0),
        (8.0, flags, 8.0),
    ]


def test_who_does_not_take_part_is_named() -> None:
    one, _, _ = (Communicator(transport, timeout_s=0.05) for transport in MemoryNetwork(3).transports)
    with pytest.raises(
        CollectiveTimeout,
        match=r"agree #1 on rank 0: not done within 0.05 s; waits to receive from rank 1, 2",
    ):
        one.agree()
    with pytest.raises(ValueError, match="exclude: got this rank, 0, expected others"):
        one.shrink(exclude=[0])


@given(data=st.data(), size=st.integers(1, 6))
@settings(max_examples=500, deadline=None)
def test_an_agreement_is_the_same_for_all_that_live_whoever_dies_when(data: st.DataObject, size: int) -> None:
    members = [Agreement(rank, range(size)) for rank in range(size)]
    flags = [data.draw(st.integers(0, 7)) for _ in range(size)]
    living = set(range(size))
    channels: dict[tuple[int, int], list[Any]] = {}  # messages and, as the last, that the sender is gone
    unvoted = set(range(size))

    def post(sender: int, messages: list[tuple[int, Any]]) -> None:
        for position, (peer, message) in enumerate(messages):
            channels.setdefault((sender, peer), []).append(message)
            if len(living) > 1 and data.draw(st.integers(0, 9)) == 0:
                die(sender)  # in the middle of telling
                del messages[position + 1 :]
                return

    def die(rank: int) -> None:
        living.discard(rank)
        unvoted.discard(rank)
        for peer in range(size):
            if peer != rank:
                channels.setdefault((rank, peer), []).append(None)

    decided: dict[int, Vote] = {}
    while True:
        ready = [which for which, queue in channels.items() if queue and which[1] in living]
        choices: list[Any] = [*sorted(unvoted), *sorted(ready)]
        if not choices:
            break
        choice = data.draw(st.sampled_from(choices))
        if isinstance(choice, int):
            unvoted.discard(choice)
            post(choice, members[choice].vote(Vote(flags[choice], number=choice)))
        else:
            sender, receiver = choice
            message = channels[choice].pop(0)
            member = members[receiver]
            post(receiver, member.lose(sender) if message is None else member.receive(sender, message))
        for rank in living:
            found = members[rank].decided
            if found is not None:
                assert decided.setdefault(rank, found) == found  # it never changes
    outcomes = {rank: members[rank].decided for rank in living}
    assert None not in outcomes.values()
    assert len(set(outcomes.values())) == 1
    (outcome,) = set(outcomes.values())
    assert outcome is not None
    assert not outcome.out & living
    for rank in living:
        assert outcome.flags & ~flags[rank] == 0


def test_who_decides_is_told_of_a_loss_that_it_cannot_see() -> None:
    members = [Agreement(rank, range(4)) for rank in range(3)]
    queue = [(rank, message) for rank in range(3) for message in members[rank].vote(Vote(7))]
    queue += [(1, message) for message in members[1].lose(3)]  # only now, and only there
    while queue:
        sender, (receiver, message) = queue.pop(0)
        if receiver < 3:
            queue += [(receiver, answer) for answer in members[receiver].receive(sender, message)]
    assert {member.decided for member in members} == {Vote(7, frozenset({3}))}


@pytest.mark.parametrize("seed", range(6))
def test_ranks_that_are_killed_leave_the_others_agreed(seed: int) -> None:
    chance = random.Random(seed)
    victims = chance.sample(range(6), 2)
    at_s = {rank: chance.uniform(0.0, 0.05) for rank in victims}

    def program(transport: Transport) -> Any:
        group = Communicator(transport, timeout_s=20)
        while len(group.ranks) > 4:
            try:
                group.barrier()  # a victim may be killed before the others are out of it
                if transport.rank in victims:
                    signal.signal(signal.SIGALRM, lambda number, frame: os.kill(os.getpid(), signal.SIGKILL))
                    signal.setitimer(signal.ITIMER_REAL, 0.001 + at_s[transport.rank])
                while True:
                    sum_of(group)
            except TransportError:
                group = group.shrink()
        return list(group.ranks), sum_of(group)

    places = Places(6)
    left = sorted(set(range(6)) - set(victims))
    with forked(program, places, list(range(6)), close_timeout_s=0.3) as running:
        results = running.results(timeout_s=40)  # what timed out in a rank says more than that it hangs
    assert [results[rank] for rank in left] == [(left, float(sum(left)))] * 4
    places.close()


# ---- coming back


@pytest.mark.parametrize("back", [0, 2], ids=["who listens", "who dials"])
@pytest.mark.parametrize("kind", ["transport", "striped"])
def test_a_lost_rank_comes_back_as_another_incarnation(back: int, kind: str) -> None:
    places = Places(3)

    def greet(transport: Any) -> Any:
        return [exchange(transport, peer) for peer in range(3) if peer != transport.rank]

    def exchange(transport: Any, peer: int) -> float:
        heard = np.zeros(200_000)
        world = Communicator(transport, timeout_s=20)
        works = [world.irecv(heard, peer), world.isend(np.full(200_000, transport.rank + 1.0), peer)]
        for work in works:
            work.wait()
        return float(heard[-1])

    def first(transport: Any) -> None:
        Communicator(transport, timeout_s=20).barrier()
        os.kill(os.getpid(), signal.SIGKILL)

    def stays(transport: Any) -> Any:
        world = Communicator(transport, timeout_s=20)
        world.barrier()
        with pytest.raises(PeerLost, match=f"lost peer {back}"):
            world.irecv(np.zeros(1), back).wait()
        transport.forget(back)
        return greet(transport)

    stay = [rank for rank in range(3) if rank != back]
    options = {"connections": 2, "fast_bytes": 100} if kind == "striped" else {}
    if kind == "striped":
        places.transport = places.striped  # type: ignore[method-assign,assignment]
    with forked(first, places, [back], **options) as dying, forked(stays, places, stay, **options) as staying:
        dying.processes[0].join(20)
        time.sleep(0.1)
        with forked(greet, places, [back], incarnation=1, **options) as again:
            assert again.results() == [[float(rank + 1) for rank in stay]]
            expected = [[float(peer + 1) for peer in range(3) if peer != rank] for rank in stay]
            assert staying.results() == expected
    places.close()


def test_an_incarnation_that_has_been_replaced_is_turned_away() -> None:
    places = Places(2)
    with places.transport_closing(0) as listening:
        with places.transport_closing(1, incarnation=2) as later:
            waiting = listening.irecv(1, 5, memoryview(bytearray(1)))
            later.isend(0, 5, memoryview(b"x"))
            deadline_s = time.monotonic() + 10
            while not waiting.done and time.monotonic() < deadline_s:
                later.progress(0.01)
                listening.progress(0.01)
            assert waiting.error is None
        listening.progress(0.1)
        listening.forget(1)
        with places.transport_closing(1, incarnation=1, bootstrap_timeout_s=0.5) as earlier:
            request = earlier.isend(0, 5, memoryview(b"y"))
            while not request.done:
                earlier.progress(0.01)
                listening.progress(0.01)
            assert request.error is not None
            assert "no connection" in str(request.error)
            assert listening.refused >= 1
    places.close()


def test_connections_of_one_that_is_back_already_stay() -> None:
    places = Places(2)
    try:
        with places.transport_closing(0) as here:
            scopes = Scopes(here)
            with places.transport_closing(1, incarnation=2) as there:
                array = np.zeros(1, np.uint8)
                request = here.irecv(1, 0, array.data)
                there.isend(0, 0, np.ones(1, np.uint8).data)
                while not request.done:
                    here.progress(0.01)
                    there.progress(0.01)
                late = here.irecv(1, 1, array.data)
                scopes.peer_returned(1, lost=1)
                assert not late.done
                scopes.peer_returned(1, lost=2)
                assert isinstance(late.error, PeerLost)
    finally:
        places.close()

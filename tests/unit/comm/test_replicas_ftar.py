"""Fault-tolerant all-reduces with ranks that are lost at any moment: no hang, and all have the same exact sum."""

from __future__ import annotations

import random

import pytest

from testbed.comm.replicas import Policy, RingSettings
from testbed.comm.replicas.loss_policy import CatchUpMode, Mode
from testbed.comm.replicas.ring import ring_chunks
from testbed.comm.transport import BEST_EFFORT, MemoryNetwork, Request, TrafficClass, Transport
from testbed.contrib.conformance.harness import in_threads
from tests.unit.comm.replica_jobs import (
    NUMEL,
    Job,
    Mortal,
    Outcome,
    Processes,
    in_threads_with_a_kill,
    steps_of,
)

DETECT_S = 1.5


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("numel", [0, 1, 4, 60, 61])
@pytest.mark.parametrize("most", [1, 7, 1000])
def test_what_one_sends_is_what_the_next_expects(size: int, numel: int, most: int) -> None:
    plans = [ring_chunks(numel, size, position, most) for position in range(size)]
    for position, plan in enumerate(plans):
        assert plan.outgoing == plans[(position + 1) % size].incoming
        assert plan.outgoing[plan.own :] == plan.incoming[: len(plan.outgoing) - plan.own]
        assert all(0 < chunk.stop - chunk.start <= most for chunk in plan.outgoing)
    sent = sum(chunk.stop - chunk.start for plan in plans for chunk in plan.outgoing)
    assert sent == 2 * (size - 1) * numel


def test_with_nobody_lost_it_is_a_ring() -> None:
    found, records = in_threads_with_a_kill(4, 2, Policy(steps=3), 0, None, silent=False)
    for outcome in found:
        assert outcome is not None
        assert outcome.wrong == 0
        assert outcome.members == [((0, 1, 2, 3),) * 2] * 3
        assert outcome.stalls_s == []
        # a ring's share of what it reduces; acknowledgements are empty
        assert outcome.sent_bytes == 3 * 2 * 2 * 3 * (NUMEL * 4) // 4
    assert [record["event"] for record in records].count("committed") == 3


class Watched(Mortal):
    """Counts a rank's chunks that are not acknowledged, whenever it sends one more."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner, None)
        self.sent = self.most = 0
        self.acknowledgements: list[Request] = []

    def isend(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        if len(view):
            self.sent += 1
            taken = sum(request.done for request in self.acknowledgements)
            self.most = max(self.most, self.sent - taken)
        return super().isend(peer, tag, view, traffic)

    def irecv(self, peer: int, tag: int, view: memoryview, traffic: TrafficClass = BEST_EFFORT) -> Request:
        request = super().irecv(peer, tag, view, traffic)
        if not len(view):
            self.acknowledgements.append(request)
        return request


@pytest.mark.parametrize("in_flight", [1, 3])
def test_no_more_than_so_many_chunks_are_unacknowledged(in_flight: int) -> None:
    job = Job(3, 1, Policy(steps=2))
    network = MemoryNetwork(3)
    watched = [Watched(transport) for transport in network.transports]
    lines = [job.switchboard.connect(rank, 0) for rank in range(3)]

    def program(transport: Transport) -> Outcome:
        line = lines[transport.rank]
        return steps_of(transport, line, job.replicas, 2, operations=1, ring=RingSettings(4 * 20, in_flight))

    found = in_threads(3, watched.__getitem__, program)
    job.end()
    assert [outcome.wrong for outcome in found] == [0, 0, 0]
    assert [one.most for one in watched] == [in_flight] * 3


def test_checkpoints_go_to_the_next_replica_meanwhile() -> None:
    job = Job(3, 2, Policy(steps=6))
    network = MemoryNetwork(6)
    lines = [job.switchboard.connect(rank, 0) for rank in range(6)]

    def program(transport: Transport) -> Outcome:
        line = lines[transport.rank]
        return steps_of(
            transport, line, job.replicas, 6, operations=1, checkpoint_bytes=5000, checkpoint_every=2
        )

    found = in_threads(6, network.transports.__getitem__, program)
    job.end()
    ring_bytes = 6 * 4 * 4 * (NUMEL // 3)  # at least: blocks are of 333 or 334
    for rank, outcome in enumerate(found):
        assert outcome.wrong == 0
        assert outcome.checkpoints[:1] == [2]  # the last ones may not have come to their end
        sent = network.transports[rank].counters
        to = (rank + 2) % 6  # the rank at the same place in the next replica, which follows in the ring, too
        assert {peer for peer, own in sent.items() if own.bytes_sent} == {to}
        assert sent[to].bytes_sent - ring_bytes >= 2 * 5000


def run(seed: int) -> None:
    random_ = random.Random(seed)
    replicas, ranks = random_.choice([(2, 1), (3, 1), (4, 1), (3, 2)])
    policy = Policy(steps=3, detect_s=DETECT_S)
    victim = random_.randrange(replicas * ranks)
    silent = seed % 10 == 0
    calls = random_.randrange(400)
    found, records = in_threads_with_a_kill(replicas, ranks, policy, victim, calls, silent)
    lost = victim // ranks
    survivors = [outcome for rank, outcome in enumerate(found) if rank // ranks != lost]
    for outcome in survivors:
        assert outcome is not None
        assert outcome.left == ""
        assert outcome.wrong == 0
        assert len(outcome.members) == policy.steps
        assert all(stall_s < DETECT_S + 2.0 for stall_s in outcome.stalls_s)
    for place in range(ranks):
        same = [outcome.members for outcome in alike(survivors, place, ranks)]
        assert all(members == same[0] for members in same), "all have the sums of the same members"
    if found[victim] is None:  # else it was quicker than its end
        events = [(record["event"], record.get("replica")) for record in records]
        assert ("lost", lost) in events or records[-1]["event"] == "committed"


def alike(outcomes: list[Outcome | None], place: int, ranks: int) -> list[Outcome]:
    return [outcome for outcome in outcomes[place::ranks] if outcome is not None]


@pytest.mark.parametrize("tens", range(20))
def test_a_rank_is_lost_at_any_moment(tens: int) -> None:
    for seed in range(10 * tens, 10 * tens + 10):
        run(seed)


STEPS = 40


def run_processes(seed: int, mode: Mode = "ftar", catch_up: CatchUpMode = "non_blocking") -> None:
    """Over TCP; whoever is killed returns."""
    random_ = random.Random(seed)
    replicas, ranks = random_.choice([(2, 1), (3, 1), (2, 2)])
    policy = Policy(mode, catch_up, DETECT_S, steps=STEPS, checkpoint_every=3)
    job = Processes(replicas, ranks, policy, state_bytes=10_000)
    kills = [(random_.uniform(0.05, 0.6), random_.randrange(replicas * ranks)) for _ in range(2)]
    try:
        job.run(kills, return_s=random_.uniform(0.0, 0.1))
    finally:
        job.kill_rest()
    records = job.end()
    assert sum(outcome.wrong for outcome in job.outcomes.values()) == 0
    assert records[-1] == {**records[-1], "event": "committed", "step": STEPS - 1}
    for outcome in job.outcomes.values():
        assert all(stall_s < DETECT_S + 2.0 for stall_s in outcome.stalls_s)
    if not any(record["event"] == "restart" for record in records):
        for (_, incarnation), outcome in job.outcomes.items():
            assert outcome.left or not incarnation or outcome.caught_up_bytes == 10_000


@pytest.mark.parametrize("seed", range(6))
def test_processes_are_killed_and_return(seed: int) -> None:
    run_processes(seed, catch_up=("blocking", "non_blocking")[seed % 2])


def test_all_begin_again_from_the_checkpoint() -> None:
    run_processes(100, "restart")


@pytest.mark.thorough
@pytest.mark.parametrize("tens", range(20))
def test_processes_are_killed_at_any_moment(tens: int) -> None:
    for seed in range(1000 + 10 * tens, 1010 + 10 * tens):
        run_processes(seed, catch_up=("blocking", "non_blocking")[seed % 2])

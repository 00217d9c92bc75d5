"""Plans carried out over a transport: order, overlap, checked payloads, messages that wait for their receivers."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from testbed.comm.collectives import CollectiveTimeout, Communicator, traffic
from testbed.comm.transport import TrafficClass
from testbed.measure.ranks.executor import (
    Executor,
    PlanOutcome,
    ReceiveCredits,
    TimedOperations,
    credit_sockets,
)
from testbed.workload.plan import Computing, GroupCollective, JobPlan, Message, Operation, Pause
from tests.unit.measure.ranks import in_memory, over_tcp

NUMEL = 1000


def compute(seconds: float, *after: int) -> Computing:
    return Computing("busy", "compute", "forward", after, duration_s=seconds)


def send(peer: int, tag: int, *after: int) -> Message:
    return Message(f"to {peer}", f"to {peer}", "pipeline", after, peer, NUMEL, tag, sends=True)


def recv(peer: int, tag: int, *after: int) -> Message:
    return Message(f"from {peer}", f"from {peer}", "pipeline", after, peer, NUMEL, tag)


def gather(*after: int, collective: str = "all_gather") -> GroupCollective:
    return GroupCollective("together", "group", "shard", after, 0, collective, 2 * NUMEL, "ring")


def carry_out(
    transport: Any,
    plan: JobPlan,
    steps: int = 2,
    spoil: bool = False,
    sockets: Any = None,
    timeout_s: float = 5.0,
) -> PlanOutcome:
    communicator = Communicator(transport, timeout_s=timeout_s)
    groups = {}
    for number, (name, members) in enumerate(plan.groups):
        made = communicator.split(members, name)
        if made is not None:
            groups[number] = made
    credits = ReceiveCredits(sockets, communicator.rank, transport.wake) if plan.holds_receivers else None
    executor = Executor(plan, {0: communicator}, groups, "float32", timeout_s, credits)
    try:
        for step in range(steps):
            executor.prepare(salt=1000 * step)
            if spoil and communicator.rank == 0:
                executor._rooms["to 1"][NUMEL // 2] += 1
            communicator.barrier()
            done = executor.run(time.monotonic()).run_checks()
        communicator.barrier()
    finally:
        if credits is not None:
            credits.close()
    return done


PIPELINE = JobPlan(
    (
        (compute(0.01), send(1, 4, 0), compute(0.01), send(1, 6, 2), recv(1, 5), compute(0.01, 4), gather(5)),
        (recv(0, 4), recv(0, 6), compute(0.02, 0), send(0, 5, 2), compute(0.01, 1), gather(4)),
    ),
    (("both", (0, 1)),),
)


@pytest.mark.parametrize("run", [in_memory, over_tcp])
def test_a_plan_is_carried_out_in_its_order_and_all_of_it_checked(run: Any) -> None:
    first, second = run(2, lambda transport: carry_out(transport, PIPELINE))
    for done, operations in ((first, PIPELINE.ranks[0]), (second, PIPELINE.ranks[1])):
        assert done.wrong == 0
        for place, operation in enumerate(operations):
            for earlier in operation.after:
                assert done.spans[earlier][1] <= done.spans[place][0] + 1e-9
    assert (first.checked, second.checked) == (NUMEL + 2 * NUMEL, 2 * NUMEL + 2 * NUMEL)
    assert second.spans[4][0] >= second.spans[2][1]  # computing is one stream


def test_computing_lasts_from_when_it_could_begin() -> None:
    plan = JobPlan((tuple(compute(0.003) for _ in range(20)),))
    (done,) = in_memory(1, lambda transport: carry_out(transport, plan))
    spans = done.spans
    assert spans[-1][1] - spans[0][0] == pytest.approx(20 * 0.003, abs=1e-9)  # however late it woke up


def test_collectives_go_on_while_ranks_compute() -> None:
    operations: tuple[Operation, ...] = (gather(), compute(0.1), gather(collective="reduce_scatter"))
    plan = JobPlan((operations, operations), (("both", (0, 1)),))
    for done in over_tcp(2, lambda transport: carry_out(transport, plan)):
        assert done.wrong == 0
        assert done.spans[2][1] < done.spans[1][1]


def test_equal_collectives_that_are_under_way_at_once_have_memory_of_their_own() -> None:
    one = GroupCollective("one", "stream 1", "shard", (), 0, "all_reduce", 2 * NUMEL)
    other = replace(one, name="other", stream="stream 2", algorithm="halving_doubling")
    plan = JobPlan(((one, other),) * 2, (("both", (0, 1)),))
    for done in over_tcp(2, lambda transport: carry_out(transport, plan)):
        assert (done.wrong, done.checked) == (0, 4 * NUMEL)


def test_computing_goes_slower_while_messages_take_part_of_it() -> None:
    timed = TimedOperations(0.5)
    timed.compute(1, 10.0, 4.0)
    timed.pause(2, 10.0, 5.0)
    timed.slow(12.0, True)  # 2 of the 4 seconds are left, at half speed
    timed.slow(12.5, True)
    timed.compute(3, 13.0, 1.0)
    assert timed.next_s == 15.0
    assert timed.over(15.0) == {2: 15.0, 3: 15.0}
    timed.slow(15.5, False)  # a quarter of a second is left
    assert timed.next_s == 15.75
    assert timed.over(15.7) == {}
    assert timed.over(15.75) == {1: 15.75}
    assert timed.next_s is None


def test_a_rank_computes_slower_beside_its_messages() -> None:
    plan = JobPlan(((Pause("late", "late", "pause", (), 0.3), send(1, 1, 0)), (compute(0.05), recv(0, 1))))
    for share, took_s in ((0.0, 0.05), (0.5, 0.1)):

        def program(transport: Any, share: float = share) -> PlanOutcome:
            communicator = Communicator(transport)
            executor = Executor(plan, {0: communicator}, {}, "float32", 5.0, None)
            executor.computing_share = share
            executor.prepare(0)
            communicator.barrier()
            return executor.run(time.monotonic()).run_checks()

        begin_s, end_s = in_memory(2, program)[1].spans[0]
        assert end_s - begin_s == pytest.approx(took_s)


def test_a_collective_that_names_no_algorithm_takes_the_variants() -> None:
    nameless = GroupCollective("any", "any", "any", (), 0, "all_reduce", 4 * NUMEL, "")
    plan = JobPlan(((nameless,),) * 4, (("all", (0, 1, 2, 3)),))

    def steps(transport: Any) -> list[int]:
        communicator = Communicator(transport, [0, 0, 1, 1])
        executor = Executor(plan, {0: communicator}, {0: communicator}, "float32", 5.0, None)
        sent = []
        for salt, algorithm in enumerate(("ring", "hierarchical")):
            before = sum(counters.bytes_sent for counters in transport.counters.values())
            executor.prepare(salt)
            assert executor.run(time.monotonic(), algorithm).run_checks().wrong == 0
            sent.append(sum(counters.bytes_sent for counters in transport.counters.values()) - before)
        return sent

    expected = [traffic("all_reduce", name, 4 * NUMEL, 4, [0, 0, 1, 1]) for name in ("ring", "hierarchical")]
    for rank, sent in enumerate(over_tcp(4, steps)):
        own = [sum(size for (here, _), size in pairs.items() if here == rank) for pairs in expected]
        assert sent == own


def test_messages_go_by_connections_of_their_class() -> None:
    plan = JobPlan(
        (
            (send(1, 4), Message("keys", "keys", "context", (), 1, NUMEL, 5, sends=True)),
            (recv(0, 4), Message("keys", "keys", "context", (), 0, NUMEL, 5)),
        ),
        dscps={"pipeline": 46},
    )

    def run(transport: Any) -> set[int]:
        communicator = Communicator(transport, timeout_s=5.0)
        urgent = communicator.split((0, 1), traffic=TrafficClass(46))
        assert urgent is not None
        executor = Executor(plan, {0: communicator, 46: urgent}, {}, "float32", 5.0, None)
        executor.prepare(salt=0)
        done = executor.run(time.monotonic())
        communicator.barrier()
        assert done.wrong == 0
        return {traffic.dscp for traffic, peers in transport._pairs.items() if peers}

    for classes in over_tcp(2, run):
        assert classes == {0, 46}


def uneven(place: int, counts: tuple[int, ...], *, returns: bool) -> GroupCollective:
    after = (place,) if place >= 0 else ()
    numel = 3 * max(counts)
    return GroupCollective(
        "tokens", "g", "x", after, 0, "all_to_all_v", numel, "late_counts", counts, returns
    )


@pytest.mark.parametrize("run", [in_memory, over_tcp])
def test_uneven_all_to_alls_share_their_memory_and_are_checked(run: Any) -> None:
    most, least = (700, 20, 0), (1, 2, 3)
    operations = tuple(
        uneven(place - 1, counts, returns=returns)
        for place, (counts, returns) in enumerate(
            [(most, False), (most, True), (least, False), (least, True)]
        )
    )
    plan = JobPlan((operations,) * 3, (("all", (0, 1, 2)),))
    for done in run(3, lambda transport: carry_out(transport, plan)):
        assert done.wrong == 0
        assert done.checked == 4 * 3 * 700
        assert [span[0] for span in done.spans] == sorted(span[0] for span in done.spans)


def test_a_pause_takes_its_time_whatever_the_rank_does() -> None:
    plan = JobPlan(((Pause("turn", "turn", "turn", (), 0.05), compute(0.02), compute(0.02)),))
    (done,) = in_memory(1, lambda transport: carry_out(transport, plan))
    assert done.spans[0][1] - done.spans[0][0] == pytest.approx(0.05, abs=1e-9)
    assert done.spans[2][1] < done.spans[0][1]


def test_what_comes_wrong_is_counted() -> None:
    plan = JobPlan(((send(1, 4),), (recv(0, 4),)))
    _, second = in_memory(2, lambda transport: carry_out(transport, plan, spoil=True))
    assert second.wrong == 1
    assert second.checked == NUMEL


def test_a_message_waits_until_its_receiver_waits_for_it() -> None:
    operations: tuple[Operation, ...] = (compute(0.1), recv(0, 4, 0))
    plan = JobPlan(((send(1, 4),), operations), holds_receivers=True)
    sockets = credit_sockets(2)
    first, second = in_memory(2, lambda transport: carry_out(transport, plan, sockets=sockets))
    assert first.spans[0][1] >= second.spans[0][1] - 0.02
    assert second.wrong == 0
    early = JobPlan(plan.ranks)
    first, second = in_memory(2, lambda transport: carry_out(transport, early))
    assert first.spans[0][1] < second.spans[0][1]


def test_who_waits_in_vain_says_for_what() -> None:
    plan = JobPlan(((recv(1, 4),), (compute(0.0),)))

    def program(transport: Any) -> str:
        communicator = Communicator(transport, timeout_s=5)
        said = ""
        if transport.rank == 0:
            executor = Executor(plan, {0: communicator}, {}, "float32", 0.2, None)
            executor.prepare(0)
            with pytest.raises(CollectiveTimeout) as raised:
                executor.run(time.monotonic())
            said = str(raised.value)
        communicator.barrier()
        return said

    said, _ = in_memory(2, program)
    assert "irecv from rank 1, tag 4" in said

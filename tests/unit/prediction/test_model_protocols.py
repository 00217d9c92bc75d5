"""Protocols and what software costs, on the model: by hand, and as ranks in memory do it."""

from __future__ import annotations

import random

import pytest

from testbed.comm.transport import Registration, Slots, Software
from testbed.net.paths import Network, Path
from testbed.prediction.collective_messages import message_count
from testbed.prediction.simulation import simulate
from testbed.workload.plan import Computing, GroupCollective, JobPlan, Message, Operation

RATE, DELAY_S = 1000.0, 0.5  # bytes a second, one way


def network(ranks: int = 2) -> Network:
    """A link to each rank from each other one."""
    ends = [(here, there) for here in range(ranks) for there in range(ranks) if here != there]
    capacities = {f"{here} to {there}": RATE for here, there in ends}
    paths = {(here, there): Path(DELAY_S, (f"{here} to {there}",)) for here, there in ends}
    return Network(capacities, paths)


def message(numel: int, software: Software, late_s: float = 0.0) -> float:
    """Until rank 1 has so many bytes of rank 0's; late_s: when it begins to wait for them."""
    waits: tuple[Operation, ...] = (Computing("late", "main", "compute", (), late_s),) if late_s else ()
    receive = Message("from 0", "main", "test", (), 0, numel, 0)
    send = Message("to 1", "main", "test", (), 1, numel, 0, sends=True)
    spans = simulate(JobPlan(((send,), (*waits, receive))), network(), 1, software).spans
    return spans[1][-1][1]


def test_an_announced_message_waits_for_the_note_and_an_early_one_for_nothing() -> None:
    # a note of 16 bytes there, the message back
    note_s = 16 / RATE + DELAY_S
    assert message(1000, Software("rendezvous")) == pytest.approx(note_s + 1.0 + DELAY_S)
    assert message(1000, Software("rendezvous"), 2.0) == pytest.approx(2.0 + note_s + 1.0 + DELAY_S)
    assert message(1000, Software("eager")) == pytest.approx(1.0 + DELAY_S)
    costly = Software("rendezvous", message_s=0.25, note_s=0.125, handover_s=0.0625)
    assert message(1000, costly) == pytest.approx(2 * 0.125 + note_s + 2 * (0.25 + 0.0625) + 1.0 + DELAY_S)


def test_slots_are_a_window() -> None:
    """Ten chunks of 100 bytes through two slots: two go, and each that is freed lets one more go a round trip later."""
    software = Software("staged", Slots(100, 2))
    round_s = 0.1 + DELAY_S + 16 / RATE + DELAY_S
    # chunks 1, 3, 5, 7, 9 begin a round trip apart; the tenth right behind the ninth
    assert message(1000, software) == pytest.approx(4 * round_s + 0.2 + DELAY_S)
    wide = Software("staged", Slots(100, 10))
    assert message(1000, wide) == pytest.approx(1.0 + DELAY_S)


def test_slots_are_full_until_the_receiver_takes_them_out() -> None:
    software = Software("staged", Slots(100, 2))
    late = message(1000, software, 5.0)
    # two chunks are there; then as before, from the note of the first on
    note_s = 16 / RATE + DELAY_S
    assert late == pytest.approx(5.0 + note_s + 3 * (0.1 + DELAY_S + note_s) + 0.2 + DELAY_S)


def test_announced_slots_are_free_once_the_receiver_waits() -> None:
    note_s = 16 / RATE + DELAY_S
    slots = Slots(100, 10, announced=True)
    assert message(1000, Software("staged", slots)) == pytest.approx(note_s + 1.0 + DELAY_S)
    assert message(1000, Software("staged", slots), 2.0) == pytest.approx(2.0 + note_s + 1.0 + DELAY_S)
    window = Software("staged", Slots(100, 2, announced=True))
    round_s = 0.1 + DELAY_S + note_s
    assert message(1000, window) == pytest.approx(note_s + 4 * round_s + 0.2 + DELAY_S)


def test_chunks_are_copied_one_after_another_while_others_travel() -> None:
    copied = Software("staged", Slots(100, 10), byte_s=0.0005, message_s=0.01)
    # the first is copied before it goes and the last after it has come: the link is the slowest part
    assert message(1000, copied) == pytest.approx(0.06 + 1.0 + DELAY_S + 0.06)
    slow = Software("staged", Slots(100, 10), byte_s=0.002)
    assert message(1000, slow) == pytest.approx(10 * 0.2 + 0.1 + DELAY_S + 0.2)


def test_operations_cost_their_launch_and_their_completion_once() -> None:
    software = Software(launch_s=0.25, completion_s=0.125)
    assert message(1000, software) == pytest.approx(0.25 + 1.0 + DELAY_S + 0.125)
    reduction = GroupCollective("reduce", "main", "test", (), 0, "all_reduce", 1000, "ring")
    plan = JobPlan(((reduction,),) * 3, (("all", (0, 1, 2)),))
    plain = simulate(plan, network(3), 1).step_time_s
    for folded in (False, True):
        assert simulate(plan, network(3), 1, software, folded=folded).step_time_s == pytest.approx(
            plain + 0.375
        )


@pytest.mark.parametrize("protocol", ["eager", "rendezvous", "staged"])
def test_folded_collectives_take_what_their_messages_do(protocol: str) -> None:
    software = Software(protocol, Slots(100, 3), message_s=0.01, byte_s=1e-5, handover_s=0.02, launch_s=0.1)
    reduction = GroupCollective("reduce", "main", "test", (), 0, "all_reduce", 4000, "ring")
    plan = JobPlan(((reduction,),) * 3, (("all", (0, 1, 2)),))
    messages = simulate(plan, network(3), 1, software).step_time_s
    assert simulate(plan, network(3), 1, software, folded=True).step_time_s == pytest.approx(messages)


def test_computing_loses_speed_while_messages_are_under_way() -> None:
    software = Software(computing_share=0.5)
    send = Message("to 1", "net", "test", (), 1, 1000, 0, sends=True)
    receive = Message("from 0", "net", "test", (), 0, 1000, 0)
    plan = JobPlan(((send,), (receive, Computing("work", "main", "compute", (), 2.0))))
    # 1.5 s beside the message, at half speed, then 1.25 s at full speed
    assert simulate(plan, network(), 1, software).spans[1][1] == pytest.approx((0.0, 2.75))
    assert simulate(plan, network(), 1).spans[1][1] == pytest.approx((0.0, 2.0))


def test_chunks_count_as_messages() -> None:
    send = Message("to 1", "net", "test", (), 1, 1000, 0, sends=True)
    receive = Message("from 0", "net", "test", (), 0, 1000, 0)
    reduction = GroupCollective("reduce", "main", "test", (1,), 0, "all_reduce", 1000, "ring")
    plan = JobPlan(((send, reduction), (receive, reduction)), (("all", (0, 1)),))
    assert message_count(plan, 1, 10**6) == 1 + 4
    assert message_count(plan, 1, 10**6, 100) == 10 + 4 * 5


def test_registration_is_drawn_by_the_seed() -> None:
    rare = Registration(1e-4, 1e-3, 0.1, 0.25)
    drawn = [rare.draw_s(random.Random(seed)) for seed in range(400)]
    assert drawn == [rare.draw_s(random.Random(seed)) for seed in range(400)]
    assert 60 < sum(took_s == 0.1 for took_s in drawn) < 140
    assert all(1e-4 <= took_s <= 1e-3 for took_s in drawn if took_s != 0.1)

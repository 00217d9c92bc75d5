"""What each recovery sends, and when, over simulated networks that lose, delay and reorder."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.comm.transport.datagram.controls.base import Limits, Window
from testbed.comm.transport.datagram.erasure_codes import CODES, Code, get_code
from testbed.comm.transport.datagram.packets import ACK, Ack, unpack_ack
from testbed.comm.transport.datagram.receiver import Receiver
from testbed.comm.transport.datagram.recoveries import RECOVERIES, Item, Parity
from testbed.comm.transport.datagram.recoveries.erasure import Erasure
from testbed.comm.transport.datagram.rtt_estimator import RttEstimator
from tests.datagram_channel import Channel, Fate

SELECTIVE = ["selective_repeat", "nack", "erasure", "xor"]


def losing(*numbers: int, times: int = 1) -> Fate:
    """The first so many sendings of these packets are lost."""
    return lambda item, before: item in numbers and before < times


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_without_losses_all_comes_once_in_the_time_that_the_line_takes(recovery: str) -> None:
    channel = Channel(recovery)
    done_s = channel.transfer(100, 1, 60)
    parity = 25 + 1 + 15 if recovery in {"erasure", "xor"} else 0
    assert channel.received == list(range(161))
    assert len(channel.sent) == 161 + parity
    assert channel.sender.recovery.resent == 0
    assert done_s <= (161 + parity) * channel.packet_s + 0.005 + 1e-9


@pytest.mark.parametrize("recovery", RECOVERIES)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    messages=st.lists(st.integers(1, 120), min_size=1, max_size=5),
    loss=st.sampled_from([0.0, 0.01, 0.1, 0.3]),
    ack_loss=st.sampled_from([0.0, 0.2]),
    delays=st.lists(st.floats(1e-4, 0.02), min_size=1, max_size=4),
)
def test_all_comes_once_whatever_the_network_does(
    recovery: str, seed: int, messages: list[int], loss: float, ack_loss: float, delays: list[float]
) -> None:
    chance = random.Random(seed)
    if recovery == "go_back_n":  # over paths of unlike delay it sends as much as the square of the packets
        messages = [1 + packets % 40 for packets in messages]
    channel = Channel(
        recovery,
        delays_s=tuple(delays),
        loses=lambda item, times: chance.random() < loss,
        loses_ack=lambda number: chance.random() < ack_loss,
    )
    channel.transfer(*messages)
    assert sorted(channel.received) == list(range(sum(messages)))
    assert channel.sender.recovery.in_flight <= len(channel.sent)


def test_go_back_n_sends_all_behind_a_hole_again() -> None:
    channel = paced("go_back_n", loses=losing(150))
    channel.transfer(1000)
    assert channel.received == list(range(1000))
    numbers = [item for _, item in channel.sent]
    again = numbers[numbers.index(150) + 1 :].index(150)  # how many have left before the word of it came
    assert channel.sender.recovery.resent == again + 1
    assert 45 <= again <= 51  # a window


def test_selective_repeat_sends_the_hole_again_after_three_round_trips() -> None:
    channel = Channel("selective_repeat", loses=losing(20))
    channel.transfer(200)
    assert channel.sender.recovery.resent == 1
    first_s, again_s = [at_s for at_s, item in channel.sent if item == 20]
    assert again_s - first_s >= 3 * 0.010


def test_nack_sends_the_hole_again_after_one_round_trip() -> None:
    channel = Channel("nack", loses=losing(150), rate_bps=80e6)
    channel.transfer(400)
    assert channel.sender.recovery.resent == 1


def paced(recovery: str, **options: object) -> Channel:
    """A window of which nothing waits in queues, so that a round trip is what the delays say."""
    return Channel(
        recovery,
        control=Window,
        limits=Limits(1000, window_bytes=50_000, line_bps=80e6),
        **options,  # type: ignore[arg-type]
    )


def test_a_hole_is_mended_by_nack_in_one_round_trip_and_by_selective_repeat_in_three() -> None:
    took = {}
    for recovery in ("nack", "selective_repeat"):
        channel = paced(recovery, loses=losing(150))
        channel.transfer(1000)
        first_s, again_s = [at_s for at_s, item in channel.sent if item == 150]
        took[recovery] = again_s - first_s
    assert 0.010 <= took["nack"] <= 0.013
    assert 0.030 <= took["selective_repeat"] <= 0.036


def test_what_is_lost_twice_is_found_by_nack_each_time() -> None:
    channel = paced("nack", loses=losing(150, times=3))
    channel.transfer(1000)
    at = [at_s for at_s, item in channel.sent if item == 150]
    assert len(at) == 4
    assert max(later - earlier for earlier, later in pairwise(at)) < 0.013


@pytest.mark.parametrize("lost", [1, 8])
def test_erasure_sends_a_quarter_more_and_nothing_again_up_to_eight_of_forty(lost: int) -> None:
    chance = random.Random(lost)
    every: list[Item] = [*range(32), *(Parity(0, 32, number, 8) for number in range(8))]
    gone = chance.sample(every, lost)
    channel = Channel("erasure", loses=lambda item, times: item in gone)
    channel.transfer(32, 320)
    assert len(channel.sent) == 352 * 1.25
    assert channel.sender.recovery.resent == 0
    assert sorted(channel.received) == list(range(352))
    assert channel.receiver.recovered >= sum(isinstance(item, int) for item in gone)


def test_erasure_sends_again_what_nine_of_forty_leave_missing() -> None:
    channel = Channel("erasure", loses=losing(*range(9)))
    channel.transfer(32, 320)
    assert 1 <= channel.sender.recovery.resent <= 9
    assert sorted(channel.received) == list(range(352))


def test_xor_mends_one_of_each_class_and_not_two() -> None:
    one = Channel("xor", loses=losing(*range(8)))
    one.transfer(320)
    assert one.sender.recovery.resent == 0
    two = Channel("xor", loses=losing(0, 8))
    two.transfer(320)
    assert two.sender.recovery.resent == 2


@pytest.mark.parametrize("came", [True, False])
def test_a_group_ends_though_of_one_path_nothing_is_heard_again(came: bool) -> None:
    erasure = Erasure(RttEstimator(0.01), data=4, parity=2)
    erasure.extend(4)
    for _ in range(6):
        (item,) = erasure.next_items(1)
        erasure.on_sent(item, 1 if item == 3 else 0, 0.0)
    # of path 0 both packets of parity have come; that of path 1 has, too, but word of it is lost, or it has not
    erasure.on_ack(Ack(0, 4, 2, 0, 0, 0b1000 if came else 0), 0.01)
    if not came:
        assert erasure.next_items(9) == []
        erasure.on_timer(erasure.due_s)
    assert erasure.next_items(9) == [0, 1, 2] + [3] * (not came)


def test_paths_of_unlike_length_cause_nothing_to_be_sent_again() -> None:
    for recovery in SELECTIVE:
        channel = Channel(recovery, delays_s=(0.001, 0.004, 0.009))
        channel.transfer(600)
        assert channel.sender.recovery.resent == 0, recovery


@given(low=st.integers(0, 2**40), bits=st.integers(0, 2**300), path=st.integers(0, 255), nak=st.booleans())
def test_acknowledgements_survive_the_wire(low: int, bits: int, path: int, nak: bool) -> None:
    ack = Ack(path, 7, 5, 3, low, bits, nak)
    packet = ack.pack(99)
    assert len(packet) <= ACK.size + 38
    assert unpack_ack(memoryview(packet)) == ack


def test_a_receiver_says_what_it_has() -> None:
    receiver = Receiver()
    for serial, number in enumerate([0, 1, 4, 3]):
        receiver.on_packet(0, serial, marked=number == 4, asks=number == 3)
        assert receiver.wants(number)
        receiver.take(number, 0)
    (ack,) = receiver.acks()
    assert (ack.latest_serial, ack.received, ack.marked, ack.low, ack.bits) == (3, 4, 1, 2, 0b110)
    assert not receiver.wants(4)
    assert receiver.acks() == []


def test_an_acknowledgement_of_what_was_not_sent_is_refused() -> None:
    channel = Channel()
    channel.transfer(3)
    for ack in (Ack(0, 99, 1, 0, 3, 0), Ack(0, 2, 3, 0, 4, 0), Ack(1, 0, 1, 0, 3, 0)):
        with pytest.raises(ValueError, match="not sent"):
            channel.sender.on_ack(ack, channel.now_s)


@settings(max_examples=40, deadline=None)
@given(
    data=st.integers(1, 40),
    parity=st.integers(1, 12),
    seed=st.integers(0, 2**32),
    name=st.sampled_from(sorted(CODES)),
)
def test_codes_mend_what_they_say_they_mend(data: int, parity: int, seed: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    code: Code = get_code(name, data, parity)
    packets = rng.integers(0, 256, (data, 33), dtype=np.uint8)
    rows = code.encode(packets)
    assert rows.shape == (parity, 33)
    lost = sorted(rng.choice(data, rng.integers(0, min(data, parity) + 1), replace=False).tolist())
    come = sorted(rng.choice(parity, rng.integers(0, parity + 1), replace=False).tolist())
    if name == "mds":
        assert code.recoverable(lost, come) == (len(lost) <= len(come))
    if code.recoverable(lost, come):
        damaged = packets.copy()
        damaged[lost] = 0xEE
        code.recover(damaged, lost, {number: rows[number] for number in come})
        assert (damaged == packets).all()

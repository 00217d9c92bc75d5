"""How much each control lets go, over simulated networks, and by itself."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.comm.transport.datagram.controls import CONTROLS, Credits, Granter, Limits
from testbed.comm.transport.datagram.controls.aimd import Aimd
from testbed.comm.transport.datagram.controls.base import Window
from testbed.comm.transport.datagram.controls.credits import LOAD, UNIT_PACKETS
from testbed.comm.transport.datagram.controls.dcqcn import NOTICE_S, TIMER_S, Dcqcn
from testbed.comm.transport.datagram.controls.swift import Swift
from testbed.comm.transport.datagram.recoveries import Feedback
from testbed.comm.transport.datagram.rtt_estimator import RttEstimator
from testbed.comm.transport.datagram.spraying import Spray, State
from tests.datagram_channel import LIMITS, Channel


def round_trips(round_trip_s: float = 0.01) -> RttEstimator:
    found = RttEstimator(round_trip_s)
    found.add(round_trip_s)
    return found


@pytest.mark.parametrize("name", [name for name in CONTROLS if name != "credits"])
def test_each_control_ends_what_it_begins(name: str) -> None:
    channel = Channel("nack", control=CONTROLS[name], limits=replace(LIMITS, window_bytes=100_000))
    channel.transfer(2000)
    assert channel.received == list(range(2000))


def test_a_window_of_the_product_fills_the_line_and_no_queue() -> None:
    channel = Channel(control=Window, limits=replace(LIMITS, window_bytes=1.25 * 80e6 / 8 * 0.01))
    done_s = channel.transfer(5000)
    assert done_s == pytest.approx(5000 * channel.packet_s + 0.005, rel=0.002)
    assert channel.sender.recovery.in_flight <= 126
    assert channel.sender.recovery.round_trips.smoothed_s < 1.3 * 0.01


def test_a_window_that_is_small_takes_its_round_trips() -> None:
    channel = Channel(control=Window, limits=replace(LIMITS, window_bytes=20_000))
    assert channel.transfer(1000) == pytest.approx(50 * 0.0101, rel=0.05)


def test_a_window_for_late_hosts_grows_until_something_is_lost() -> None:
    limits = Limits(1000, window_bytes=50_000, line_bps=80e6, late_packets=100.0)
    control = Window(limits, round_trips())
    for turn in range(80):
        control.on_feedback(Feedback(acked=50), turn * 0.01)
    assert control.window_packets == 150
    control.on_feedback(Feedback(acked=50, holes=3), 1.0)
    assert control.window_packets == 100
    for turn in range(80):
        control.on_feedback(Feedback(acked=50), 1 + turn * 0.01)
    assert control.window_packets == 100


def test_a_window_leaves_no_slower_than_its_path_however_late_hosts_are() -> None:
    limits = Limits(1000, window_bytes=50_000, line_bps=1e9, path_bps=80e6)
    for round_trip_s, rate_bps in ((0.005, 80e6), (0.05, 80e6), (0.001, 400e6)):
        assert Window(limits, round_trips(round_trip_s)).rate_bps == pytest.approx(rate_bps)


def test_aimd_doubles_then_halves_then_grows_by_one_a_round_trip() -> None:
    control = Aimd(LIMITS, round_trips())
    control.on_feedback(Feedback(acked=10), 0.01)
    assert control.window_packets == 20
    control.on_feedback(Feedback(acked=19, lost=1), 0.02)
    assert control.window_packets == 10
    control.on_feedback(Feedback(lost=1), 0.025)  # of the same round trip
    assert control.window_packets == 10
    control.on_feedback(Feedback(acked=10), 0.03)
    assert control.window_packets == pytest.approx(11)
    control.on_feedback(Feedback(lost=1, timed_out=1), 0.5)
    assert control.window_packets == 2


def test_dcqcn_halves_at_the_first_mark_and_recovers() -> None:
    control = Dcqcn(replace(LIMITS, line_bps=40e9), round_trips())
    control.on_feedback(Feedback(marked=1), 1.0)
    assert control.rate_bps == 20e9  # alpha is 1 at first
    control.on_feedback(Feedback(marked=1), 1.0 + NOTICE_S / 2)
    assert control.rate_bps == 20e9  # one notice in 50 us
    control.on_feedback(Feedback(), 1.0 + TIMER_S * 1.001)
    assert control.rate_bps == 30e9  # half of the way back
    control.on_feedback(Feedback(), 1.0 + TIMER_S * 5.001)
    assert control.rate_bps == pytest.approx(40e9 - 20e9 / 2**5)
    control.on_feedback(Feedback(), 2.0)
    assert control.rate_bps == 40e9
    assert control.alpha < 1


def test_dcqcn_cuts_less_when_marks_are_rare() -> None:
    often, rarely = (Dcqcn(replace(LIMITS, line_bps=40e9), round_trips()) for _ in range(2))
    for number in range(20):
        often.on_feedback(Feedback(marked=1), number * NOTICE_S)
        rarely.on_feedback(Feedback(marked=1), number * 0.1)
    assert often.rate_bps < 0.05 * 40e9 < 0.5 * 40e9 < rarely.rate_bps


def test_steps_in_bits_per_second_scale_with_the_network() -> None:
    real = Dcqcn(Limits(1000, line_bps=40e9), round_trips())
    small = Dcqcn(Limits(1000, line_bps=40e6, rate_scale=1e-3), round_trips())
    for control in (real, small):
        control.on_feedback(Feedback(marked=1), 1.0)
        control.on_feedback(Feedback(), 1.0 + 40 * TIMER_S)
    assert small.rate_bps == pytest.approx(real.rate_bps / 1000)


def test_swift_grows_below_its_target_and_shrinks_above() -> None:
    control = Swift(LIMITS, round_trips())
    before = control.window_packets
    control.on_feedback(Feedback(acked=10, round_trip_s=0.01), 0.01)
    grown = control.window_packets
    assert grown > before
    control.on_feedback(Feedback(acked=10, round_trip_s=0.05), 0.06)
    assert control.window_packets == pytest.approx(grown * 0.5)  # by half at most
    control.on_feedback(Feedback(acked=10, round_trip_s=0.05), 0.061)
    assert control.window_packets == pytest.approx(grown * 0.5)  # once a round trip


def test_swift_keeps_the_queue_short() -> None:
    channel = Channel("nack", control=Swift)
    channel.transfer(8000)
    assert channel.sender.recovery.round_trips.smoothed_s < 2 * 0.01
    # a packet more each round trip is slow to win back what the first overshoot costs, on a path that holds a hundred
    assert channel.now_s < 1.6 * 8000 * channel.packet_s


@settings(max_examples=40, deadline=None)
@given(
    wanted=st.lists(st.integers(1, 300), min_size=1, max_size=40),
    late_s=st.lists(st.floats(0, 0.01), min_size=1, max_size=20),
)
def test_grants_are_as_quick_as_the_port_and_everybody_has_all(
    wanted: list[int], late_s: list[float]
) -> None:
    granter = Granter(1e9, 9014)
    for sender, packets in enumerate(wanted):
        granter.request(sender, packets)
    now_s, total, turn = 0.0, 0, 0
    while granter.due_s < math.inf:
        now_s = max(now_s, granter.due_s) + late_s[turn % len(late_s)]
        turn += 1
        had = sum(granter.granted(sender) for sender in range(len(wanted)))
        granter.pop_grants(now_s)
        total = sum(granter.granted(sender) for sender in range(len(wanted)))
        assert total > had
        rate = 1e9 * LOAD / 9014 / 8
        assert total <= now_s * rate + 2 * UNIT_PACKETS
    assert [granter.granted(sender) for sender in range(len(wanted))] == wanted


def test_grants_go_round() -> None:
    granter = Granter(math.inf, 9014)
    granter.request("a", 100)
    granter.request("b", 3)
    assert granter.pop_grants(0.0) == [("a", 100), ("b", 3)]
    granter.forget("a")
    assert granter.granted("a") == 0


def test_credits_let_go_what_is_granted() -> None:
    channel = Channel(control=Credits)
    sender = channel.sender
    sender.extend(20)
    assert sender.next_items(64, 0.0) == []
    assert sender.wanted_credits(0.0) == 20
    assert sender.wanted_credits(0.0) is None  # it has been told
    assert sender.wanted_credits(1.0) == 20  # but perhaps it was lost
    control = sender.control
    assert isinstance(control, Credits)
    control.grant(5)
    control.grant(3)  # came late
    assert sender.next_items(64, 1.0) == [0, 1, 2, 3, 4]
    for item in range(5):
        sender.on_sent(item, 0, 1.0)
    assert sender.next_items(64, 1.0) == []


def test_marks_skip_a_path_once_and_losses_deny_it() -> None:
    spray = Spray(3)
    assert [spray.choose(0.0) for _ in range(4)] == [0, 1, 2, 0]
    spray.record(1, received=5, lost=0, marked=1, now_s=0.0, round_trip_s=0.01)
    assert [spray.choose(0.0) for _ in range(5)] == [2, 0, 1, 2, 0]
    spray.record(2, received=5, lost=2, marked=0, now_s=0.0, round_trip_s=0.01)
    assert spray.states[2] is State.DENIED
    assert [spray.choose(0.01) for _ in range(4)] == [1, 0, 1, 0]
    # tried again after eight round trips: one packet, and with what becomes of it
    assert sorted(spray.choose(0.09) for _ in range(3)) == [0, 1, 2]
    assert [spray.choose(0.09) for _ in range(4)].count(2) == 0
    spray.record(2, received=1, lost=0, marked=0, now_s=0.1, round_trip_s=0.01)
    assert spray.states == [State.GOOD] * 3


@pytest.mark.parametrize(("loss", "least", "most"), [(0.0, 0.5, 0.5), (0.005, 0.42, 0.5), (1.0, 0.0, 0.01)])
def test_a_path_that_loses_little_keeps_its_share(loss: float, least: float, most: float) -> None:
    chance, spray, sent = random.Random(1), Spray(2), [0, 0]
    told: list[list[bool]] = [[], []]
    for turn in range(400):  # of a round trip each; what became of packets is told in quarters of the next
        for quarter in range(4):
            for path, came in enumerate(told):
                part = came[quarter * len(came) // 4 : (quarter + 1) * len(came) // 4]
                if part:
                    at_s = (turn + quarter / 4) * 0.01
                    spray.record(path, sum(part), len(part) - sum(part), 0, at_s, 0.01)
        told = [[], []]
        for _ in range(40):
            path = spray.choose((turn + 0.9) * 0.01)
            sent[path] += 1
            told[path].append(path == 1 or chance.random() >= loss)
    assert least <= sent[0] / sum(sent) <= most


def test_what_was_sent_before_a_path_was_denied_does_not_count_as_its_trial() -> None:
    spray = Spray(2)
    spray.record(0, received=5, lost=2, marked=0, now_s=0.0, round_trip_s=0.01)
    spray.record(0, received=5, lost=3, marked=0, now_s=0.005, round_trip_s=0.01)
    assert [spray.choose(0.079) for _ in range(3)] == [1, 1, 1]
    assert 0 in [spray.choose(0.081) for _ in range(2)]  # eight round trips after it was denied, not more
    spray.record(0, received=0, lost=1, marked=0, now_s=0.1, round_trip_s=0.01)
    assert [spray.choose(0.25) for _ in range(3)] == [1, 1, 1]
    assert 0 in [spray.choose(0.261) for _ in range(2)]  # sixteen after the trial failed


def test_a_single_loss_denies_nothing() -> None:
    spray = Spray(2)
    spray.record(0, received=5, lost=1, marked=0, now_s=0.0, round_trip_s=0.01)
    spray.record(0, received=5, lost=1, marked=0, now_s=1.0, round_trip_s=0.01)
    assert spray.states == [State.GOOD, State.GOOD]

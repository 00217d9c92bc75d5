"""Packets one by one, against closed forms and standards that others wrote."""

from __future__ import annotations

import math
from functools import partial
from random import Random
from statistics import mean

import pytest

from testbed.clock import KERNEL_TICK_S
from testbed.comm.transport.channels import StripeSettings
from testbed.net.paths.congestion import Growth
from testbed.net.paths.congestion.cubic import CubicGrowth
from testbed.net.paths.congestion.reno import RenoGrowth
from testbed.net.paths.hops import PacketHop, PacketPath
from testbed.prediction.events import Event
from testbed.prediction.packets.bbr import WindowedMax
from testbed.prediction.packets.connections import striped_pair
from testbed.prediction.packets.links import FramePath, LinkQueue
from testbed.prediction.packets.send_queue import Packet
from testbed.prediction.packets.sender import Sender
from testbed.prediction.packets.timers import Timer, timer_s
from tests.unit.net.packet_path import FRAME, PACKET_S, PAYLOAD, RATE_BPS, Clock, Never, Path


def test_a_packet_takes_its_time_at_each_hop_and_the_delay() -> None:
    assert Path(0.003).took_s(1) == pytest.approx(PACKET_S / 10 + PACKET_S + 0.003)
    assert Path(0.003).took_s(10) == pytest.approx(PACKET_S / 10 + 10 * PACKET_S + 0.003)


@pytest.mark.parametrize("growth", [RenoGrowth, CubicGrowth, None])
def test_a_long_message_takes_what_the_link_needs_for_it(growth: type[Growth] | None) -> None:
    took_s = Path(0.0005, 1000).took_s(20_000, growth)
    assert 2.0 < took_s < 1.05 * 2.0


@pytest.mark.parametrize("growth", [RenoGrowth, CubicGrowth, None])
def test_links_without_delay_and_rate_take_no_time(growth: type[Growth] | None) -> None:
    # as a model has them whose calibration tells of no latency within a building
    clock, there = Clock(), []
    hop, back = (PacketHop(name, math.inf, 0.0, math.inf) for name in ("there", "back"))
    path = PacketPath((hop,), (back,), growth, PAYLOAD)
    sender = Sender(clock, path, [LinkQueue(hop, None)], [LinkQueue(back, None)], math.inf, Random(1))
    sender.send(1000 * PAYLOAD, Event(), lambda: None, lambda: there.append(clock.now_s))
    clock.run()
    assert there == [pytest.approx(0.0, abs=1e-3)]


def test_windows_double_in_each_round_trip() -> None:
    # 10, 20, 40, 80 packets of RFC 6928 and 5681: the last of 150 leaves in the fourth round trip
    delay_s = 0.1
    for packets, rounds in ((10, 0), (30, 1), (70, 2), (150, 3)):
        took_s = Path(delay_s).took_s(packets)
        assert took_s == pytest.approx(rounds * 2 * delay_s + delay_s, abs=0.02)


@pytest.mark.parametrize("loss", [0.002, 0.01])
def test_renos_window_is_that_of_independent_losses(loss: float) -> None:
    # 1.31 over the root (Ott, Kemperman and Mathis 1996), less what delayed acknowledgements leave unused
    delay_s, packets = 0.05, int(40 / loss)

    def window(seed: int) -> float:
        took_s = Path(delay_s, loss=loss, draw=Random(seed)).took_s(packets)
        return packets * 2 * delay_s / took_s

    assert mean(map(window, range(8))) == pytest.approx(1.31 / math.sqrt(loss), rel=0.25)


def test_a_loss_that_three_packets_tell_of_costs_a_round_trip_and_half_the_window() -> None:
    path = Path(0.05, loss=0.5, draw=Never(20))
    sender = path.sender()
    there: list[float] = []
    sender.send(60 * PAYLOAD, Event(), lambda: None, lambda: there.append(path.clock.now_s))
    path.clock.run()
    clean_s = Path(0.05).took_s(60)
    assert sender.retransmitted == 1
    assert 0 <= there[0] - clean_s < 2 * 2 * 0.05 + 0.01
    # 40 at most were under way
    assert sender._control.window < 35


def test_a_last_packets_loss_is_mended_by_a_probe() -> None:
    # RFC 8985: a probe, two round trips and 200 ms later as one packet alone may wait for its acknowledgement
    path = Path(0.05, loss=0.5, draw=Never(9))
    took_s = path.took_s(10)
    clean_s = Path(0.05).took_s(10)
    assert path.retransmitted == 1
    assert 2 * 0.1 + 0.2 <= took_s - clean_s <= 2 * 0.1 + 0.2 + 9 * KERNEL_TICK_S


@pytest.mark.parametrize("growth", [RenoGrowth, CubicGrowth, None])
def test_a_first_window_that_is_lost_waits_for_the_least_timeout(growth: type[Growth] | None) -> None:
    path = Path(0.01, loss=0.5, draw=Never(*range(10)))
    took_s = path.took_s(10, growth)
    assert path.retransmitted >= 10
    # nothing was heard of data, so that no probe is sent; Linux' least timeout, and packet by packet from then on
    assert 0.2 <= took_s < 0.2 + 6 * 0.02 + 2 * KERNEL_TICK_S


def test_a_queue_drops_what_it_has_no_room_for() -> None:
    clock, hop = Clock(), PacketHop("link", RATE_BPS, 0.0, 5 * FRAME)
    line = LinkQueue(hop, None)
    # one is being sent, five wait
    come = [line.take(clock.now_s, FRAME) for _ in range(8)]
    assert come[:6] == [pytest.approx((place + 1) * PACKET_S) for place in range(6)]
    assert come[6:] == [None, None]
    assert (line.sent, line.dropped) == (6, 2)
    assert line.take(2.5 * PACKET_S, FRAME) == pytest.approx(7 * PACKET_S)


def test_a_queue_has_room_for_what_does_not_wait_any_more() -> None:
    # against all that was ever taken, looked through each time
    draw, line = Random(7), LinkQueue(PacketHop("link", RATE_BPS, 0.0, 8 * FRAME), None)
    now_s, taken = 0.0, list[tuple[float, int]]()
    dropped = 0
    for _ in range(3000):
        now_s += draw.choice((0.0, 0.2, 0.8, 1.5)) * PACKET_S * draw.random()
        size_bytes = draw.randrange(64, FRAME)
        waiting_bytes = sum(size for begins_s, size in taken if begins_s > now_s)
        begins_s = max(now_s, line.free_s)
        there_s = line.take(now_s, size_bytes)
        if begins_s > now_s and waiting_bytes + size_bytes > 8 * FRAME:
            assert there_s is None
            dropped += 1
        else:
            assert there_s == pytest.approx(begins_s + size_bytes * PACKET_S / FRAME)
            taken.append((begins_s, size_bytes))
    assert line.dropped == dropped > 100


def test_frames_that_come_at_once_go_in_the_order_in_which_they_were_sent() -> None:
    clock, come = Clock(), list[int]()

    def there(packet: Packet) -> None:
        come.append(packet.number)

    ways = [
        FramePath(clock, [LinkQueue(PacketHop("link", RATE_BPS, 0.01, math.inf), None)], there)
        for _ in range(2)
    ]
    # the second frames of both come at the same time, that of the second way was sent first
    for number, way in enumerate((0, 1, 1, 0)):
        packet = Packet(number, PAYLOAD)
        packet.frame_bytes = FRAME
        ways[way].enter(packet)
    clock.run()
    assert come == [0, 1, 2, 3]


def test_an_acknowledgement_of_one_packet_waits_for_the_next_one_or_40_ms() -> None:
    # RFC 9293 has every second full one acknowledged; Linux' first 16 are at once, then it waits as below
    path = Path(0.001)
    sender, sent = path.sender(), list[int]()

    def send(packets: int) -> None:
        sender.send(packets * PAYLOAD, Event(), lambda: None, lambda: None)

    for number in range(16):
        path.clock.call_at(0.01 * number, partial(send, 1))
    for at_s, packets in ((0.3, 2), (0.32, 2), (0.33, 2), (0.4, 1)):
        path.clock.call_at(at_s, partial(send, packets))
    for at_s in (0.29, 0.35, 0.44, 0.443):
        path.clock.call_at(at_s, lambda: sent.append(path.back_line.sent))
    path.clock.run()
    assert sent == [16, 19, 19, 20]


def test_bytes_are_there_once_and_in_order_whatever_is_lost() -> None:
    path = Path(0.002, 20, loss=0.05, draw=Random(3))
    sender = path.sender(CubicGrowth)
    come: list[int] = []
    for number in range(50):
        sender.send((number % 7 + 0.3) * PAYLOAD, Event(), lambda: None, partial(come.append, number))
    path.clock.run()
    assert come == list(range(50))
    assert sender.retransmitted >= path.line.lost + path.line.dropped > 0


def test_two_that_share_a_link_come_to_halves() -> None:
    path = Path(0.005, 100)
    senders = [path.sender(), path.sender()]
    there: list[float] = []
    for sender in senders:
        sender.send(20_000 * PAYLOAD, Event(), lambda: None, lambda: there.append(path.clock.now_s))
    path.clock.run()
    assert max(there) == pytest.approx(4.0, rel=0.05)
    assert min(there) > 0.75 * max(there)


def test_bbr_keeps_the_queue_short_where_reno_fills_it() -> None:
    # twice the product of bandwidth and delay is what it has under way at the most
    product = 0.02 / PACKET_S

    def most(growth: type[Growth] | None) -> tuple[float, int]:
        path = Path(0.01, 10 * product)
        took_s = path.took_s(30_000, growth)
        return took_s, path.line.dropped

    bbr_s, bbr_dropped = most(None)
    assert bbr_s < 1.08 * 3.0
    assert bbr_dropped == 0
    _, reno_dropped = most(RenoGrowth)
    assert reno_dropped > 0


def test_a_sender_goes_on_when_its_buffer_has_room() -> None:
    path = Path(0.01)
    own = PacketPath((path.hop,), (path.back,), RenoGrowth, PAYLOAD)
    sender = Sender(path.clock, own, [path.line], [path.back_line], 5 * PAYLOAD, Random(1))
    taken = [Event() for _ in range(3)]
    at_s: list[float] = []
    for event in taken:
        event.and_then(lambda: at_s.append(path.clock.now_s))
        sender.send(4 * PAYLOAD, event, lambda: None, lambda: None)
    path.clock.run()
    # the second one once the first is acknowledged but for a packet's worth, a round trip later
    assert at_s[0] == 0.0
    assert at_s[1] == pytest.approx(0.02 + 4 * PACKET_S, abs=3 * PACKET_S)
    assert at_s[2] > at_s[1]


def test_segments_go_round_and_wait_for_word_of_those_before() -> None:
    path = Path(0.01)
    there, back = [path.sender() for _ in range(2)], [path.sender() for _ in range(2)]
    pair = striped_pair(StripeSettings(2, 4096, outstanding=1, fast_bytes=64), there, back)
    come: list[float] = []
    taken = Event()
    pair.send(4 * 4096, taken, lambda: come.append(path.clock.now_s))
    pair.send(64, Event(), lambda: come.append(-path.clock.now_s))
    path.clock.run()
    # two segments at once, two more when these are acknowledged; what is small goes at once and is not waited for
    assert come[0] == pytest.approx(-0.01, abs=1e-3)
    assert come[1] == pytest.approx(0.03, abs=2e-3)
    assert taken.done


def test_timers_go_by_jiffies_and_the_last_one_counts() -> None:
    clock, rung = Clock(), list[tuple[str, float]]()
    clock.now_s = 0.004
    timer = Timer(clock)
    timer.set(0.25, lambda: rung.append(("first", clock.now_s)))
    timer.set(0.011, lambda: rung.append(("second", clock.now_s)))
    clock.run()
    assert [name for name, _ in rung] == ["second"]
    assert rung[0][1] == pytest.approx(0.016)
    timer.set(0.5, lambda: rung.append(("third", clock.now_s)))
    timer.stop()
    clock.run()
    assert len(rung) == 1


@pytest.mark.parametrize(
    ("ahead_s", "apart_s"),
    [(0.001, 0.001), (0.04, 0.001), (0.062, 0.001), (0.063, 0.008), (0.2, 0.008), (0.504, 0.064)],
)
def test_timers_go_by_the_kernels_wheel(ahead_s: float, apart_s: float) -> None:
    # kernel/time/timer.c has the levels for HZ=1000; none is early. Seen on packets: acknowledgements that are delayed
    # for 40 ms go after 40.0 to 41.0
    late_s = [
        timer_s(now_s, ahead_s) - now_s - ahead_s for now_s in (number * 0.00037 for number in range(1000))
    ]
    assert 0 <= min(late_s) < max(late_s) <= apart_s + 1e-9
    assert max(late_s) > 0.9 * apart_s


def test_the_greatest_of_the_last_rounds_is_kept() -> None:
    greatest = WindowedMax(10)
    draw = Random(5)
    values: list[tuple[int, float]] = []
    for at in range(200):
        value = draw.random()
        greatest.add(at, value)
        values.append((at, value))
        best = max(own for when, own in values if at - when <= 10)
        # a filter of three never says more, and forgets none that is still the greatest before others take its place
        assert greatest.value <= best
        assert greatest.value >= value


def test_acknowledgements_of_one_gap_go_together_after_the_first_ones() -> None:
    # of 59 behind it three at once, then one in a millisecond; two for each other pair
    path = Path(0.02, loss=0.5, draw=Never(70))
    sender = path.sender()
    sender.send(140 * PAYLOAD, Event(), lambda: None, lambda: None)
    path.clock.run()
    assert sender.retransmitted == 1
    assert path.back_line.sent < 140 / 2 + 16


@pytest.mark.parametrize("growth", [RenoGrowth, CubicGrowth])
def test_a_timeout_for_what_was_only_late_is_undone(growth: type[Growth]) -> None:
    # Eifel (RFC 3522): others have the link for longer than the timer runs; nothing is lost, and all goes on as before
    path, others_s = Path(0.01), 0.8
    sender = path.sender(growth)
    sender.send(60 * PAYLOAD, Event(), lambda: None, lambda: None)
    path.clock.run()
    window, begun_s, there = sender._control.window, path.clock.now_s, list[float]()
    for _ in range(int(others_s / PACKET_S)):
        path.line.take(begun_s, FRAME)
    sender.send(40 * PAYLOAD, Event(), lambda: None, lambda: there.append(path.clock.now_s - begun_s))
    path.clock.run()
    assert sender.retransmitted > 0  # it did time out
    assert sender._control.window >= window
    assert there[0] == pytest.approx(others_s + 0.01 + 40 * PACKET_S, abs=4 * PACKET_S)

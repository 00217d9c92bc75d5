"""Connections whose both ends send, packet by packet: what one direction does to the other."""

from __future__ import annotations

import math
from random import Random

import pytest

from testbed.net.paths.congestion import Growth
from testbed.net.paths.congestion.cubic import CubicGrowth
from testbed.net.paths.congestion.reno import RenoGrowth
from testbed.net.paths.hops import PacketHop, PacketPath
from testbed.prediction.events import Event
from testbed.prediction.packets.bbr_policer import PolicerDetector
from testbed.prediction.packets.links import LinkQueue
from testbed.prediction.packets.send_queue import Packet
from testbed.prediction.packets.sender import Sender
from tests.unit.net.packet_path import PAYLOAD, RATE_BPS, Clock, Never


class BothWays:
    """Two ends, each with a card and a link to the other one."""

    def __init__(
        self,
        growth: type[Growth] | None = RenoGrowth,
        delay_s: float = 0.01,
        losses: tuple[Random | None, Random | None] = (None, None),
        loss: float = 0.5,
        *,
        joined: bool = True,
    ) -> None:
        self.clock = Clock()
        hops = [PacketHop(name, RATE_BPS, delay_s, math.inf, loss) for name in ("there", "back")]
        # a card ten times as quick, whose queue has room for all
        card = PacketHop("card", 10 * RATE_BPS, 0.0, math.inf)
        self.lines = [LinkQueue(hop, draw) for hop, draw in zip(hops, losses, strict=True)]
        self.senders = [
            Sender(
                self.clock,
                PacketPath((card, hops[way]), (hops[1 - way],), growth, PAYLOAD),
                [LinkQueue(card, None), self.lines[way]],
                [self.lines[1 - way]],
                math.inf,
                Random(1),
            )
            for way in (0, 1)
        ]
        if joined:
            self.senders[0].join(self.senders[1])
        self.come: list[list[float]] = [[], []]

    def send(self, way: int, packets: float) -> None:
        come = self.come[way]
        self.senders[way].send(
            packets * PAYLOAD, Event(), lambda: None, lambda: come.append(self.clock.now_s)
        )

    def frames(self, packets: float = 400) -> tuple[int, int]:
        """That each line has carried when as much has come both ways."""
        for way in (0, 1):
            self.send(way, packets)
        self.clock.run()
        assert list(map(len, self.come)) == [1, 1]
        return self.lines[0].sent, self.lines[1].sent


def test_data_tells_of_what_came_so_that_few_packets_do_nothing_else() -> None:
    # alone each acknowledges every second packet by one of its own; seen on packets that are paced: 14 % do no more
    apart, together = (BothWays(None, joined=joined).frames(4000) for joined in (False, True))
    assert min(apart) >= 4000 + 2000
    assert max(together) < 1.2 * 4000


@pytest.mark.parametrize("growth", [RenoGrowth, CubicGrowth, None])
@pytest.mark.parametrize("lost", [(40, 41, 60), (100,), (40, 70, 71, 72, 90, 130)])
def test_all_comes_whatever_either_way_loses(growth: type[Growth] | None, lost: tuple[int, ...]) -> None:
    draws = Never(*lost), Never(*(number + 7 for number in lost))
    both = BothWays(growth, losses=draws)
    both.frames()
    assert both.lines[0].lost == len(draws[0].lost)
    both.send(0, 20)
    both.clock.run()
    assert len(both.come[0]) == 2


@pytest.mark.parametrize("growth", [RenoGrowth, CubicGrowth, None])
def test_all_comes_where_much_is_lost_both_ways(growth: type[Growth] | None) -> None:
    both = BothWays(growth, losses=(Random(3), Random(4)), loss=0.03)
    for number in range(30):
        for way in (0, 1):
            both.send(way, number % 7 + 0.3)
    both.clock.run()
    assert list(map(len, both.come)) == [30, 30]
    assert all(times == sorted(times) for times in both.come)


def test_what_is_sent_again_beside_word_of_gaps_goes_in_two_packets() -> None:
    # RFC 2018: a block is 8 bytes, and 4 beside them, which a full packet has no room for; three go beside timestamps.
    # Seen on packets: 8,948 bytes are sent again as 8,920 and 28, as 8,928 and 20, as 8,936 and 12
    both = BothWays(losses=(Never(60, 80), Never(60, 80)))
    sizes: list[int] = []
    scoreboard = both.senders[0]._scoreboard
    fly = scoreboard.retransmit

    def flown(packet: Packet, now_s: float) -> None:
        sizes.append(packet.size_bytes)
        fly(packet, now_s)

    scoreboard.retransmit = flown  # type: ignore[method-assign]
    both.frames(200)
    assert sizes
    assert set(sizes) <= {PAYLOAD} | {
        size for blocks in (1, 2, 3) for size in (PAYLOAD - 4 - 8 * blocks, 4 + 8 * blocks)
    }
    assert both.senders[0].retransmitted > 2


def test_a_connection_that_sends_one_way_sends_again_what_it_has_sent() -> None:
    both = BothWays(losses=(Never(60, 80), None))
    both.send(0, 200)
    both.clock.run()
    assert both.senders[0].retransmitted == 2


def test_losses_that_a_timer_tells_bbr_of_leave_its_window() -> None:
    # `tcp_rack_reo_timeout` tells no control that decides by itself; one packet alone is behind twenty that are lost
    both = BothWays(None, losses=(Never(*range(179, 199)), None))
    windows: list[float] = []
    sender = both.senders[0]
    stop = sender._stop_waiting

    def stopped() -> None:
        before = sender._control.window
        stop()
        windows.append(sender._control.window / before)

    sender._stop_waiting = stopped  # type: ignore[method-assign]
    both.send(0, 200)
    both.clock.run()
    assert both.senders[0].retransmitted == 20
    assert windows[0] == 1.0


def test_a_policed_rate_is_that_of_two_intervals_that_are_alike() -> None:
    # of 20 packets in each round of 10 ms a quarter is lost: 2,000 a second come; for 48 rounds that is what is used
    policed, delivered, now_s = PolicerDetector(), 0, 0.0
    used = []
    for _ in range(70):
        delivered, now_s = delivered + 20, now_s + 0.01
        over = policed.update(delivered, now_s, 7, is_round_start=True, is_app_limited=False)
        used.append(policed.rate)
        if over:
            break
    began = next(place for place, rate in enumerate(used) if rate)
    assert began == 2 * 4 - 1
    assert used[began] == pytest.approx(2000)
    assert len(used) - 1 - began == 48
    assert used[-1] == 0.0


@pytest.mark.parametrize(("lost", "is_app_limited"), [(2, False), (7, True)])
def test_few_losses_or_too_little_to_send_say_nothing_of_policers(lost: int, is_app_limited: bool) -> None:
    policed = PolicerDetector()
    for round_trip in range(1, 60):
        policed.update(
            20 * round_trip, 0.01 * round_trip, lost, is_round_start=True, is_app_limited=is_app_limited
        )
        assert policed.rate == 0.0

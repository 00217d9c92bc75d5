"""Windows of connections over paths that lose packets, against closed forms and standards of others."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random
from statistics import mean

import pytest

from testbed.net.paths.congestion import Growth
from testbed.net.paths.congestion.cubic import Cubic, CubicGrowth
from testbed.net.paths.congestion.linux_tcp import INITIAL_WINDOW_PACKETS, MIN_RTO_S
from testbed.net.paths.congestion.reno import Reno, RenoGrowth
from testbed.net.paths.losses import LossyWindow

NEVER = 1e-12


class Scripted(Random):
    """Has the packets of these numbers lost, of all that are sent, and nothing that is sent again."""

    def __init__(self, *lost: int) -> None:
        super().__init__(0)
        self.gaps = [after - before for before, after in pairwise((0, *lost))]

    def random(self) -> float:
        """Of the gap before the next loss, by the inverse of what is made of it, then of whether it is lost again."""
        gap = self.gaps.pop(0) if self.gaps else 10**9
        return 1 - (1 - NEVER) ** (gap - 0.5) if gap < 10**9 else 0.5


def window(
    growth: Growth,
    loss: float = NEVER,
    rtt_s: float = 0.1,
    packet_s: float = 1e-6,
    draw: Random | None = None,
) -> LossyWindow:
    return LossyWindow(growth, loss, rtt_s, rtt_s / 2, packet_s, draw or Random(1))


def mean_packets(growth: type[Growth], loss: float, rtt_s: float, seeds: int = 6) -> float:
    """Under way, of a connection that always has something to send, once its beginning is over."""

    def one(seed: int) -> float:
        own = window(growth(), loss, rtt_s, 1e-7, Random(seed))
        begins_s = own.send(int(10 / loss), 0.0).left_s
        packets = int(200 / loss)
        return packets * rtt_s / (own.send(packets, begins_s).left_s - begins_s)

    return mean(map(one, range(seeds)))


@pytest.mark.parametrize("loss", [0.0005, 0.0001])
@pytest.mark.parametrize("rtt_s", [0.002, 0.04])
def test_renos_window_is_what_its_stationary_distribution_has_on_average(loss: float, rtt_s: float) -> None:
    # Ott, Kemperman and Mathis, "The stationary behavior of ideal TCP congestion avoidance" (1996), where losses are
    # independent: 1.3098 over the root of their share, where periodic ones give 1.2247. Small windows are below
    # that, as Linux' are whole and its acknowledgements wait for a second packet
    assert mean_packets(RenoGrowth, loss, rtt_s) == pytest.approx(1.3098 / math.sqrt(loss), rel=0.05)


def test_cubics_window_is_as_its_standard_has_it_on_long_paths() -> None:
    # RFC 9438, section 5.1, is of periodic losses
    for rtt_s, loss in ((0.2, 0.0002), (0.2, 0.0005)):
        expected = Cubic.window_packets(loss, rtt_s)
        assert expected > 1.5 * Reno.window_packets(loss, rtt_s)
        # independent ones leave more, as of Reno's
        assert expected < mean_packets(CubicGrowth, loss, rtt_s) < 1.25 * expected


def test_on_short_paths_cubic_stands_still_for_round_trips_after_a_loss() -> None:
    # Linux looks once in a 32nd of a second as long as the window is the same
    as_reno = Reno.window_packets(0.002, 0.04)
    assert mean_packets(CubicGrowth, 0.002, 0.002) < 0.85 * as_reno
    assert mean_packets(CubicGrowth, 0.002, 0.04) == pytest.approx(as_reno, rel=0.1)


def test_a_window_begins_with_ten_packets_and_doubles() -> None:
    own = window(RenoGrowth())
    for trips in range(5):
        sent = window(RenoGrowth()).send(INITIAL_WINDOW_PACKETS * (2**trips - 1) + 1, 0.0)
        assert sent.left_s == pytest.approx(trips * 0.1, rel=0.01, abs=1e-4)
    assert own.send(INITIAL_WINDOW_PACKETS, 0.0).there_s == pytest.approx(0.05, rel=0.01)


def test_cubic_stops_doubling_when_acknowledgements_come_for_half_a_round_trip() -> None:
    packet_s = 0.1 / 200  # a round trip holds 200
    cubic, reno = window(CubicGrowth(), packet_s=packet_s), window(RenoGrowth(), packet_s=packet_s)
    for own in (cubic, reno):
        own.send(300, 0.0)
        own.send(1, 10.0)
    assert 100 < cubic.window < 165 < reno.window


def test_a_window_that_is_not_used_does_not_grow() -> None:
    own = window(RenoGrowth())
    for number in range(20):
        own.send(4, number * 1.0)
    assert own.window == INITIAL_WINDOW_PACKETS


def test_one_loss_costs_what_is_behind_it_a_round_trip_and_half_of_the_window() -> None:
    own = window(RenoGrowth(), draw=Scripted(4))
    sent = own.send(10, 0.0)
    assert sent.there_s == pytest.approx(0.1 + 0.05, rel=0.01)
    own.send(1, 1.0)
    assert int(own.window) == (10 + 3) // 2  # three were acknowledged before
    assert own.send(6, 2.0).left_s == pytest.approx(2.0, abs=1e-3)
    assert own.send(8, 3.0).left_s == pytest.approx(3.1, abs=1e-3)


def test_of_a_last_packet_a_timeout_tells_unless_more_is_sent_behind_it() -> None:
    own = window(RenoGrowth(), draw=Scripted(10))
    alone = own.send(10, 0.0)
    assert alone.there_s == pytest.approx(2 * 0.1 + MIN_RTO_S + 0.05, rel=0.01)
    own = window(RenoGrowth(), draw=Scripted(9))
    assert own.send(9, 0.0).there_s == pytest.approx(2 * 0.1 + MIN_RTO_S + 0.05, rel=0.01)
    own = window(RenoGrowth(), draw=Scripted(8))
    waiting = own.send(8, 0.0)
    told: list[float] = []
    waiting.losses[0].on_earlier.append(lambda: told.append(waiting.there_s))
    behind = own.send(1, 0.02)
    # one behind it is not enough at once: a quarter of a round trip it may have come in another order
    assert told == [pytest.approx(0.02 + 1.25 * 0.1 + 0.05, rel=0.01)]
    assert behind.there_s == waiting.there_s  # bytes come in order
    own = window(RenoGrowth(), draw=Scripted(7))
    waiting = own.send(7, 0.0)
    own.send(3, 0.02)
    assert waiting.there_s == pytest.approx(0.02 + 0.1 + 0.05, rel=0.01)


def test_what_is_sent_again_and_lost_again_comes_a_round_trip_and_a_quarter_later() -> None:
    class Always(Scripted):
        """Has what is sent again lost once."""

        def random(self) -> float:
            """The second call is that of the loss."""
            self.calls = getattr(self, "calls", 0) + 1
            return 0.0 if self.calls == 3 else super().random()

    own = window(RenoGrowth(), draw=Always(4))
    sent = own.send(10, 0.0)
    own.send(1, 0.11)  # which hears of it
    assert sent.there_s == pytest.approx(0.1 + 1.25 * 0.1 + 0.05, rel=0.01)
    own.send(1, 1.0)
    own.send(1, 2.0)
    assert own._in_flight == 1


def test_what_is_told_from_later_on_goes_on_as_it_would_have() -> None:
    apart, same = (window(CubicGrowth(), 0.01, draw=Random(5)) for _ in range(2))
    for own in (apart, same):
        own.send(500, 0.0)
    apart.shift(100.0)
    later = apart.send(500, 20.0)
    assert later.left_s == pytest.approx(same.send(500, 120.0).left_s - 100.0)
    assert apart.window == pytest.approx(same.window)

"""RoCE's closed form against figures that were measured with soft-RoCE, not with it."""

from __future__ import annotations

import pytest

from tests.go_back_n import ReliablePath, wire_bytes


def test_a_mebibyte_takes_256_packets_with_their_headers() -> None:
    assert wire_bytes(1 << 20) == (1 << 20) + 256 * 58 + 20
    assert wire_bytes(0) == 58 + 20


@pytest.mark.parametrize(("rate_bps", "loss", "seen_bps", "within"), [(1e9, 0.0, 0.98604e9, 1e-4)])
def test_it_is_as_quick_as_soft_roce(rate_bps: float, loss: float, seen_bps: float, within: float) -> None:
    path = ReliablePath(rate_bps, 0.02, loss)
    assert path.goodput_bps(1 << 20) == pytest.approx(seen_bps, rel=within)


def test_128_packets_on_20_ms_are_a_fifth_of_a_gigabit_whatever_the_line() -> None:
    for rate_bps in (1e9, 10e9):
        found = ReliablePath(rate_bps, 0.02, window_packets=128).goodput_bps(1 << 20)
        assert found == pytest.approx(128 * 4096 * 8 / 0.02, rel=1e-3)


def test_losses_cost_by_the_product_of_rate_and_round_trip() -> None:
    shares = [
        ReliablePath(rate, trip, 1e-3).goodput_bps(1 << 20) / rate
        for rate, trip in ((1e9, 0.02), (2e9, 0.01))
    ]
    assert shares[0] == pytest.approx(shares[1])
    assert ReliablePath(1e9, 0.02, 1e-3).goodput_bps(1 << 20) < 0.63e9

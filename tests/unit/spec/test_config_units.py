"""Quantities: what is accepted, what is refused and how, and that writing and reading again changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.spec import units

positive = st.floats(min_value=1e-12, max_value=1e18, allow_nan=False)


@pytest.mark.parametrize(
    ("text", "rate_bps"),
    [
        ("400 Gbit/s", 400e9),
        ("285.7 Gbit/s", 285.7e9),
        ("100Mbps", 100e6),
        ("100 Mbit/s", 100e6),
        (" 1.5  Tbps ", 1.5e12),
        ("9600 bps", 9600.0),
        ("64 kbit/s", 64e3),
        ("64 Kbps", 64e3),
        ("1e3 bit/s", 1e3),
        (".5 Gbit/s", 5e8),
    ],
)
def test_rates(text: str, rate_bps: float) -> None:
    assert units.parse_rate(text) == rate_bps


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        ("2.5 ms", 0.0025),
        ("30 s", 30.0),
        ("10us", 1e-5),
        ("10 µs", 1e-5),
        ("10 μs", 1e-5),
        ("7 ns", 7e-9),
        ("0 ms", 0),
    ],
)
def test_durations_are_the_nearest_float(text: str, duration_s: float) -> None:
    assert units.parse_duration(text) == duration_s


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("64 MiB", 64 * 2**20),
        ("64 MB", 64 * 10**6),
        ("1.5 KiB", 1536),
        ("9000 B", 9000),
        ("1 TiB", 2**40),
        ("2 kB", 2000),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert units.parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("value", "fraction"), [("0.1 %", 0.001), ("0.001", 0.001), (0.001, 0.001), (1, 1), ("100%", 1)]
)
def test_fractions_need_no_unit(value: object, fraction: float) -> None:
    assert units.parse_fraction(value) == fraction


def test_computing_speeds() -> None:
    assert units.parse_flop_rate("989 Tflop/s") == 989e12
    assert units.parse_flop_rate("1.5 PFLOPS") == 1.5e15


@pytest.mark.parametrize(
    "value", [400, 4.0, "400", "400 GB/s", "400 gbit/s", "Gbit/s", "4 00 Mbps", "inf bps", None, True]
)
def test_a_rate_without_a_known_unit_is_refused_naming_the_units(value: object) -> None:
    with pytest.raises(
        ValueError, match=r"^a rate with its unit, such as 400 Gbit/s \(bit/s, kbit/s, .*; or bps, kbps"
    ):
        units.parse_rate(value)


@pytest.mark.parametrize(
    ("parse", "value", "expected"),
    [
        (units.parse_rate, "0 bps", "a rate above 0"),
        (units.parse_rate, "-1 Gbit/s", "a rate above 0"),
        (units.parse_flop_rate, "0 flop/s", "a compute speed above 0"),
        (units.parse_flop_rate, "3", "a compute speed with its unit, such as 989 Tflop/s"),
        (units.parse_duration, "-1 ms", "a duration of 0 or more"),
        (units.parse_duration, 5, "a duration with its unit, such as 2.5 ms (ns, us, ms, s, min, h)"),
        (
            units.parse_size,
            "64",
            "a size with its unit, such as 64 MiB (B, kB, MB, GB, TB, KiB, MiB, GiB, TiB)",
        ),
        (units.parse_size, "-1 B", "a size of 0 or more"),
        (units.parse_size, "1.5 B", "a whole number of bytes"),
        (units.parse_fraction, 1.1, "a share from 0 % to 100 %"),
        (units.parse_fraction, -0.1, "a share from 0 % to 100 %"),
        (units.parse_fraction, float("nan"), "a share from 0 % to 100 %"),
        (units.parse_fraction, True, "a share from 0 % to 100 %"),
    ],
)
def test_other_values_are_refused(parse: Callable[[object], float], value: object, expected: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared below
        parse(value)
    assert str(caught.value).startswith(expected)


@given(positive)
def test_rates_round_trip(value: float) -> None:
    assert units.parse_rate(units.format_rate(value)) == value


@given(positive)
def test_computing_speeds_round_trip(value: float) -> None:
    assert units.parse_flop_rate(units.format_flop_rate(value)) == value


@given(st.just(0.0) | positive)
def test_durations_round_trip(value: float) -> None:
    assert units.parse_duration(units.format_duration(value)) == value


@given(st.integers(min_value=0, max_value=10**18))
def test_sizes_round_trip(value: int) -> None:
    assert units.parse_size(units.format_size(value)) == value


@given(st.floats(min_value=0, max_value=1))
def test_fractions_round_trip(value: float) -> None:
    assert units.parse_fraction(units.format_fraction(value)) == value


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (units.format_rate(285.7e9), "285.7 Gbit/s"),
        (units.format_rate(71.425e6), "71.425 Mbit/s"),
        (units.format_rate(0.5), "0.5 bit/s"),
        (units.format_duration(0.0025), "2.5 ms"),
        (units.format_duration(0.0), "0 ms"),
        (units.format_duration(30.0), "30 s"),
        (units.format_size(400 * 2**20), "400 MiB"),
        (units.format_size(576_001), "576.001 kB"),
        (units.format_size(0), "0 B"),
        (units.format_fraction(0.001), "0.1 %"),
        (units.format_flop_rate(989e12), "989 Tflop/s"),
    ],
)
def test_written_forms(text: str, written: str) -> None:
    assert text == written

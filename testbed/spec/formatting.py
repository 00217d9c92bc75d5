"""Measured quantities as people read them, rounded: 1.413 s, 32.1 GB, 285.7 Gbit/s, 2.5 ms, 18.7 %.

The formatters of `testbed.spec.units` give every digit, so that files read back to the same number; a
measurement's last digits would only distract.
"""

from __future__ import annotations

from testbed.spec.units import format_duration, format_fraction, format_rate


def _rounded(value: float, digits: int) -> float:
    """`value` with that many significant digits."""
    return float(f"{value:.{digits}g}")


def time_text(seconds: float) -> str:
    """A duration, to four digits."""
    return format_duration(_rounded(seconds, 4))


def rate_text(bits_per_second: float) -> str:
    """A data rate, to four digits."""
    return format_rate(_rounded(bits_per_second, 4))


def per_second_text(count: float) -> str:
    """How many a second, to four digits."""
    rounded = _rounded(count, 4)
    return f"{rounded:,.0f}" if rounded >= 1000 else f"{rounded:g}"


def size_text(size_bytes: float) -> str:
    """A number of bytes, to three digits; always decimal, so that figures in a column compare."""
    rounded = _rounded(size_bytes, 3)
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(rounded) >= factor:
            return f"{rounded / factor:.4g} {unit}"
    return f"{rounded:.0f} B"


def percent_text(share: float) -> str:
    """A share of one in percent, to one decimal, or two digits where that would say 0.0."""
    return format_fraction(round(share, 3) if abs(share) >= 0.001 else _rounded(share, 2))


def signed_percent_text(share: float, digits: int = 1) -> str:
    """By how much something is off, in percent with its sign; what rounds to nothing has none: "0.0 %"."""
    text = f"{100 * share:+.{digits}f}"
    return f"{text[1:] if float(text) == 0 else text} %"

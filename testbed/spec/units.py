"""Quantities with units ("400 Gbit/s", "2.5 ms", "64 MiB", "0.1 %"), converted to SI numbers and back.

Each kind has a parser, which raises ValueError with what is expected, and a formatter whose text parses back to exactly
the same number. The `..._text` functions round for display. Only fractions may be written without a unit. Decimal
arithmetic converts "2.5 ms" to the float nearest to 0.0025.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from functools import partial

_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(\S*)\s*")
_EXPONENTS = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15}


def _units(prefixes: str, ending: str) -> dict[str, Decimal]:
    """Return decimal units with these prefixes, smallest first: {"bit/s": 1, "kbit/s": 1000, ...}."""
    return {prefix + ending: Decimal(10) ** _EXPONENTS[prefix] for prefix in ("", *prefixes)}


def _spellings(units: Mapping[str, Decimal], *endings: str) -> dict[str, Decimal]:
    """Add other endings ("kbps"), and a capital K for k."""
    (standard,) = (unit for unit, factor in units.items() if factor == 1)
    found = {
        unit.replace(standard, ending): factor
        for unit, factor in units.items()
        for ending in (standard, *endings)
    }
    return found | {"K" + unit[1:]: factor for unit, factor in found.items() if unit.startswith("k")}


_RATES = _units("kMGT", "bit/s")
_RATE_UNITS = _spellings(_RATES, "bps")
_FLOP_RATES = _units("kMGTP", "flop/s")
_FLOP_UNITS = _spellings(_FLOP_RATES, "FLOP/s", "flops", "FLOPS")
_DURATIONS = {"ns": Decimal("1e-9"), "us": Decimal("1e-6"), "ms": Decimal("1e-3"), "s": Decimal(1)}
_MICRO_SIGNS = {"\N{MICRO SIGN}s": Decimal("1e-6"), "\N{GREEK SMALL LETTER MU}s": Decimal("1e-6")}
_DURATION_UNITS = _DURATIONS | _MICRO_SIGNS | {"min": Decimal(60), "h": Decimal(3600)}
FIBRE_S_PER_KM = 4.9e-6
"""Propagation delay of light in fibre with a refractive index of 1.468."""
_FIBRE = Decimal(str(FIBRE_S_PER_KM))
_DELAY_UNITS = _DURATIONS | _MICRO_SIGNS | {"km": _FIBRE, "m": _FIBRE / 1000}
_SIZES = _units("kMGT", "B")
_BINARY_SIZES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE_UNITS = _SIZES | {unit: Decimal(size) for unit, size in _BINARY_SIZES.items()}

_KINDS = (
    _RATE_UNITS,
    _FLOP_UNITS,
    _DELAY_UNITS | _DURATION_UNITS,
    _SIZE_UNITS,
    {"": Decimal(1), "%": Decimal("0.01")},
)

RATE_EXPECTED = (
    "a rate with its unit, such as 400 Gbit/s (bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s; or bps, kbps, ...)"
)
FLOP_RATE_EXPECTED = "a compute speed with its unit, such as 989 Tflop/s (flop/s, Gflop/s, Tflop/s, Pflop/s)"
DURATION_EXPECTED = "a duration with its unit, such as 2.5 ms (ns, us, ms, s, min, h)"
DELAY_EXPECTED = "a duration, such as 2.5 ms (ns, us, ms, s), or a length of fibre, such as 500 km (m, km)"
SIZE_EXPECTED = "a size with its unit, such as 64 MiB (B, kB, MB, GB, TB, KiB, MiB, GiB, TiB)"
RATIO_EXPECTED = "a ratio of 1 to at least 1, such as 1:2.8"
FRACTION_EXPECTED = "a share from 0 % to 100 %, such as 0.1 % or 0.001"


def _parse(value: object, units: Mapping[str, Decimal], expected: str) -> Decimal:
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in units:
        raise ValueError(expected)
    return Decimal(match[1]) * units[match[2]]


def _parse_number(value: object, units: Mapping[str, Decimal], expected: str, least: str) -> float:
    """Return a quantity in SI units. `least`: the expectation for errors about negative values, and about 0 if it ends
    in "above 0".
    """
    number = float(_parse(value, units, expected))
    if number < 0 or (number == 0 and least.endswith("above 0")):
        raise ValueError(least)
    return abs(number)


parse_rate = partial(_parse_number, units=_RATE_UNITS, expected=RATE_EXPECTED, least="a rate above 0")
"""Return a rate above 0 in bit/s."""
parse_flop_rate = partial(
    _parse_number, units=_FLOP_UNITS, expected=FLOP_RATE_EXPECTED, least="a compute speed above 0"
)
"""Return a compute speed above 0 in flop/s."""
parse_duration = partial(
    _parse_number, units=_DURATION_UNITS, expected=DURATION_EXPECTED, least="a duration of 0 or more"
)
"""Return a duration of at least 0 in seconds."""
parse_delay = partial(
    _parse_number, units=_DELAY_UNITS, expected=DELAY_EXPECTED, least="a delay of 0 or more"
)
"""Return a delay of at least 0 in seconds, given as a duration or as a length of fibre."""


def parse_size(value: object) -> int:
    """Return a size of at least 0 in whole bytes."""
    size = _parse(value, _SIZE_UNITS, SIZE_EXPECTED)
    if size < 0:
        raise ValueError("a size of 0 or more")
    if size != size.to_integral_value():
        raise ValueError("a whole number of bytes")
    return int(size)


def parse_ratio(value: object) -> float:
    """Return the second number of a ratio such as "1:2.8"."""
    if not isinstance(value, str) or not (found := re.fullmatch(r"1:(\d+(?:\.\d+)?)", value.strip())):
        raise ValueError(RATIO_EXPECTED)
    if (ratio := float(found[1])) < 1:
        raise ValueError(RATIO_EXPECTED)
    return ratio


def parse_fraction(value: object) -> float:
    """Return a share from 0 to 1, given as a number or in percent."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = repr(value)
    fraction = float(_parse(value, {"": Decimal(1), "%": Decimal("0.01")}, FRACTION_EXPECTED))
    if not 0 <= fraction <= 1:
        raise ValueError(FRACTION_EXPECTED)
    return abs(fraction)


def without_unit(name: str) -> str:
    """Return a field's key in files, where values have their own unit: `delay` for `delay_s`."""
    return re.sub("(?<!_per)_(s|bytes|bps)$", "", name)


def number_and_unit(text: str) -> tuple[Decimal, str] | None:
    """Split any quantity into number and unit (empty for a plain number). Return None for other text."""
    match = _QUANTITY.fullmatch(text)
    if match is None or not any(match[2] in units for units in _KINDS):
        return None
    return Decimal(match[1]), match[2]


def convert_unit(number: Decimal, unit: str, other: str) -> Decimal | None:
    """Convert a quantity to another unit of the same kind. Return None if the kinds differ."""
    units = next((units for units in _KINDS if unit in units and other in units), None)
    return None if units is None else number * units[unit] / units[other]


def round_to_whole_bytes(number: Decimal, unit: str) -> Decimal:
    """Round a size to whole bytes, in its own unit. Other quantities are returned unchanged."""
    factor = _SIZE_UNITS.get(unit)
    return number if factor is None else (number * factor).to_integral_value() / factor


def _format(value: float, units: Mapping[str, Decimal], zero: str) -> str:
    """Format a value losslessly in the largest of `units` (in ascending order) that gives at least 1."""
    exact = Decimal(repr(value))
    if not exact:
        return f"0 {zero}"
    fitting = [unit for unit, factor in units.items() if abs(exact) >= factor] or [next(iter(units))]
    return f"{format_decimal(exact / units[fitting[-1]])} {fitting[-1]}"


def format_decimal(number: Decimal) -> str:
    """Format a number without exponent or trailing zeros."""
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


format_rate = partial(_format, units=_RATES, zero="bit/s")
"""Format a rate losslessly, such as "285.7 Gbit/s"."""
format_flop_rate = partial(_format, units=_FLOP_RATES, zero="flop/s")
"""Format a compute speed losslessly, such as "989 Tflop/s"."""
format_duration = partial(_format, units=_DURATIONS, zero="ms")
"""Format a duration losslessly, such as "2.5 ms"."""


def format_size(size_bytes: int) -> str:
    """Format a size losslessly, in a binary unit such as "64 MiB" if exact, else in a decimal one: "576 kB"."""
    for unit, size in reversed(_BINARY_SIZES.items()):
        if size_bytes and size_bytes % size == 0:
            return f"{size_bytes // size} {unit}"
    return _format(size_bytes, _SIZES, "B")


def format_fraction(fraction: float) -> str:
    """Format a share losslessly in percent, such as "0.1 %"."""
    return f"{format_decimal(Decimal(repr(fraction)) * 100)} %"


def _rounded(value: float, digits: int) -> float:
    """Round to significant digits."""
    return float(f"{value:.{digits}g}")


def time_text(seconds: float) -> str:
    """Format a duration with four significant digits."""
    return format_duration(_rounded(seconds, 4))


def rate_text(bits_per_second: float) -> str:
    """Format a data rate with four significant digits."""
    return format_rate(_rounded(bits_per_second, 4))


def per_second_text(count: float) -> str:
    """Format a number of events per second with four significant digits."""
    rounded = _rounded(count, 4)
    return f"{rounded:,.0f}" if rounded >= 1000 else f"{rounded:g}"


def size_text(size_bytes: float) -> str:
    """Format a size with three significant digits, always in decimal units so that columns compare."""
    rounded = _rounded(size_bytes, 3)
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(rounded) >= factor:
            return f"{rounded / factor:.4g} {unit}"
    return f"{rounded:.0f} B"


def percent_text(share: float) -> str:
    """Format a share in percent with one decimal, or two significant digits if it is below 0.1 %."""
    return format_fraction(round(share, 3) if abs(share) >= 0.001 else _rounded(share, 2))


def signed_percent_text(share: float, digits: int = 1) -> str:
    """Format a relative deviation in percent, with a sign unless it rounds to zero."""
    text = f"{100 * share:+.{digits}f}"
    return f"{text[1:] if float(text) == 0 else text} %"

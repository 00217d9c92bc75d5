"""Quantities as people read them, to numbers, and whether a text shows a number."""

from __future__ import annotations

import math
import re

UNITS = {
    "": 1.0,
    **{"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0},
    **{"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12},
    **{"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40},
    **{"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9, "Tbit/s": 1e12},
    **{"flop/s": 1.0, "Gflop/s": 1e9, "Tflop/s": 1e12, "Pflop/s": 1e15},
    "%": 0.01,
}
_QUANTITY = re.compile(r"([+-]?[\d,]+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([A-Za-z/%]*)")


def quantity(text: str | float) -> float:
    """Return the number of SI units that a text such as "2.5 ms", "400 Gbit/s" or "33,150" says."""
    if isinstance(text, (int, float)):
        return float(text)
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in UNITS:
        raise ValueError(f"not a quantity: {text!r}")
    return float(match[1].replace(",", "")) * UNITS[match[2]]


def shows(text: str, value: float, digits: int | None = None, decimals: int | None = None) -> bool:
    """Whether a text is this value, rounded as it has to be shown.

    Args:
        text: A quantity, with its unit.
        value: In SI units.
        digits: How many significant digits of the value a text has to show; trailing zeros may be left out.
        decimals: In place of that, how many digits after the point, in the text's own unit.
    """
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in UNITS:
        return False
    unit = UNITS[match[2]]
    said = float(match[1].replace(",", ""))
    own = value / unit
    if decimals is not None:
        step = 10.0**-decimals
    else:
        assert digits is not None
        step = 10.0 ** (math.floor(math.log10(abs(own))) - digits + 1) if own else 0.0
    # a tie may go either way, and so may a sum taken in another order
    return abs(said - own) <= step * 0.5 * (1 + 1e-6) + 1e-9 * abs(own)

"""Axes of a sweep, from KEY=RANGE: `topology.wan.0.delay=1ms..80ms:log:8`, `policy=ecmp,te`, `ranks=2..8:2`."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import yaml

from testbed.plugins import shorten_names
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.overrides import split_commas
from testbed.spec.units import convert_unit, format_decimal, number_and_unit, round_to_whole_bytes

COMMAND_LINE = "command line"
MAX_AXES = 2
DIGITS = 3  # significant digits of values between a range's ends
LOG_FROM = 16.0  # ratio of largest to smallest value from which a list's axis is logarithmic
EXPECTED = "KEY=A,B,C or KEY=FIRST..LAST:COUNT or KEY=FIRST..LAST:log:COUNT, such as policy=ecmp,te"
_RANGE = re.compile(r"(?P<first>[^:,]+?)\.\.(?P<last>[^:,]+)(?::(?P<how>log|lin))?(?::(?P<count>\d+))?")
# path components that make a label specific
_ABOUT = {"wan": "WAN", "nic": "NIC", "accelerator": "accelerator"}


@dataclass(frozen=True)
class Axis:
    """One axis of a sweep: a `--set` path and its values.

    Attributes:
        path: the path.
        values: the values.
        texts: the values for display.
        numbers: positions of the values on the axis, in `unit`; None if they are words.
        unit: unit of `numbers`.
        log: whether the axis is logarithmic.
    """

    path: str
    values: tuple[Any, ...]
    texts: tuple[str, ...]
    numbers: tuple[float, ...] | None = None
    unit: str = ""
    log: bool = False

    @property
    def label(self) -> str:
        """Label of the axis: "WAN delay (ms)"."""
        words = [part for part in self.path.split(".") if not part.isdecimal()]
        about = [_ABOUT[part] for part in words[:-1] if _ABOUT.get(part)]
        name = " ".join([*about, words[-1].replace("_", " ")])
        return f"{name} ({self.unit})" if self.unit else name

    def override(self, index: int) -> str:
        """Return the override that `--set` takes for a value."""
        return f"{self.path}={json.dumps(self.values[index])}"


GridPoint = tuple[int, ...]
"""A point of a sweep: the index of its value on each axis."""


def grid_points(axes: Sequence[Axis]) -> Iterator[GridPoint]:
    """Yield all points, the last axis varying fastest."""
    return itertools.product(*(range(len(axis.values)) for axis in axes))


def parse_axes(given: Sequence[str]) -> tuple[Axis, ...]:
    """Parse one or two axes. Raises ConfigError."""
    if not 1 <= len(given) <= MAX_AXES:
        raise _error("", f"{len(given)} axes", f"one or two: {EXPECTED}")
    axes = tuple(map(parse_axis, given))
    if len({axis.path for axis in axes}) < len(axes):
        raise _error(axes[0].path, "the same key twice", "two keys")
    return axes


def parse_axis(given: str) -> Axis:
    """Parse KEY=RANGE. Raises ConfigError."""
    path, equals, text = (part.strip() for part in given.partition("="))
    if not equals or not text or not all(path.split(".")):
        raise _error(path, repr(given), EXPECTED)
    match = _RANGE.fullmatch(text)
    ends = [number_and_unit(match[name]) for name in ("first", "last")] if match else []
    if match and all(ends):
        return _range(path, text, match)
    return _list(path, [part.strip() for part in split_commas(text)])


def axes_from_mapping(given: Mapping[str, Any]) -> tuple[Axis, ...]:
    """Return axes from a mapping of paths to ranges or lists of values. Raises ConfigError."""
    if not 1 <= len(given) <= MAX_AXES:
        raise _error("", f"{len(given)} axes", f"one or two: {EXPECTED}")
    return tuple(
        parse_axis(f"{path}={values}")
        if isinstance(values, str)
        else _list(path, [value if isinstance(value, str) else json.dumps(value) for value in values])
        for path, values in given.items()
    )


def _range(path: str, text: str, match: re.Match[str]) -> Axis:
    (first, unit), (last, other) = (
        number_and_unit(match[name]) or (Decimal(), "") for name in ("first", "last")
    )
    in_unit = convert_unit(last, other, unit)
    if in_unit is None:
        raise _error(
            path,
            text,
            f"two ends of one kind, not {unit or 'a plain number'} and {other or 'a plain number'}",
        )
    whole = not unit and first == first.to_integral_value() and last == last.to_integral_value()
    count = int(match["count"] or (abs(int(last) - int(first)) + 1 if whole and match["how"] is None else 0))
    if count < 2:
        raise _error(path, text, f"a count of at least two, such as {text.partition(':')[0]}:log:8")
    log = match["how"] == "log"
    if first >= in_unit or (log and first <= 0):
        raise _error(path, text, "a first value below the last" + (", above 0" if log else ""))
    between = (
        _between(first, in_unit, Decimal(index) / (count - 1), log=log) for index in range(1, count - 1)
    )
    rounded = (_rounded(number, unit, whole=whole) for number in between)
    numbers = sorted({first, in_unit, *(number for number in rounded if first < number < in_unit)})
    texts = [f"{format_decimal(number)} {unit}".strip() for number in numbers]
    if numbers[-1] == in_unit and other != unit:
        texts[-1] = f"{format_decimal(last)} {other}"
    values = tuple(yaml.safe_load(one) for one in texts)
    return Axis(path, values, tuple(texts), tuple(map(float, numbers)), unit, log)


def _between(first: Decimal, last: Decimal, share: Decimal, *, log: bool) -> Decimal:
    if log:
        return Decimal(math.exp(math.log(first) + float(share) * (math.log(last) - math.log(first))))
    return first + share * (last - first)


def _rounded(number: Decimal, unit: str, *, whole: bool) -> Decimal:
    """Round a value between a range's ends for readability."""
    if whole:
        return number.to_integral_value()
    return round_to_whole_bytes(Decimal(f"{number:.{DIGITS}g}"), unit)


def _list(path: str, texts: Sequence[str]) -> Axis:
    if not all(texts):
        raise _error(path, repr(",".join(texts)), EXPECTED)
    try:
        values = [yaml.safe_load(text) for text in texts]
    except yaml.YAMLError:
        raise _error(path, repr(",".join(texts)), "values in YAML, separated by commas") from None
    shown = [_display_text(value) for value in values]
    if twice := next((text for number, text in enumerate(shown) if text in shown[:number]), None):
        raise _error(path, f"{twice} again", "each value once")
    quantities = [
        number_and_unit(text) if not isinstance(value, bool | list | dict) else None
        for text, value in zip(texts, values, strict=True)
    ]
    numbers: list[float] = []
    unit = quantities[0][1] if quantities[0] else ""
    for quantity in quantities:
        number = convert_unit(*quantity, unit) if quantity else None
        if number is None:
            return Axis(path, tuple(values), tuple(shown))
        numbers.append(float(number))
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    low, high = min(numbers), max(numbers)
    return Axis(
        path,
        tuple(values[index] for index in order),
        tuple(shown[index] for index in order),
        tuple(numbers[index] for index in order),
        unit,
        low > 0 and len(numbers) > 2 and high / low >= LOG_FROM,
    )


def _display_text(value: Any) -> str:
    if isinstance(value, str):
        quantity = number_and_unit(value)
        return (
            f"{format_decimal(quantity[0])} {quantity[1]}".strip() if quantity else str(shorten_names(value))
        )
    if isinstance(value, list):
        return " + ".join(map(_display_text, value))
    return json.dumps(shorten_names(value))


def _error(path: str, found: str, expected: str) -> ConfigError:
    return ConfigError([Problem(COMMAND_LINE, None, path, found, expected)])

"""Rates, delays, lengths and shares as foreign files write them, their units in values or names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from testbed.errors import BadInput
from testbed.show.exchange.attribute_account import Element, number
from testbed.spec.units import FIBRE_S_PER_KM

_BITS = ("b", "bit", "bits", "bps", "bit/s", "bits/s", "b/s", "bitps")
_DECIMAL = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_BINARY = {"ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40}
_RATES = {prefix + unit: factor for prefix, factor in (_DECIMAL | _BINARY).items() for unit in _BITS}
_TIMES = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "\N{MICRO SIGN}s", "usec", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nsec", "nanosecond", "nanoseconds"), 1e-9),
}
_LENGTHS = {
    **dict.fromkeys(("km", "kilometer", "kilometers", "kilometre", "kilometres"), 1.0),
    **dict.fromkeys(("m", "meter", "meters", "metre", "metres"), 1e-3),
    **dict.fromkeys(("mi", "mile", "miles"), 1.609344),
}
_SHARES = {"%": 0.01, "percent": 0.01, "pct": 0.01, "share": 1.0}


@dataclass(frozen=True)
class Quantity:
    """A kind of figure that edges or nodes have.

    Attributes:
        stems: The lower-case names under which files have it, without a unit; the first that is there counts.
        units: Factors to bit/s, s, km or a share, by unit in lower case.
        fixed: Units of names that always have the same one.
        example: A unit for messages.
        least: The smallest value that is possible, in the quantity's own unit.
        most: The largest.
    """

    stems: tuple[str, ...]
    units: Mapping[str, float]
    fixed: Mapping[str, str]
    example: str
    least: float = 0.0
    most: float = float("inf")


RATE = Quantity(
    ("linkspeedraw", "linkspeed", "rate", "bandwidth", "capacity", "bw", "speed"),
    _RATES,
    {"linkspeedraw": "bit/s"},
    "Gbit/s",
    least=1.0,
)
DELAY = Quantity(("delay", "latency"), _TIMES, {}, "ms")
LENGTH = Quantity(("length", "dist", "distance"), _LENGTHS, {}, "km", most=20_040.0)
JITTER = Quantity(("jitter",), _TIMES, {}, "ms")
LOSS = Quantity(
    ("packet_loss", "packetloss", "loss"),
    _SHARES,
    {"packet_loss": "share", "packetloss": "share"},
    "%",
    most=1.0,
)
CARD_RATE = Quantity(
    ("nic_rate", "host_bandwidth_up", "host_bandwidth_down"), _RATES, {"nic_rate": "bit/s"}, "Gbit/s", 1.0
)
_KINDS = (RATE, DELAY, LENGTH, LOSS)
_LABELS = ("label", "linklabel", "edgelabel")


@dataclass(frozen=True)
class Figure:
    """An attribute that gives a quantity; unit is empty where neither its value, its name nor the user says it.

    `problem` says why there is no value or no unit that could be used.
    """

    name: str
    value: float
    unit: str
    problem: str = ""


def figures(element: Element, quantity: Quantity, units: Mapping[str, str]) -> Iterator[Figure]:
    """Yield an element's attributes that give a quantity, best first.

    Args:
        element: A node or an edge.
        quantity: The kind that is looked for.
        units: What the user says of attributes' units, by their names.
    """
    found = []
    for name, value in element.attributes.items():
        stem, unit = _stem_and_unit(name, quantity)
        if quantity is RATE and name.lower().replace(" ", "") in _LABELS:
            # a label is for people: it counts where it is a rate with its unit and nothing else
            plain, written = _split(value)
            if plain is not None and known_unit(written, RATE) is not None and written:
                found.append((len(RATE.stems), Figure(name, plain, written)))
            continue
        if stem is None and quantity is not JITTER and known_unit(units.get(name, ""), quantity) is not None:
            stem = quantity.stems[-1]
        if stem is None:
            continue
        plain, written = _split(value)
        unit = units.get(name) or written or unit or quantity.fixed.get(stem, "")
        if stem == "linkspeed" and not unit:
            unit = str(element.attributes.get("LinkSpeedUnits", ""))
            unit += "bit/s" if unit else ""
        problem = ""
        if plain is None:
            problem = "it is no number"
        elif unit and known_unit(unit, quantity) is None:
            problem = f"{unit} is no unit of this kind, such as {quantity.example}"
        found.append((quantity.stems.index(stem), Figure(name, plain or 0.0, unit, problem)))
    yield from (figure for _, figure in sorted(found, key=lambda entry: entry[0]))


def known_unit(unit: str, quantity: Quantity) -> float | None:
    """Return the factor of a unit, or None for one that is not known. Case counts for bits (b) and bytes (B) alone."""
    if quantity.units is _RATES and "B" in unit:
        match = re.fullmatch(r"([kmgt]?i?)(?:B/s|Bps)", unit[0].lower() + unit[1:])
        return 8 * (_DECIMAL | _BINARY)[match[1]] if match and match[1] != "i" else None
    return quantity.units.get(unit.lower())


def check_units(units: Mapping[str, str]) -> None:
    """Raise BadInput for a unit of no kind."""
    for name, unit in units.items():
        if all(known_unit(unit, kind) is None for kind in _KINDS):
            raise BadInput(
                where=f"--unit {name}={unit}", got=unit, expected="a unit, such as ms, km, Gbit/s or %"
            )


def fibre_s(length_km: float) -> float:
    """Return what light takes in fibre of this length, in whole nanoseconds."""
    return round(length_km * FIBRE_S_PER_KM, 9)


def _stem_and_unit(name: str, quantity: Quantity) -> tuple[str | None, str]:
    """Return what an attribute's name stands for, and the unit in it: `delay_ms`, `latencyMs`, `Length (km)`."""
    for stem in sorted(quantity.stems, key=len, reverse=True):
        if name.lower() == stem:
            return stem, ""
        if name.lower().startswith(stem):
            rest = name[len(stem) :]
            unit = rest.strip(" _-.()[]")
            marked = rest != unit or unit[:1].isupper() or len(unit) > 1  # igraph's GML drops underscores
            if marked and known_unit(unit, quantity) is not None:
                return stem, unit
    return None, ""


def _split(value: Any) -> tuple[float | None, str]:
    """Return a value's number and unit; no number for what is none."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S*)\s*", value)
        return (number(match[1]), match[2]) if match else (None, "")
    return number(value), ""

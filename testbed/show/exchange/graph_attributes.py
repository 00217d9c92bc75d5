"""Attributes of a graph file: the used ones, their units, and geographic positions."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed.errors import BadInput
from testbed.spec.units import FIBRE_S_PER_KM

SHOWN_VALUES = 3
LONGEST_SHOWN = 60


@dataclass(eq=False)
class Element:
    """A node, an edge or the graph itself, with its attributes from the file.

    Attributes:
        where: File and line.
        name: Its name in messages, such as `node 4`.
        ends: The node ids of an edge; empty for other elements.
        directed: Whether an edge leads only from its first node to its second node.
        used: Names of attributes that the topology uses.
        reasons: Reasons why attributes were left out, by attribute name.
    """

    where: str
    name: str
    attributes: dict[str, Any] = field(default_factory=dict)
    ends: tuple[str, ...] = ()
    directed: bool = False
    used: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)

    def named(self, *names: str) -> str | None:
        """Return the first attribute, in the file's spelling, that has one of these lower-case names."""
        found = {name.lower(): name for name in reversed(self.attributes)}
        return next((found[name] for name in names if name in found), None)

    def use(self, *names: str | None) -> None:
        """Mark attributes as used, overriding earlier notes."""
        for name in names:
            if name is not None:
                self.used.add(name)
                self.reasons.pop(name, None)

    def reject(self, name: str, reason: str) -> None:
        """Record why an attribute is left out after all."""
        self.used.discard(name)
        self.reasons[name] = reason


@dataclass
class Graph:
    """A graph as represented in its file.

    Attributes:
        own: The attributes of the graph itself.
        nodes: Nodes by id, in the file's order.
        edges: Edges, in the file's order.
        left_out: Descriptions of parts of the file that are neither attributes, nodes nor edges.
    """

    own: Element
    nodes: dict[str, Element] = field(default_factory=dict)
    edges: list[Element] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add_node(self, key: str, where: str, attributes: dict[str, Any]) -> None:
        """Add a node; raise BadInput if its id is taken."""
        if (other := self.nodes.get(key)) is not None:
            raise BadInput(where=where, got=f"a node {key}", expected=f"another id: {other.where} has it")
        self.nodes[key] = Element(where, f"node {key}", attributes)

    def add_edge(self, ends: tuple[str, str], where: str, attributes: dict[str, Any], directed: bool) -> None:
        """Add an edge between two nodes, by their ids."""
        self.edges.append(Element(where, f"edge {ends[0]} to {ends[1]}", attributes, ends, directed))

    def check_ends(self) -> None:
        """Raise BadInput for an edge whose node does not exist."""
        for edge in self.edges:
            for end in edge.ends:
                if end not in self.nodes:
                    raise BadInput(where=edge.where, got=f"an edge of {end}", expected="a node of this file")

    def notes(self) -> list[str]:
        """Describe what was left out; call this after all used attributes have been marked."""
        found = list(self.left_out)
        if own := [name for name in self.own.attributes if name not in self.own.used]:
            lists = dict.fromkeys(name.partition(".")[0] for name in own)
            found.append(f"of the graph: {', '.join(lists)}")
        for kind, elements in (("node", list(self.nodes.values())), ("edge", self.edges)):
            found += unused_attributes(kind, elements)
        return found


def unused_attributes(kind: str, elements: Sequence[Element]) -> Iterator[str]:
    """Yield a line per attribute and reason, with the number of elements and some values."""
    groups: dict[tuple[str, str], list[Element]] = defaultdict(list)
    for element in elements:
        for name in element.attributes:
            if name not in element.used:
                groups[name, element.reasons.get(name, "")].append(element)
    for (name, reason), group in groups.items():
        values = list(dict.fromkeys(shorten_value(element.attributes[name]) for element in group))
        shown = ", ".join((*values[:SHOWN_VALUES], *(["..."] if len(values) > SHOWN_VALUES else [])))
        yield f"{name} of {count_text(len(group), kind)} ({shown}){f': {reason}' if reason else ''}"


def shorten_value(value: Any) -> str:
    """Return a value as one line of at most LONGEST_SHOWN characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


def count_text(count: int, kind: str) -> str:
    """Return `1 edge` or `2 edges`."""
    return f"{count} {kind}{'' if count == 1 else 's'}"


def number(value: Any) -> float | None:
    """Return the value as a finite number; None if it is not one."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


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
    """A kind of quantity of edges or nodes.

    Attributes:
        stems: Lower-case attribute names without a unit; the first that exists counts.
        units: Factors to bit/s, s, km or a share, by lower-case unit.
        fixed: Units of attribute names that always have the same unit.
        example: A unit for messages.
        least: Smallest possible value, in the quantity's own unit.
        most: Largest possible value.
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
    """An attribute with a value of a quantity; `unit` is empty if neither value, name nor user states it.

    `problem` says why there is no usable value or unit.
    """

    name: str
    value: float
    unit: str
    problem: str = ""


def find_figures(element: Element, quantity: Quantity, units: Mapping[str, str]) -> Iterator[Figure]:
    """Yield an element's attributes with values of a quantity, in order of preference.

    Args:
        element: A node or an edge.
        quantity: The quantity to look for.
        units: The user's units, by attribute name.
    """
    found = []
    for name, value in element.attributes.items():
        stem, unit = _stem_and_unit(name, quantity)
        if quantity is RATE and name.lower().replace(" ", "") in _LABELS:
            # a label is meant for users, so it counts only if it consists of a rate with its unit
            plain, written = _split(value)
            if plain is not None and unit_factor(written, RATE) is not None and written:
                found.append((len(RATE.stems), Figure(name, plain, written)))
            continue
        if stem is None and quantity is not JITTER and unit_factor(units.get(name, ""), quantity) is not None:
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
            problem = "it is not a number"
        elif unit and unit_factor(unit, quantity) is None:
            problem = f"{unit} is not a unit of this kind, such as {quantity.example}"
        found.append((quantity.stems.index(stem), Figure(name, plain or 0.0, unit, problem)))
    yield from (figure for _, figure in sorted(found, key=lambda entry: entry[0]))


def unit_factor(unit: str, quantity: Quantity) -> float | None:
    """Return the factor of a unit, or None if unknown. Case matters only between bits (b) and bytes (B)."""
    if quantity.units is _RATES and "B" in unit:
        match = re.fullmatch(r"([kmgt]?i?)(?:B/s|Bps)", unit[0].lower() + unit[1:])
        return 8 * (_DECIMAL | _BINARY)[match[1]] if match and match[1] != "i" else None
    return quantity.units.get(unit.lower())


def check_units(units: Mapping[str, str]) -> None:
    """Raise BadInput for an unknown unit."""
    for name, unit in units.items():
        if all(unit_factor(unit, kind) is None for kind in _KINDS):
            raise BadInput(
                where=f"--unit {name}={unit}", got=unit, expected="a unit, such as ms, km, Gbit/s or %"
            )


def fibre_s(length_km: float) -> float:
    """Return the propagation delay in a fibre of this length, in whole nanoseconds."""
    return round(length_km * FIBRE_S_PER_KM, 9)


def _stem_and_unit(name: str, quantity: Quantity) -> tuple[str | None, str]:
    """Return the stem and unit of an attribute name such as `delay_ms`, `latencyMs` or `Length (km)`."""
    for stem in sorted(quantity.stems, key=len, reverse=True):
        if name.lower() == stem:
            return stem, ""
        if name.lower().startswith(stem):
            rest = name[len(stem) :]
            unit = rest.strip(" _-.()[]")
            marked = rest != unit or unit[:1].isupper() or len(unit) > 1  # igraph's GML drops underscores
            if marked and unit_factor(unit, quantity) is not None:
                return stem, unit
    return None, ""


def _split(value: Any) -> tuple[float | None, str]:
    """Return a value's number and unit; None if it has no number."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S*)\s*", value)
        return (number(match[1]), match[2]) if match else (None, "")
    return number(value), ""


EARTH_KM = 6371.0
_ROUNDED_KM = 2.0
"""The distance in km by which rounded city positions may be nearer to each other than the real ones."""
_ROUNDED_SHARE = 0.05
_MOST_DETOUR = 4.0
_MOST_DETOUR_KM = 50.0


def least_km(away_km: float) -> float:
    """Return the minimum length of a link along a great circle, given rounded positions."""
    return max(away_km * (1 - _ROUNDED_SHARE) - _ROUNDED_KM, 0.0)


def is_plausible(length_km: float, away_km: float) -> bool:
    """Return whether a link length is plausible: not shorter than the great circle, and not a vast detour."""
    return least_km(away_km) <= length_km <= away_km * _MOST_DETOUR + _MOST_DETOUR_KM


def great_circle_km(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the distance between two positions (latitude, longitude in degrees) on a sphere of the Earth's size."""
    (lat, lon), (there_lat, there_lon) = (tuple(map(math.radians, place)) for place in (one, other))
    half = math.sin((there_lat - lat) / 2) ** 2
    half += math.cos(lat) * math.cos(there_lat) * math.sin((there_lon - lon) / 2) ** 2
    return 2 * EARTH_KM * math.asin(min(math.sqrt(half), 1.0))


def place_of(node: Element, names: tuple[str | None, str | None]) -> tuple[float, float] | None:
    """Return latitude and longitude; None if a node has none, or if they are out of range."""
    if None in names:
        return None
    lat, lon = (number(node.attributes[name or ""]) for name in names)
    if lat is None or lon is None or abs(lat) > 90 or abs(lon) > 180:
        for name in names:
            node.reject(name or "", "no place on Earth, in degrees")
        return None
    return lat, lon

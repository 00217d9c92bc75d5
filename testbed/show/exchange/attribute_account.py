"""An account of a foreign graph file: which of its attributes were used, and which were left out, and why."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed.errors import BadInput

SHOWN_VALUES = 3
LONGEST_SHOWN = 60


@dataclass(eq=False)
class Element:
    """A node, an edge or the graph itself, with the attributes that its file gives it.

    Attributes:
        where: File and line.
        name: What messages call it, such as `node 4`.
        ends: An edge's nodes, by their ids; empty for others.
        directed: Whether an edge leads from its first node to its second one only.
        used: Names of the attributes that had a part in the topology.
        reasons: Why an attribute was left out, by its name.
    """

    where: str
    name: str
    attributes: dict[str, Any] = field(default_factory=dict)
    ends: tuple[str, ...] = ()
    directed: bool = False
    used: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)

    def named(self, *names: str) -> str | None:
        """Return the first attribute, as the file spells it, that has one of these lower-case names."""
        found = {name.lower(): name for name in reversed(self.attributes)}
        return next((found[name] for name in names if name in found), None)

    def use(self, *names: str | None) -> None:
        """Note that attributes had a part in the topology, whatever was said of them before."""
        for name in names:
            if name is not None:
                self.used.add(name)
                self.reasons.pop(name, None)

    def reject(self, name: str, reason: str) -> None:
        """Note why an attribute is left out after all."""
        self.used.discard(name)
        self.reasons[name] = reason


@dataclass
class Graph:
    """A graph as its file has it.

    Attributes:
        own: The graph's own attributes.
        nodes: By id, in the file's order.
        edges: In the file's order.
        left_out: Parts of the file that are neither attributes, nodes nor edges, in words.
    """

    own: Element
    nodes: dict[str, Element] = field(default_factory=dict)
    edges: list[Element] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add_node(self, key: str, where: str, attributes: dict[str, Any]) -> None:
        """Add a node. BadInput where another one has its id."""
        if (other := self.nodes.get(key)) is not None:
            raise BadInput(where=where, got=f"a node {key}", expected=f"another id: {other.where} has it")
        self.nodes[key] = Element(where, f"node {key}", attributes)

    def add_edge(self, ends: tuple[str, str], where: str, attributes: dict[str, Any], directed: bool) -> None:
        """Add an edge between two nodes, by their ids."""
        self.edges.append(Element(where, f"edge {ends[0]} to {ends[1]}", attributes, ends, directed))

    def check_ends(self) -> None:
        """Raise BadInput for an edge that ends at a node which is not there."""
        for edge in self.edges:
            for end in edge.ends:
                if end not in self.nodes:
                    raise BadInput(where=edge.where, got=f"an edge of {end}", expected="a node of this file")

    def notes(self) -> list[str]:
        """Return what was left out, in words, once all that is used has been marked."""
        found = list(self.left_out)
        if own := [name for name in self.own.attributes if name not in self.own.used]:
            lists = dict.fromkeys(name.partition(".")[0] for name in own)
            found.append(f"of the graph: {', '.join(lists)}")
        for kind, elements in (("node", list(self.nodes.values())), ("edge", self.edges)):
            found += unused(kind, elements)
        return found


def unused(kind: str, elements: Sequence[Element]) -> Iterator[str]:
    """Yield a line for each attribute and reason, with how many elements have it and some of its values."""
    groups: dict[tuple[str, str], list[Element]] = defaultdict(list)
    for element in elements:
        for name in element.attributes:
            if name not in element.used:
                groups[name, element.reasons.get(name, "")].append(element)
    for (name, reason), group in groups.items():
        values = list(dict.fromkeys(shortened(element.attributes[name]) for element in group))
        shown = ", ".join((*values[:SHOWN_VALUES], *(["..."] if len(values) > SHOWN_VALUES else [])))
        yield f"{name} of {counted(len(group), kind)} ({shown}){f': {reason}' if reason else ''}"


def shortened(value: Any) -> str:
    """Return a value as one line of at most LONGEST_SHOWN characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


def counted(count: int, kind: str) -> str:
    """Return `1 edge` or `2 edges`."""
    return f"{count} {kind}{'' if count == 1 else 's'}"


def number(value: Any) -> float | None:
    """Return a finite number, or None for what is none."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None

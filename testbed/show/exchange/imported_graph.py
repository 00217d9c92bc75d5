"""A network imported from another tool's file, and its conversion to a topology."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.errors import BadInput, did_you_mean
from testbed.show.exchange.graph_attributes import count_text
from testbed.spec.buildings import TRANSIT_KEYS
from testbed.spec.units import format_duration, format_fraction, format_rate

LONGEST_NAME = 12


@dataclass(frozen=True)
class ImportDefaults:
    """Defaults for values that a file does not state. For links, None makes the value required.

    `hosts` is the number of hosts per building, or numbers by building. Numbers by building override the file, and
    other buildings without a number become transit sites. None means one host each, or zero if the file has hosts for
    other buildings. `units` has units, by attribute name, of graph attributes whose values have none.
    """

    rate_bps: float | None = None
    delay_s: float | None = None
    hosts: int | Mapping[str, int] | None = None
    nic_bps: float = 400e9
    units: Mapping[str, str] = field(default_factory=dict)


def parse_hosts(text: str) -> int | dict[str, int]:
    """Parse a number of hosts: "8" for each building, or "east=8,west=8" by name; raise BadInput if it is wrong."""
    expected = 'a number, or numbers by building, such as "east=8,west=8"'
    if text.isdecimal():
        return int(text)
    found: dict[str, int] = {}
    for entry in text.split(","):
        name, _, count = (part.strip() for part in entry.partition("="))
        if not name or not count.isdecimal():
            raise BadInput(where="--hosts", got=repr(text), expected=expected)
        if name in found:
            raise BadInput(where="--hosts", got=f"{name} twice", expected="each building once")
        found[name] = int(count)
    return found


@dataclass(frozen=True)
class LinkDirection:
    """One direction of an edge; values are None if the file does not state them."""

    rate_bps: float | None = None
    delay_s: float | None = None
    jitter_s: float = 0.0
    loss: float = 0.0
    corrupt: float = 0.0


@dataclass(frozen=True)
class Edge:
    """A link between two nodes, by their ids.

    Attributes:
        own: The WAN link of a topology file, if the graph was exported from one; its ends are node ids.
        planes: Number of parallel links.
        order: Sort key of links, which takes precedence over the file's order.
        hint: Values for rate or delay in the file that could not be used.
    """

    a: str
    b: str
    a_to_b: LinkDirection = LinkDirection()
    b_to_a: LinkDirection = LinkDirection()
    own: Mapping[str, Any] | None = None
    planes: int = 1
    order: float = 0.0
    hint: str = ""


@dataclass(frozen=True)
class Node:
    """A node; `own` is the building of an exported topology file, `kind` the file's term for such nodes."""

    label: str
    hosts: int | None = None
    nic_bps: float | None = None
    nic_delay_s: float = 0.0
    kind: str = ""
    own: Mapping[str, Any] | None = None


@dataclass
class ImportedNetwork:
    """A network from one file.

    Attributes:
        left_out: Descriptions of content of the file that is not in the topology.
        assumed: Descriptions of assumptions made because the file states no value.
        labels: The file's label of each building, if different from its name; set by `topology`.
    """

    path: Path
    nodes: dict[str, Node] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    mtu: int | None = None
    name: str = ""
    left_out: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)

    def topology(self, given: ImportDefaults) -> dict[str, Any]:
        """Convert to the content of a topology file.

        BadInput is raised for an edge without a rate or delay, if there is no default either.
        """
        self._keep_largest_part()
        names = _names({key: node.label for key, node in self.nodes.items()})
        self.labels = {names[key]: _title(names[key], node) for key, node in self.nodes.items()}
        hosts = self._hosts(names, given)
        buildings = {names[key]: _building(node, given, hosts.get(key)) for key, node in self.nodes.items()}
        wan: list[dict[str, Any]] = []
        for edge in self.edges:
            ends = {"a": names[edge.a], "b": names[edge.b]}
            if edge.own is not None:
                wan.append({**edge.own, "a": names[edge.own["a"]], "b": names[edge.own["b"]]})
                continue
            entry = {**ends, **self._link(edge, given)}
            reversed_entry = {**entry, "a": ends["b"], "b": ends["a"]}
            alike = ({**entry, "planes": 1}, {**reversed_entry, "planes": 1})
            existing = next((own for own in wan if {**own, "planes": 1} in alike), None)
            if existing is not None and "a_to_b" not in entry:
                existing["planes"] = existing.get("planes", 1) + edge.planes
            else:
                wan.append(entry if edge.planes == 1 else {**entry, "planes": edge.planes})
        mtu = {} if self.mtu is None else {"mtu": self.mtu}
        return {"name": _file_name(self.name or self.path.stem), **mtu, "buildings": buildings, "wan": wan}

    def _hosts(self, names: Mapping[str, str], given: ImportDefaults) -> dict[str, int]:
        """Return hosts per node if the file does not state them or `given` does by name; may raise BadInput."""
        unset = [key for key, node in self.nodes.items() if node.own is None and node.hosts is None]
        if isinstance(given.hosts, Mapping):
            keys = {**{node.label: key for key, node in self.nodes.items()}, **_inverse(names)}
            for name in given.hosts:
                if name not in keys:
                    raise BadInput(
                        where="--hosts",
                        got=name,
                        expected=f"a building: {did_you_mean(name, _inverse(names))}",
                    )
            return dict.fromkeys(unset, 0) | {keys[name]: count for name, count in given.hosts.items()}
        if given.hosts is not None:
            return dict.fromkeys(unset, given.hosts)
        if len(unset) == len(self.nodes):
            return dict.fromkeys(unset, 1)
        if unset:
            shown = ", ".join(names[key] for key in unset)
            self.assumed.append(f"no hosts in {shown}, since the file does not say; set them with --hosts")
        return dict.fromkeys(unset, 0)

    def _link(self, edge: Edge, given: ImportDefaults) -> dict[str, Any]:
        ways = [self._settings(edge, way, given) for way in (edge.a_to_b, edge.b_to_a)]
        if ways[0] == ways[1]:
            return ways[0]
        common = {key: value for key, value in ways[0].items() if ways[1].get(key) == value}
        own = [{key: value for key, value in way.items() if key not in common} for way in ways]
        return {**common, "a_to_b": own[0], "b_to_a": own[1]}

    def _settings(self, edge: Edge, way: LinkDirection, given: ImportDefaults) -> dict[str, Any]:
        chosen = {
            "rate": given.rate_bps if way.rate_bps is None else way.rate_bps,
            "delay": given.delay_s if way.delay_s is None else way.delay_s,
        }
        for name, value in chosen.items():
            if value is None:
                where = f"{self.path}: {self.nodes[edge.a].label} to {self.nodes[edge.b].label}"
                expected = f"one, or --{name} for all that have none"
                raise BadInput(where=where, got=f"no {name}", expected=expected, hint=edge.hint)
        settings: dict[str, Any] = {
            "rate": format_rate(float(chosen["rate"] or 0)),
            "delay": format_duration(float(chosen["delay"] or 0)),
        }
        if way.jitter_s:
            settings["jitter"] = format_duration(way.jitter_s)
        if way.loss:
            settings["loss"] = format_fraction(way.loss)
        if way.corrupt:
            settings["corrupt"] = format_fraction(way.corrupt)
        return settings

    def _keep_largest_part(self) -> None:
        """Keep only the largest connected component, and drop links from a node to itself."""
        loops = [edge for edge in self.edges if edge.a == edge.b]
        if loops:
            where = ", ".join(dict.fromkeys(self.nodes[edge.a].label for edge in loops))
            self.left_out.append(f"{count_text(len(loops), 'link')} from a node to itself: {where}")
        self.edges = [edge for edge in self.edges if edge.a != edge.b]
        if not self.nodes:
            raise BadInput(where=str(self.path), got="no node", expected="a network")
        kept = largest_part(self.nodes, [(edge.a, edge.b) for edge in self.edges])
        unconnected = sorted({node.label for key, node in self.nodes.items() if key not in kept})
        if unconnected:
            self.left_out.append(f"nodes without a link to the largest part: {', '.join(unconnected)}")
        self.nodes = {key: node for key, node in self.nodes.items() if key in kept}
        self.edges = [edge for edge in self.edges if edge.a in kept]


def _title(name: str, node: Node) -> str:
    label = " ".join(node.label.split())
    return ", ".join(part for part in ("" if label == name else label, node.kind) if part)


def _building(node: Node, given: ImportDefaults, hosts: int | None) -> dict[str, Any]:
    """Return the building's entry of a topology file; `hosts` overrides the file."""
    if hosts is None and node.own is not None:
        return dict(node.own)
    own = node.own or {}
    count = node.hosts if hosts is None else hosts
    if count == 0:
        return {"hosts": 0, **{key: own[key] for key in TRANSIT_KEYS if key in own and key != "hosts"}}
    rate = given.nic_bps if node.nic_bps is None else node.nic_bps
    delay = {"delay": format_duration(node.nic_delay_s)} if node.nic_delay_s else {}
    entry = {"hosts": count, "nic": {"rate": format_rate(rate), **delay}}
    return {**entry, **own, "hosts": count}


def _inverse(names: Mapping[str, str]) -> dict[str, str]:
    return {name: key for key, name in names.items()}


def largest_part(nodes: Iterable[str], links: Sequence[tuple[str, str]]) -> set[str]:
    """Return the nodes of the largest connected component; if several are equally large, the last."""
    near: dict[str, set[str]] = defaultdict(set)
    for a, b in links:
        near[a].add(b)
        near[b].add(a)
    seen: set[str] = set()
    largest: set[str] = set()
    for key in nodes:
        if key in seen:
            continue
        part, unvisited = {key}, [key]
        while unvisited:
            more = near[unvisited.pop()] - part
            part |= more
            unvisited.extend(more)
        seen |= part
        if len(part) >= len(largest):
            largest = part
    return largest


def _names(labels: Mapping[str, str]) -> dict[str, str]:
    """Return unique building names of lower-case letters and digits that cannot collide with host names."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for key, label in labels.items():
        stem = re.sub(r"[^a-z0-9]", "", label.lower())
        stem = stem if re.match("[a-z]", stem) else f"n{stem}"
        name, number = stem[:LONGEST_NAME], 1
        while name in taken:
            number += 1
            ending = f"x{number}"
            name = stem[: LONGEST_NAME - len(ending)] + ending
        taken.add(name)
        found[key] = name
    return found


def _file_name(text: str) -> str:
    name = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")
    return name[:64] or "imported"

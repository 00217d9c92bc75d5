"""GraphML: write topologies, and read what networkx, igraph, yEd, Gephi, the Topology Zoo and Shadow 1 write.

What a topology file says more stands in an attribute `testbed` of nodes and edges. It counts on the way back as long as
the others are as they were written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.parsers import expat

from testbed.errors import BadInput
from testbed.show.exchange.attribute_account import Element, Graph
from testbed.spec.topology import TopologySpec

OWN = "testbed"


def export_graphml(spec: TopologySpec, path: Path) -> list[str]:
    """Write a topology to a file, and return what is left out of it, in words.

    Raises:
        BadInput: networkx is not installed.
    """
    try:
        import networkx  # noqa: PLC0415
    except ImportError:
        raise BadInput(
            where="GraphML",
            got="no networkx here",
            expected="the extra `graphml`: pip install 'scale-across-testbed[graphml]'",
        ) from None
    graph = networkx.MultiGraph(label=spec.name, mtu=spec.mtu)
    data = spec.to_data()
    for name, building in data["buildings"].items():
        nic = spec.buildings[name].nic
        cards = {} if nic is None else {"nic_rate": nic.rate_bps}
        own = {OWN: json.dumps(building)}
        graph.add_node(name, label=name, hosts=spec.buildings[name].hosts, **cards, **own)
    for order, (link, own) in enumerate(zip(spec.wan, data["wan"], strict=True)):
        values = standard_attributes(link.a_to_b.rate_bps or link.rate_bps, link.a_to_b.delay_s, link.delay_s)
        graph.add_edge(link.a, link.b, order=order, planes=link.planes, **values, **{OWN: json.dumps(own)})
    networkx.write_graphml(graph, path)
    return []


def standard_attributes(
    rate_bps: float | None, own_s: float | None, common_s: float | None
) -> dict[str, Any]:
    """Return a link's rate and delay by the names under which other programs find them."""
    delay_s = common_s if own_s is None else own_s
    return {"LinkSpeedRaw": float(rate_bps or 0), "delay_s": float(delay_s or 0)}


def parse_graphml(path: Path, content: bytes) -> Graph:
    """Return the graph of a GraphML file.

    Groups of nodes, as yEd draws them, are read as nodes beside their members. Hyperedges, ports and further graphs are
    left out, and named.

    Raises:
        BadInput: The content is no GraphML, two nodes have one id, or an edge ends at no node.
    """
    reader = _Reader(path)
    try:
        reader.parser.Parse(content, True)
    except expat.ExpatError as error:
        where = f"{path}:{error.lineno}"
        raise BadInput(where=where, got=expat.ErrorString(error.code), expected="GraphML") from None
    if reader.graph is None:
        raise BadInput(where=str(path), got="no graph", expected="GraphML")
    reader.finish()
    return reader.graph


@dataclass
class _Key:
    """What a `<key>` declares: an attribute's name, for which elements, and its default."""

    name: str
    domain: str
    default: str = ""


@dataclass
class _Reader:
    """Follow a file tag by tag. `open` holds the tags from the root to where the parser is."""

    path: Path
    graph: Graph | None = None
    keys: dict[str, _Key] = field(default_factory=dict)
    open: list[tuple[str, dict[str, str], int]] = field(default_factory=list)
    owners: list[dict[str, Any]] = field(default_factory=list)
    data: list[tuple[dict[str, Any], str, str, int]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    directed: bool = False
    passed_over: int = 0

    def __post_init__(self) -> None:
        self.parser = expat.ParserCreate(namespace_separator=" ")
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self.text.append

    def _start(self, tag: str, values: dict[str, str]) -> None:
        name, line = tag.rpartition(" ")[2], self.parser.CurrentLineNumber
        self.open.append((name, values, line))
        if name in ("data", "default", "desc", "NodeLabel", "EdgeLabel"):
            self.text.clear()
        if self.passed_over:
            self.passed_over += 1
        elif name == "key":
            self.keys[values.get("id", "")] = _Key(
                values.get("attr.name") or values.get("yfiles.type") or values.get("id", ""),
                values.get("for", "all"),
            )
        elif name in ("hyperedge", "port") or (name == "graph" and self.graph and not self.owners):
            self._pass_over(name, line)
        elif name in ("graph", "node", "edge"):
            self._element(name, values, line)

    def _pass_over(self, name: str, line: int) -> None:
        """Leave out a tag with all that is in it."""
        self.passed_over = 1
        if self.graph is not None:
            self.graph.left_out.append(f"{'another graph' if name == 'graph' else name} (line {line})")

    def _element(self, name: str, values: dict[str, str], line: int) -> None:
        where = f"{self.path}:{line}"
        if name == "graph":
            if self.graph is None:
                self.graph = Graph(Element(where, "the graph"))
                self.directed = values.get("edgedefault") == "directed"
            self.owners.append(self.owners[-1] if self.owners else self.graph.own.attributes)
            return
        if self.graph is None:
            raise BadInput(where=where, got=f"a {name} in no graph", expected="GraphML")
        more = {key: value for key, value in values.items() if key in ("sourceport", "targetport")}
        self.owners.append(more)
        if name == "node":
            self.graph.add_node(self._required(values, "id", line), where, more)
        else:
            ends = self._required(values, "source", line), self._required(values, "target", line)
            stated = values.get("directed")
            self.graph.add_edge(ends, where, more, self.directed if stated is None else stated == "true")

    def _required(self, values: dict[str, str], name: str, line: int) -> str:
        if name not in values:
            raise BadInput(where=f"{self.path}:{line}: {name}", got="none", expected="one")
        return values[name]

    def _end(self, _: str) -> None:
        name, values, line = self.open.pop()
        text = "".join(self.text).strip()
        if self.passed_over:
            self.passed_over -= 1
        elif name == "default" and self.open[-1][0] == "key":
            self.keys[self.open[-1][1].get("id", "")].default = text
        elif name in ("desc", "NodeLabel", "EdgeLabel") and self.owners:
            if text:
                self.owners[-1].setdefault(name, text)
        elif name == "data" and self.owners:
            self.data.append((self.owners[-1], values.get("key", ""), text, line))
            self.text.clear()
        elif name in ("graph", "node", "edge") and self.owners:
            self.owners.pop()

    def finish(self) -> None:
        """Give each element its attributes: keys may be declared behind the graph, and have defaults."""
        assert self.graph is not None
        for attributes, key, text, line in self.data:
            declared = self.keys.get(key)
            name = declared.name if declared else key
            drawing = declared is not None and name in ("nodegraphics", "edgegraphics")
            if name in attributes and not drawing:
                name = f"{name} (line {line})"
            if text or drawing:
                attributes[name] = "a drawing" if drawing else text
        elements = [("node", element) for element in self.graph.nodes.values()]
        elements += [("edge", element) for element in self.graph.edges]
        for kind, element in [*elements, ("graph", self.graph.own)]:
            for declared in self.keys.values():
                if declared.default and declared.domain in (kind, "all"):
                    element.attributes.setdefault(declared.name, declared.default)
        self.graph.check_ends()

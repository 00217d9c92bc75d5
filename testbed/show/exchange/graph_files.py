"""GraphML reader and writer, and GML reader, for files of common graph tools.

Properties of a topology file that graphs lack are in an attribute `testbed` of nodes and edges. On import it counts as
long as the standard attributes are unchanged.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.parsers import expat

from testbed.errors import BadInput
from testbed.show.exchange.graph_attributes import Element, Graph
from testbed.spec.topology import TopologySpec

OWN = "testbed"


def export_graphml(spec: TopologySpec, path: Path) -> list[str]:
    """Write a topology as GraphML, and return what is left out, in words.

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
    """Return a link's rate and delay under the names that other programs use."""
    delay_s = common_s if own_s is None else own_s
    return {"LinkSpeedRaw": float(rate_bps or 0), "delay_s": float(delay_s or 0)}


def parse_graphml(path: Path, content: bytes) -> Graph:
    """Parse a GraphML file.

    Groups of nodes, as yEd draws them, become nodes next to their members. Hyperedges, ports and further graphs are
    left out and reported.

    Raises:
        BadInput: The content is not GraphML, a node id is duplicated, or an edge has no node.
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
    """A `<key>` declaration: an attribute's name, its elements, and its default."""

    name: str
    domain: str
    default: str = ""


@dataclass
class _Reader:
    """Follows a file tag by tag. `open` holds the tags from the root to the current one."""

    path: Path
    graph: Graph | None = None
    keys: dict[str, _Key] = field(default_factory=dict)
    open: list[tuple[str, dict[str, str], int]] = field(default_factory=list)
    owners: list[dict[str, Any]] = field(default_factory=list)
    data: list[tuple[dict[str, Any], str, str, int]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    directed: bool = False
    skip_depth: int = 0

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
        if self.skip_depth:
            self.skip_depth += 1
        elif name == "key":
            self.keys[values.get("id", "")] = _Key(
                values.get("attr.name") or values.get("yfiles.type") or values.get("id", ""),
                values.get("for", "all"),
            )
        elif name in ("hyperedge", "port") or (name == "graph" and self.graph and not self.owners):
            self._skip(name, line)
        elif name in ("graph", "node", "edge"):
            self._element(name, values, line)

    def _skip(self, name: str, line: int) -> None:
        """Skip a tag with its content, and report it."""
        self.skip_depth = 1
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
        if self.skip_depth:
            self.skip_depth -= 1
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
        """Assign attributes and defaults to elements: keys may be declared after the graph."""
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


_TOKEN = re.compile(
    r"""(?P<space>\s+|^\s*\#[^\n]*)|(?P<text>"[^"]*")|(?P<open>\[)|(?P<close>\])|(?P<word>[^\s\[\]"]+)""",
    re.MULTILINE,
)
_EXPECTED = "GML: keys with a number, a text in quotes or a list in brackets"
Pairs = list[tuple[str, Any, int]]
"""The keys, values and lines of a list; a value is a number, a text or another list."""


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    line: int


def parse_gml(path: Path, text: str) -> Graph:
    """Parse a GML file.

    Raises:
        BadInput: The text is not GML, has no graph, a node id is duplicated, or an edge has no node.
    """
    tokens = _tokens(path, text)
    document = _pairs(path, tokens, None)
    graphs = [(value, line) for key, value, line in document if key == "graph" and isinstance(value, list)]
    if not graphs:
        raise BadInput(where=str(path), got="no graph", expected=_EXPECTED)
    (pairs, line), more = graphs[0], graphs[1:]
    own = [pair for pair in document if pair[0] != "graph"]
    own += [pair for pair in pairs if pair[0] not in ("node", "edge")]
    graph = Graph(Element(f"{path}:{line}", "the graph", _attributes(own)))
    graph.left_out += [f"another graph (line {line})" for _, line in more]
    graph.own.use("directed", "multigraph")
    directed = str(graph.own.attributes.get("directed", 0)).lower() in ("1", "true")
    for key, value, line in pairs:
        if key in ("node", "edge") and not isinstance(value, list):
            raise BadInput(where=f"{path}:{line}: {key}", got=str(value), expected="a list in brackets")
        if key == "node":
            graph.add_node(_required(path, line, value, "id"), f"{path}:{line}", _attributes(value, "id"))
        elif key == "edge":
            ends = _required(path, line, value, "source"), _required(path, line, value, "target")
            attributes = _attributes(value, "source", "target", "id", "key")
            graph.add_edge(ends, f"{path}:{line}", attributes, directed)
    graph.check_ends()
    return graph


def _tokens(path: Path, text: str) -> Iterator[_Token]:
    position, line = 0, 1
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise BadInput(where=f"{path}:{line}", got="a text without its closing quote", expected=_EXPECTED)
        if match.lastgroup and match.lastgroup != "space":
            yield _Token(match.lastgroup, match[0], line)
        line += match[0].count("\n")
        position = match.end()


def _pairs(path: Path, tokens: Iterator[_Token], opened: _Token | None) -> Pairs:
    """Return the pairs up to this list's closing bracket; for the outermost list, up to the end of the file."""
    found: Pairs = []
    for key in tokens:
        if key.kind == "close" and opened is not None:
            return found
        value = next(tokens, None)
        if key.kind != "word" or value is None or value.kind == "close":
            raise BadInput(where=f"{path}:{key.line}", got=key.text[:60], expected=_EXPECTED)
        content = _pairs(path, tokens, value) if value.kind == "open" else _scalar(value.text)
        found.append((key.text, content, key.line))
    if opened is not None:
        raise BadInput(where=f"{path}:{opened.line}", got="a list that does not end", expected=_EXPECTED)
    return found


def _scalar(text: str) -> Any:
    if text.startswith('"'):
        return html.unescape(text[1:-1])
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _attributes(pairs: Pairs, *structure: str) -> dict[str, Any]:
    """Return attributes by name, with nested lists flattened; a repeated name has a list of values."""
    found: dict[str, list[Any]] = {}
    for key, value, _ in pairs:
        if key in structure:
            continue
        if isinstance(value, list):
            for name, inner in _attributes(value).items():
                found.setdefault(f"{key}.{name}", []).append(inner)
        elif value != "":
            found.setdefault(key, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def _required(path: Path, line: int, pairs: Pairs, name: str) -> str:
    values = [value for key, value, _ in pairs if key == name and not isinstance(value, list)]
    if len(values) != 1:
        raise BadInput(where=f"{path}:{line}: {name}", got=f"{len(values)} of them", expected="one")
    return str(values[0])

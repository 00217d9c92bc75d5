"""GraphML reader and writer, and GML reader, for files of common graph tools.

Properties of a topology file that graphs lack are stored in an attribute `testbed` of nodes and edges. On import, this
attribute is used as long as the standard attributes are unchanged.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element as XmlElement
from xml.etree.ElementTree import TreeBuilder
from xml.parsers import expat

from testbed.errors import BadInput
from testbed.show.exchange.graph_attributes import Element, Graph
from testbed.spec.topology import TopologySpec

OWN = "testbed"


def export_graphml(spec: TopologySpec, path: Path) -> list[str]:
    """Write a topology as GraphML, and return descriptions of what is left out.

    Raises:
        BadInput: If networkx is not installed.
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

    Groups of nodes, as drawn by yEd, become nodes next to their members. Hyperedges, ports and additional graphs are
    left out and reported.

    Raises:
        BadInput: If the content is not GraphML, a node id is duplicated, or an edge has no node.
    """
    root = _parse_xml(path, content)
    reader = _Reader(path)
    reader.read(root, None)
    if reader.graph is None:
        raise BadInput(where=str(path), got="no graph", expected="GraphML")
    reader.finish({key.get("id", ""): key for key in root.iter("key")})
    return reader.graph


_LINE = "line in the file"
"""The name, impossible in XML, of the attribute that `_parse_xml` adds."""


def _parse_xml(path: Path, content: bytes) -> XmlElement:
    """Return the root of a file, with tags without namespaces and each element's line as an attribute."""
    builder, parser = TreeBuilder(), expat.ParserCreate(namespace_separator=" ")

    def start(tag: str, values: dict[str, str]) -> None:
        builder.start(tag.rpartition(" ")[2], {**values, _LINE: str(parser.CurrentLineNumber)})

    parser.StartElementHandler, parser.EndElementHandler = start, builder.end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        where = f"{path}:{error.lineno}"
        raise BadInput(where=where, got=expat.ErrorString(error.code), expected="GraphML") from None
    return builder.close()


def _text(element: XmlElement) -> str:
    return "".join(element.itertext()).strip()


@dataclass
class _Reader:
    """A collector of a file's graph; `data` has the attributes that each `<data>` belongs to."""

    path: Path
    graph: Graph | None = None
    data: list[tuple[dict[str, Any], XmlElement]] = field(default_factory=list)
    directed: bool = False

    def read(self, parent: XmlElement, owner: dict[str, Any] | None) -> None:
        """Read an element's content; `owner` has the attributes of the innermost enclosing graph, node or edge."""
        for element in parent:
            name = element.tag
            if name in ("hyperedge", "port") or (name == "graph" and self.graph and owner is None):
                if self.graph is not None:
                    what = "another graph" if name == "graph" else name
                    self.graph.left_out.append(f"{what} (line {element.get(_LINE)})")
            elif name in ("graph", "node", "edge"):
                self.read(element, self._add(element, owner))
            elif name in ("desc", "NodeLabel", "EdgeLabel") and owner is not None:
                if text := _text(element):
                    owner.setdefault(name, text)
            else:
                if name == "data" and owner is not None:
                    self.data.append((owner, element))
                self.read(element, owner)

    def _add(self, element: XmlElement, owner: dict[str, Any] | None) -> dict[str, Any]:
        """Add a graph, a node or an edge, and return its attributes; the graph in a group has those of the group."""
        where = f"{self.path}:{element.get(_LINE)}"
        if element.tag == "graph":
            if self.graph is None:
                self.graph = Graph(Element(where, "the graph"))
                self.directed = element.get("edgedefault") == "directed"
            return self.graph.own.attributes if owner is None else owner
        if self.graph is None:
            raise BadInput(where=where, got=f"a {element.tag} in no graph", expected="GraphML")
        attributes: dict[str, Any] = {
            key: value for key, value in element.items() if key in ("sourceport", "targetport")
        }

        def required(name: str) -> str:
            if (value := element.get(name)) is None:
                raise BadInput(where=f"{where}: {name}", got="none", expected="one")
            return value

        if element.tag == "node":
            self.graph.add_node(required("id"), where, attributes)
        else:
            stated = element.get("directed")
            directed = self.directed if stated is None else stated == "true"
            self.graph.add_edge((required("source"), required("target")), where, attributes, directed)
        return attributes

    def finish(self, keys: Mapping[str, XmlElement]) -> None:
        """Assign attributes and defaults to elements; `keys` are declarations, which may follow the graph."""
        assert self.graph is not None
        names = {own: key.get("attr.name") or key.get("yfiles.type") or own for own, key in keys.items()}
        for attributes, element in self.data:
            key, text = element.get("key", ""), _text(element)
            name = names.get(key, key)
            drawing = key in keys and name in ("nodegraphics", "edgegraphics")
            if name in attributes and not drawing:
                name = f"{name} (line {element.get(_LINE)})"
            if text or drawing:
                attributes[name] = "a drawing" if drawing else text
        elements = [("node", node) for node in self.graph.nodes.values()]
        elements += [("edge", edge) for edge in self.graph.edges]
        for own, declared in keys.items():
            default, domain = declared.find("default"), declared.get("for", "all")
            if default is not None and (text := _text(default)):
                for kind, one in [*elements, ("graph", self.graph.own)]:
                    if domain in (kind, "all"):
                        one.attributes.setdefault(names[own], text)
        self.graph.check_ends()


_TOKEN = re.compile(
    r"""(?P<space>\s+|^\s*\#[^\n]*)|(?P<text>"[^"]*")|(?P<open>\[)|(?P<close>\])|(?P<word>[^\s\[\]"]+)""",
    re.MULTILINE,
)
_EXPECTED = "GML: keys with a number, a text in quotes or a list in brackets"
Pairs = list[tuple[str, Any, int]]
"""The keys, values and lines of a list; a value is a number, a text or another list."""


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def parse_gml(path: Path, text: str) -> Graph:
    """Parse a GML file.

    Raises:
        BadInput: If the text is not GML, has no graph, a node id is duplicated, or an edge has no node.
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

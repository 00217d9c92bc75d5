"""Read GML (Himsolt, 1997) as the Topology Zoo, networkx, igraph, Gephi and Shadow write it.

Parallel edges are read whether or not the file says `multigraph 1`, and lists in lists (`graphics [ x 1 ]`) become
attributes named after both (`graphics.x`).
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.errors import BadInput
from testbed.show.exchange.attribute_account import Element, Graph

_TOKEN = re.compile(
    r"""(?P<space>\s+|^\s*\#[^\n]*)|(?P<text>"[^"]*")|(?P<open>\[)|(?P<close>\])|(?P<word>[^\s\[\]"]+)""",
    re.MULTILINE,
)
_EXPECTED = "GML: keys with a number, a text in quotes or a list in brackets"
Pairs = list[tuple[str, Any, int]]
"""A list's keys, values and lines; a value is a number, a text or another list."""


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    line: int


def parse_gml(path: Path, text: str) -> Graph:
    """Return the graph of a GML file.

    Raises:
        BadInput: The text is no GML, has no graph, two nodes have one id, or an edge ends at no node.
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
    """Return the pairs up to the bracket that closes this list, or up to the file's end for the outermost one."""
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
    """Return attributes by name, lists in lists flattened; of a name that comes twice all values, in a list."""
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

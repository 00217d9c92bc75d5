"""YAML files with the line of every key and item, command-line overrides, and problems located in either."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from testbed.spec.catalogue import KINDS, shipped
from testbed.spec.errors import ConfigError, Problem

Location = tuple[Any, ...]  # keys and list positions from the top level to a value
OVERRIDES = "--set"
IN_MEMORY = "the mapping given"


@dataclass(frozen=True)
class Origin:
    """The place where a value was written; `top` is the number of leading parts of its location outside that file."""

    file: str
    line: int | None
    top: int = 0


@dataclass
class Document:
    """A parsed file: plain data, and the origin of every location in it."""

    file: str
    data: dict[str, Any]
    origins: dict[Location, Origin] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Document:
        """Return a document with a copy of plain data, as if read from a file."""
        return cls(IN_MEMORY, copy.deepcopy(dict(data)), {(): Origin(IN_MEMORY, None)})

    def problem(self, location: Location, value: str, expected: str) -> Problem:
        """Return a problem at a location, attributed to the closest enclosing place that was written in a file."""
        around = (location[:length] for length in range(len(location), -1, -1))
        origin = next(self.origins[part] for part in around if part in self.origins)
        return Problem(origin.file, origin.line, dotted(location[origin.top :]), value, expected)

    def graft(self, key: str, other: Document) -> None:
        """Insert another document under a top-level key. Its problems still name its own file and fields."""
        self.data[key] = other.data
        self._forget((key,))
        for location, origin in other.origins.items():
            here = (key, *location)
            self.origins[here] = Origin(origin.file, origin.line, origin.top + 1)

    def override(self, assignment: str) -> None:
        """Apply a "path=value" override, the value in YAML. Raises ConfigError.

        Keys may be new; list positions must exist.
        """
        self.put(*parse_override(assignment))

    def put(self, path: str, value: Any) -> None:
        """Set the value at a path such as topology.wan.0.delay. Raises ConfigError."""
        *parents, last = path.split(".")
        around: Any = self.data
        location: Location = ()
        for part in parents:
            key = _key(path, location, around, part)
            if isinstance(around, dict):
                around.setdefault(key, {})
            around = around[key]
            location = (*location, key)
        key = _key(path, location, around, last)
        around[key] = value
        location = (*location, key)
        self._forget(location)
        self.origins[location] = Origin(OVERRIDES, None)

    def _forget(self, location: Location) -> None:
        for known in [known for known in self.origins if known[: len(location)] == location]:
            del self.origins[known]


def dotted(location: Location) -> str:
    """Return a location in dotted form: wan.0.delay."""
    return ".".join(map(str, location))


def parse_override(assignment: str, source: str = OVERRIDES) -> tuple[str, Any]:
    """Split "path=value" and parse the value as YAML. `source` is named in a ConfigError."""
    path, equals, text = assignment.partition("=")
    path = path.strip()
    if not equals or not all(path.split(".")):
        example = "PATH=VALUE, such as trials=3" if source == OVERRIDES else "KEY=VALUE, such as loss=1%"
        raise ConfigError([Problem(source, None, "", repr(assignment), example)])
    try:
        return path, yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        expected = "a value in YAML, such as 3, 5 ms or [ring]"
        raise ConfigError([Problem(source, None, path, repr(text), expected)]) from None


def _key(path: str, parent: Location, around: Any, part: str) -> str | int:
    """Return a part of an override's path as a key or position of the value it applies to."""
    if isinstance(around, dict):
        return part
    if isinstance(around, list):
        if part.isdecimal() and int(part) < len(around):
            return int(part)
        positions = f"a position from 0 to {len(around) - 1}" if around else "nothing below it: it is empty"
        raise ConfigError([Problem(OVERRIDES, None, path, repr(part), f"in {dotted(parent)} {positions}")])
    expected = f"nothing below {dotted(parent)}, which is {show(around)}"
    raise ConfigError([Problem(OVERRIDES, None, path, "an unknown path", expected)])


def read_document(path: Path, any_keys: bool = False) -> Document:
    """Read a YAML file whose top level is a mapping. Raises ConfigError, with the line, for anything else.

    `any_keys`: keep scalar keys that YAML parses as numbers and the like as text, like programs in Go.
    """
    file = str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        expected = "a YAML file"
        if not path.suffix:
            names = [name for kind in KINDS for name in shipped(kind)]
            close = difflib.get_close_matches(file, names, n=1)
            expected += ", or a name that `testbed init` lists"
            expected += f"; did you mean {close[0]}?" if close else ""
        raise ConfigError([Problem(file, None, "", "no such file", expected)]) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "bytes that are not UTF-8"
        raise ConfigError([Problem(file, None, "", str(reason), "a readable YAML file")]) from None
    builder = _Builder(file, any_keys)
    data = builder.build(text)
    if builder.problems:
        raise ConfigError(builder.problems)
    if not isinstance(data, dict):
        raise ConfigError([Problem(file, 1, "", show(data), "keys and values (a mapping) at the top level")])
    return Document(file, data, builder.origins)


MERGE = "tag:yaml.org,2002:merge"


class _Builder:
    """Converts YAML's node tree to plain data, records lines, and rejects duplicate and non-text keys."""

    def __init__(self, file: str, any_keys: bool) -> None:
        self.file = file
        self.any_keys = any_keys
        self.origins: dict[Location, Origin] = {(): Origin(file, None)}
        self.problems: list[Problem] = []

    def build(self, text: str) -> Any:
        try:
            loader = yaml.SafeLoader(text)
            try:
                node = loader.get_single_node()
                return None if node is None else self._value(loader, node, ())
            finally:
                loader.dispose()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            what = ", ".join(part for part in (error.context, error.problem) if part)
            line = None if mark is None else mark.line + 1
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            what = f"the character {chr(error.character)!r}"
        except RecursionError:
            line, what = None, "infinite nesting"
        self.problems.append(Problem(self.file, line, "", what, "valid YAML"))
        return None

    def _value(self, loader: yaml.SafeLoader, node: yaml.Node, location: Location) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._mapping(loader, node, location)
        if isinstance(node, yaml.SequenceNode):
            items = []
            for position, item in enumerate(node.value):
                where = (*location, position)
                self.origins[where] = Origin(self.file, item.start_mark.line + 1)
                items.append(self._value(loader, item, where))
            return items
        try:
            return loader.construct_object(node)
        except ValueError as error:  # an invalid date
            self._problem(node.start_mark.line + 1, location, f"{node.value} ({error})", "valid YAML")
            return None

    def _mapping(self, loader: yaml.SafeLoader, node: yaml.MappingNode, location: Location) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in self._with_merged(node, location):
            line = key_node.start_mark.line + 1
            key = loader.construct_object(key_node, deep=True)
            if self.any_keys and isinstance(key_node, yaml.ScalarNode):
                key = key_node.value
            where = (*location, key)
            if not isinstance(key, str):
                self._problem(line, location, f"the key {show(key)}", "a key that is text")
            elif key in found:
                self._problem(
                    line, where, "this key again", f"it once; it is on line {self.origins[where].line}"
                )
            else:
                self.origins[where] = Origin(self.file, line)
                found[key] = self._value(loader, value_node, where)
        return found

    def _with_merged(
        self, node: yaml.MappingNode, location: Location
    ) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """Yield a mapping's own pairs, then those merged into it (`<<: *anchor`) that it lacks."""
        own = [pair for pair in node.value if pair[0].tag != MERGE]
        yield from own
        taken = {key.value for key, _ in own}
        for key, merged in node.value:
            if key.tag != MERGE:
                continue
            for other in merged.value if isinstance(merged, yaml.SequenceNode) else [merged]:
                if not isinstance(other, yaml.MappingNode):
                    self._problem(
                        key.start_mark.line + 1, location, "<<", "an alias of a mapping, or a list of them"
                    )
                    continue
                for pair in self._with_merged(other, location):
                    if pair[0].value not in taken:
                        taken.add(pair[0].value)
                        yield pair

    def _problem(self, line: int, location: Location, value: str, expected: str) -> None:
        self.problems.append(Problem(self.file, line, dotted(location), value, expected))


def show(value: object) -> str:
    """Return a value in short form, as a user may have written it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "a list" if value else "an empty list"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

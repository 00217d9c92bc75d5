"""A job's step as it was recorded: computing and communication of every rank, with what each waits for.

All figures are real ones, of the job that was recorded; a plan for a scenario's ranks is made of it at the scenario's
scale. Within a rank, nodes of one stream come one after the other in the order
in which they are listed, and streams go on side by side, as on an accelerator.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from testbed.errors import BadInput

SCHEMA = 1
FORMAT = "testbed-job-trace"
COMPUTE_STREAM = "compute"
ROOTED = ("broadcast", "reduce", "gather", "scatter")
"""Collectives that have a root."""

_ELEMENT_BYTES = {
    8: ("float64", "int64", "uint64", "complex64"),
    16: ("complex128",),
    4: ("float32", "int32", "uint32", "complex32"),
    2: ("float16", "bfloat16", "int16", "uint16"),
    1: (
        "int8",
        "uint8",
        "bool",
        "float8",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
    ),
}
_BYTES_OF = {dtype: size for size, dtypes in _ELEMENT_BYTES.items() for dtype in dtypes}


class TraceError(BadInput):
    """A trace that cannot be read, or does not fit together; says file, place, what stands there, what was expected."""


def element_bytes(dtype: str) -> int:
    """Of a type by the name that nodes have it by. TraceError for one that is not known."""
    if dtype not in _BYTES_OF:
        raise TraceError(f"dtype: got {dtype}, expected one of {', '.join(_BYTES_OF)}")
    return _BYTES_OF[dtype]


@dataclass(frozen=True)
class Node:
    """name: for records. stream: of its rank. after: indices of earlier nodes of the rank that must be done before.

    module: the part of the model that it belongs to, such as "layers.3.mlp"; site: FILE:LINE of the call. "" unknown.
    """

    name: str
    stream: str = COMPUTE_STREAM
    after: tuple[int, ...] = ()
    module: str = ""
    site: str = ""


@dataclass(frozen=True)
class Compute(Node):
    """duration_s: on the accelerator. flops, touched_bytes: what it was reckoned from, 0 where nobody knows.

    kind: forward, backward, or compute for what is neither; as timelines show it.
    """

    duration_s: float = 0.0
    flops: float = 0.0
    touched_bytes: float = 0.0
    kind: str = "compute"


@dataclass(frozen=True)
class Collective(Node):
    """Of a group of the trace, whose members start its collectives in the same order.

    collective: in torch.distributed's words (`all_reduce`, `all_gather`, `reduce_scatter`, `broadcast`, `reduce`,
    `gather`, `scatter`, `all_to_all`, `all_to_all_v`, `barrier`). numel: elements of a rank's larger array, of `dtype`
    (NumPy's name, or bfloat16 or float8). splits: of an all_to_all_v, elements that this rank sends to each member.
    root: its rank in the job, for those that have one. kind: by which figures are summed up, such as a dimension of
    parallelism. algorithm: of the testbed's, "" where whoever carries it out chooses.
    """

    group: str = ""
    collective: str = "all_reduce"
    numel: int = 0
    dtype: str = "float32"
    splits: tuple[int, ...] = ()
    root: int = 0
    kind: str = "collective"
    algorithm: str = ""


@dataclass(frozen=True)
class PointToPoint(Node):
    """One end of a message of `numel` elements of `dtype`; peer: the other end's rank in the job.

    tag: tells messages of a pair that are under way at once apart; equal ones are matched in their order.
    """

    peer: int = 0
    numel: int = 0
    dtype: str = "float32"
    tag: int = 0
    sends: bool = False
    kind: str = "message"


_TYPES: dict[str, type[Node]] = {"compute": Compute, "collective": Collective, "message": PointToPoint}
_NAMES = {made: name for name, made in _TYPES.items()}

RankTrace = tuple[Node, ...]


@dataclass(frozen=True)
class JobTrace:
    """Every rank's step.

    groups: ranks of the job that do collectives together, in their order, by names of their own. origin: who recorded
    it and from what, for people. accelerator: for which computing was reckoned, "" unknown. left_out: what of another
    program's files has no place here, in words.
    """

    ranks: tuple[RankTrace, ...]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    origin: str = ""
    accelerator: str = ""
    left_out: tuple[str, ...] = field(default=(), compare=False)

    def changed(self, change: Callable[[Node], Node]) -> JobTrace:
        """The same job with each node as `change` has it; what ranks have in common stays so.

        Ranks of a large job are mostly alike, and have their nodes in common: each is asked for once.
        """
        nodes: dict[int, Node] = {}
        owns: dict[int, RankTrace] = {}
        for own in self.ranks:
            if id(own) not in owns:
                for node in own:
                    if id(node) not in nodes:
                        nodes[id(node)] = change(node)
                owns[id(own)] = tuple(nodes[id(node)] for node in own)
        return replace(self, ranks=tuple(owns[id(own)] for own in self.ranks))

    def write(self, path: Path) -> Path:
        """As JSON, packed where the name ends in .gz; nodes that are alike stand in it once."""
        numbers: dict[Node, int] = {}
        ranks = [[numbers.setdefault(node, len(numbers)) for node in own] for own in self.ranks]
        document = {
            "format": FORMAT,
            "schema": SCHEMA,
            "origin": self.origin,
            "accelerator": self.accelerator,
            "groups": {name: list(members) for name, members in self.groups.items()},
            "nodes": [_document(node) for node in numbers],
            "ranks": ranks,
        }
        text = json.dumps(document, separators=(",", ":")).encode()
        # without the time of day: the same trace is the same file
        path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
        return path

    @classmethod
    def read(cls, path: Path) -> JobTrace:
        """The inverse. TraceError where the file is not one, or does not fit together."""
        try:
            data = path.read_bytes()
            document = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise TraceError(f"{path}: no job trace: {error}") from None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise TraceError(f'{path}: no job trace: expected "format": "{FORMAT}"')
        if document.get("schema") != SCHEMA:
            raise TraceError(f"{path}: schema: got {document.get('schema')}, expected {SCHEMA}")
        try:
            nodes = [_node(number, entry) for number, entry in enumerate(document["nodes"])]
            if any(number < 0 for own in document["ranks"] for number in own):
                raise ValueError("ranks: got a number below 0, expected those of nodes")
            ranks = tuple(tuple(nodes[number] for number in own) for own in document["ranks"])
            groups = {str(name): tuple(map(int, members)) for name, members in document["groups"].items()}
            found = cls(
                ranks, groups, str(document["origin"]), str(document["accelerator"]), _unknown(document)
            )
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            raise TraceError(f"{path}: broken: {kind}{error}") from None
        found.check(str(path))
        return found

    def check(self, where: str) -> None:
        """TraceError, with rank and node, unless all that nodes refer to is there."""
        for name, members in self.groups.items():
            if len(set(members)) != len(members) or not set(members) <= set(range(len(self.ranks))):
                expected = f"different ranks of 0 to {len(self.ranks) - 1}"
                raise TraceError(f"{where}: group {name}: got {list(members)}, expected {expected}")
        for rank, own in enumerate(self.ranks):
            for number, node in enumerate(own):
                if problem := self._problem(rank, number, node):
                    raise TraceError(f"{where}: rank {rank}: node {number} ({node.name}): {problem}")

    def _problem(self, rank: int, number: int, node: Node) -> str:
        if any(not 0 <= before < number for before in node.after):
            return f"after: got {list(node.after)}, expected numbers of earlier nodes"
        if problem := _wrong_figures(node):
            return problem
        if isinstance(node, Collective):
            return self._wrong_group(rank, node)
        if isinstance(node, PointToPoint) and (node.peer == rank or not 0 <= node.peer < len(self.ranks)):
            return f"peer: got {node.peer}, expected another rank of 0 to {len(self.ranks) - 1}"
        return ""

    def _wrong_group(self, rank: int, node: Collective) -> str:
        members = self.groups.get(node.group)
        if members is None or rank not in members:
            return f"group: got {node.group}, expected one that rank {rank} is in"
        if node.splits and (len(node.splits) != len(members) or min(node.splits) < 0):
            expected = f"0 or more for each of {len(members)} members"
            return f"splits: got {list(node.splits)}, expected {expected}"
        if node.collective in ROOTED and node.root not in members:
            return f"root: got {node.root}, expected one of group {node.group}, {list(members)}"
        return ""


def _wrong_figures(node: Node) -> str:
    if isinstance(node, Compute):
        for name in ("duration_s", "flops", "touched_bytes"):
            if not 0 <= (value := getattr(node, name)) < math.inf:
                return f"{name}: got {value}, expected 0 or more, and finite"
    if isinstance(node, Collective | PointToPoint):
        if node.dtype not in _BYTES_OF:
            return f"dtype: got {node.dtype}, expected one of {', '.join(_BYTES_OF)}"
        if node.numel < 0:
            return f"numel: got {node.numel}, expected 0 or more"
    return ""


def _document(node: Node) -> dict[str, Any]:
    """What is not as usual."""
    usual = type(node)(node.name)
    own = {key: value for key, value in asdict(node).items() if value != getattr(usual, key)}
    return {"type": _NAMES[type(node)], "name": node.name, **own}


_OF_TYPE: dict[str, Any] = {"str": str, "bool": bool, "int": int, "float": int | float}
"""What nodes' fields may be in a file, by their annotations."""


def _node(number: int, entry: Mapping[str, Any]) -> Node:
    """Make a node of a file's entry. ValueError for a value of another type, TypeError, KeyError."""
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
    }
    made = _TYPES[values.pop("type")](**values)
    for one in fields(made):
        value = getattr(made, one.name)
        if not _fits(value, str(one.type)):
            raise ValueError(f"nodes[{number}].{one.name}: got {value!r}, expected {one.type}")
    return made


def _fits(value: Any, declared: str) -> bool:
    if declared.startswith("tuple"):
        return isinstance(value, tuple) and all(_fits(one, "int") for one in value)
    return isinstance(value, _OF_TYPE[declared]) and isinstance(value, bool) == (declared == "bool")


def _unknown(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a file has beside what is read, in words."""
    known = {"format", "schema", "origin", "accelerator", "groups", "nodes", "ranks"}
    unknown = sorted(set(document) - known)
    return (f"fields {', '.join(unknown)}",) if unknown else ()

"""A recorded step of a job: computation and communication of every rank, with dependencies.

All figures are real figures of the recorded job; `testbed.workload.trace_conversion` converts it to a plan at a
scenario's scale. Within a rank, nodes of one stream run in the order in which they are listed, and streams run
concurrently, as on an accelerator.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, TypeVar

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
    """The error for a trace that cannot be read or is inconsistent; it names file, place, and expectation."""


def element_bytes(dtype: str) -> int:
    """Return the bytes of an element of the type with this name in nodes; raise TraceError for an unknown type."""
    if dtype not in _BYTES_OF:
        raise TraceError(f"dtype: got {dtype}, expected one of {', '.join(_BYTES_OF)}")
    return _BYTES_OF[dtype]


@dataclass(frozen=True)
class Node:
    """One node of a rank's trace.

    Attributes:
        name: Label for records.
        stream: Stream of the rank that ran it.
        after: Indices of earlier nodes of the rank that it depends on.
        module: Part of the model that it belongs to, such as "layers.3.mlp"; "" if unknown.
        site: FILE:LINE of the call; "" if unknown.
    """

    name: str
    stream: str = COMPUTE_STREAM
    after: tuple[int, ...] = ()
    module: str = ""
    site: str = ""


@dataclass(frozen=True)
class Compute(Node):
    """Computation on the accelerator.

    Attributes:
        duration_s: Real seconds.
        flops: Floating-point operations from which the duration was estimated; 0 if unknown.
        touched_bytes: Bytes of memory from which the duration was estimated; 0 if unknown.
        kind: forward, backward, or compute for anything else, as timelines show it.
    """

    duration_s: float = 0.0
    flops: float = 0.0
    touched_bytes: float = 0.0
    kind: str = "compute"


@dataclass(frozen=True)
class Collective(Node):
    """A collective of a group of the trace; all members start the group's collectives in the same order.

    Attributes:
        group: Name of the group.
        collective: Name in torch.distributed: `all_reduce`, `all_gather`, `reduce_scatter`, `broadcast`, `reduce`,
            `gather`, `scatter`, `all_to_all`, `all_to_all_v`, `barrier`.
        numel: Elements of a rank's larger array.
        dtype: NumPy's name, or bfloat16 or float8.
        splits: For an all_to_all_v, elements that this rank sends to each member.
        root: The root's rank in the job, for collectives that have a root.
        kind: Category by which results are summed up, such as a dimension of parallelism.
        algorithm: One of the testbed's algorithms; "" leaves the choice to the executor.
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
    """One end of a message.

    Attributes:
        peer: The other end's rank in the job.
        numel: Number of elements.
        dtype: Type of an element.
        tag: Tag that distinguishes concurrent messages of a pair; messages with equal tags are matched in order.
        sends: Whether this is the sending end.
        kind: Category by which results are summed up.
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

    Attributes:
        ranks: Nodes of each rank.
        groups: Ranks that run collectives together, in order, by unique group name.
        origin: Description of the recording tool and its source, for users.
        accelerator: Accelerator for which compute times were estimated; "" if unknown.
        left_out: Description of the content of another program's files that a trace cannot represent.
    """

    ranks: tuple[RankTrace, ...]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    origin: str = ""
    accelerator: str = ""
    left_out: tuple[str, ...] = field(default=(), compare=False)

    def map_nodes(self, transform: Callable[[Node], Node]) -> JobTrace:
        """Return the job with `transform` applied to each node; ranks that share nodes still share them.

        Ranks of a large job are mostly equal and share their nodes, so `transform` is called only once per shared node.
        """
        nodes: dict[int, Node] = {}
        new_ranks: dict[int, RankTrace] = {}
        for own in self.ranks:
            if id(own) not in new_ranks:
                for node in own:
                    if id(node) not in nodes:
                        nodes[id(node)] = transform(node)
                new_ranks[id(own)] = tuple(nodes[id(node)] for node in own)
        return replace(self, ranks=tuple(new_ranks[id(own)] for own in self.ranks))

    def write(self, path: Path) -> Path:
        """Write the trace as JSON, gzipped if the name ends in .gz; equal nodes are written only once."""
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
        # no timestamp, so that equal traces give equal files
        path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
        return path

    @classmethod
    def read(cls, path: Path) -> JobTrace:
        """Read a trace that `write` wrote; raise TraceError if the file is not a trace or is inconsistent."""
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
                ranks,
                groups,
                str(document["origin"]),
                str(document["accelerator"]),
                _unknown_fields(document),
            )
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            raise TraceError(f"{path}: broken: {kind}{error}") from None
        found.check(str(path))
        return found

    def check(self, where: str) -> None:
        """Check that all references of nodes exist; raise TraceError, which names rank and node."""
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
        if problem := _figure_problem(node):
            return problem
        if isinstance(node, Collective):
            return self._group_problem(rank, node)
        if isinstance(node, PointToPoint) and (node.peer == rank or not 0 <= node.peer < len(self.ranks)):
            return f"peer: got {node.peer}, expected another rank of 0 to {len(self.ranks) - 1}"
        return ""

    def _group_problem(self, rank: int, node: Collective) -> str:
        members = self.groups.get(node.group)
        if members is None or rank not in members:
            return f"group: got {node.group}, expected one that rank {rank} is in"
        if node.splits and (len(node.splits) != len(members) or min(node.splits) < 0):
            expected = f"0 or more for each of {len(members)} members"
            return f"splits: got {list(node.splits)}, expected {expected}"
        if node.collective in ROOTED and node.root not in members:
            return f"root: got {node.root}, expected one of group {node.group}, {list(members)}"
        return ""


def _figure_problem(node: Node) -> str:
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
    """Return a node's fields that differ from their defaults."""
    default = type(node)(node.name)
    own = {key: value for key, value in asdict(node).items() if value != getattr(default, key)}
    return {"type": _NAMES[type(node)], "name": node.name, **own}


_FIELD_TYPES: dict[str, Any] = {"str": str, "bool": bool, "int": int, "float": int | float}
"""JSON types of nodes' fields, by their annotations."""


def _node(number: int, entry: Mapping[str, Any]) -> Node:
    """Make a node from an entry of a file; raise ValueError, TypeError or KeyError for a wrong entry."""
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
    return isinstance(value, _FIELD_TYPES[declared]) and isinstance(value, bool) == (declared == "bool")


def _unknown_fields(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Describe the fields of a file that are not read."""
    known = {"format", "schema", "origin", "accelerator", "groups", "nodes", "ranks"}
    unknown = sorted(set(document) - known)
    return (f"fields {', '.join(unknown)}",) if unknown else ()


def previous_of_stream(nodes: Iterable[Node]) -> list[int | None]:
    """Return, for each node of a rank, the index of the previous node of its stream; None for the first."""
    last: dict[str, int] = {}
    found = []
    for number, node in enumerate(nodes):
        found.append(last.get(node.stream))
        last[node.stream] = number
    return found


def all_dependencies(after: Sequence[int], previous: int | None) -> tuple[int, ...]:
    """Return all dependencies of a node: `after`, and the previous node of its stream, if any."""
    return tuple(dict.fromkeys([*after, *([] if previous is None else [previous])]))


Event = TypeVar("Event", bound=Hashable)


def before_cycles(before: Mapping[Event, Iterable[Event]]) -> Iterator[Event]:
    """Yield the keys in dependency order, leaving out those that are in or behind a cycle."""
    sorter = TopologicalSorter(before)
    with contextlib.suppress(CycleError):
        sorter.prepare()
    while ready := sorter.get_ready():
        yield from ready
        sorter.done(*ready)

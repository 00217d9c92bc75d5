"""Conversion between nodes of an execution trace and nodes of a job's trace.

Chakra has no fields for some data of job traces (exact durations, element types, streams, modules). These are stored as
JSON in an attribute `testbed` of each node that this module writes. If another program has since changed a node's other
attributes, those take precedence, and `testbed` counts as far as it still applies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from testbed.workload.traces.chakra.files import EtNode
from testbed.workload.traces.chakra.schema import Comm, NodeType
from testbed.workload.traces.trace import (
    COMPUTE_STREAM,
    Collective,
    Compute,
    Node,
    PointToPoint,
    TraceError,
    element_bytes,
)

OWN_ATTRIBUTE = "testbed"
USED_ATTRIBUTES = frozenset(
    (
        OWN_ATTRIBUTE,
        "comm_dst",
        "comm_group",
        "comm_size",
        "comm_src",
        "comm_tag",
        "comm_type",
        "involved_dim",
        "is_cpu_op",
        "num_ops",
        "pg_name",
        "stream",
        "tensor_size",
        "tid",
    )
)
"""Attributes that are read."""

EstimateTime = Callable[[float, float], "float | None"]
"""Returns an accelerator's time in seconds from floating-point operations and touched bytes; None where unknown."""

_COMMS = {
    "all_reduce": Comm.ALL_REDUCE,
    "reduce": Comm.REDUCE,
    "all_gather": Comm.ALL_GATHER,
    "gather": Comm.GATHER,
    "scatter": Comm.SCATTER,
    "broadcast": Comm.BROADCAST,
    "all_to_all": Comm.ALL_TO_ALL,
    "all_to_all_v": Comm.ALL_TO_ALL,
    "reduce_scatter": Comm.REDUCE_SCATTER,
    "barrier": Comm.BARRIER,
}
_COLLECTIVES = {int(comm): name for name, comm in _COMMS.items() if name != "all_to_all_v"}
_COLLECTIVES[int(Comm.REDUCE_SCATTER_BLOCK)] = "reduce_scatter"
_SIZED_BY_PART = ("all_gather", "gather")
"""Collectives whose `comm_size` is a rank's contribution; others have a rank's whole array, as in ASTRA-sim."""

_SENDS = {NodeType.COMM_SEND_NODE: True, NodeType.COMM_RECV_NODE: False}
_MEMORY = {NodeType.MEM_LOAD_NODE: "load", NodeType.MEM_STORE_NODE: "store"}
_TENSOR = re.compile(r"Tensor\((?:c10::)?([\w ]+)\)")
_TENSOR_DTYPES = {
    "float": "float32",
    "double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Float8_e4m3fn": "float8",
    "Float8_e5m2": "float8",
    "int": "int32",
    "long int": "int64",
    "signed char": "int8",
    "unsigned char": "uint8",
}


@dataclass(frozen=True)
class Place:
    """Context of a node, also for messages.

    Attributes:
        path: File of the trace.
        rank: Rank of the file.
        world: Number of ranks.
        groups: Members by group name.
        names: Group names by `pg_name`.
        estimate_s: Function that estimates compute times; None if no accelerator is known.
    """

    path: str
    rank: int
    world: int
    groups: Mapping[str, Sequence[int]]
    names: Mapping[str, str]
    estimate_s: EstimateTime | None = None

    def problem(self, node: EtNode, got: str, expected: str) -> TraceError:
        """Return an error that names the node."""
        kind = NodeType(node.type).name if node.type in list(NodeType) else f"type {node.type}"
        where = f"{self.path}: node {node.id} ({node.name}, {kind})"
        return TraceError(where=where, got=got, expected=expected)


def et_node(node: Node, place: Place) -> EtNode:
    """Return a rank's node as a Chakra node, without its id and dependencies.

    TraceError is raised for a collective that Chakra does not have.
    """
    if isinstance(node, Compute):
        attributes: dict[str, Any] = {"is_cpu_op": False}
        if node.flops:
            attributes["num_ops"] = round(node.flops)
        if node.touched_bytes:
            attributes["tensor_size"] = round(node.touched_bytes)
        made = EtNode(
            0, node.name, NodeType.COMP_NODE, duration_us=whole_us(node.duration_s), attributes=attributes
        )
    elif isinstance(node, Collective):
        made = EtNode(0, node.name, NodeType.COMM_COLL_NODE, attributes=_collective_attributes(node, place))
    elif isinstance(node, PointToPoint):
        ends = (place.rank, node.peer) if node.sends else (node.peer, place.rank)
        size = node.numel * element_bytes(node.dtype)
        kind = NodeType.COMM_SEND_NODE if node.sends else NodeType.COMM_RECV_NODE
        values = {"comm_src": ends[0], "comm_dst": ends[1], "comm_size": size, "comm_tag": node.tag}
        made = EtNode(0, node.name, kind, attributes={"is_cpu_op": False, **values})
    else:
        raise TraceError(where=node.name, got=type(node).__name__, expected="computation or communication")
    return replace(
        made,
        attributes={**made.attributes, OWN_ATTRIBUTE: json.dumps(_own_values(node), separators=(",", ":"))},
    )


def whole_us(duration_s: float) -> int:
    """Return whole microseconds, the resolution of files; 1 for a shorter, nonzero time."""
    return max(round(duration_s * 1e6), int(duration_s > 0))


def _collective_attributes(node: Collective, place: Place) -> dict[str, Any]:
    comm = _COMMS.get(node.collective)
    if comm is None:
        raise TraceError(where=node.name, got=node.collective, expected=f"one of: {', '.join(_COMMS)}")
    size = node.numel * element_bytes(node.dtype)
    if node.collective in _SIZED_BY_PART:
        size //= len(place.groups[node.group])
    number = next(number for number, name in place.names.items() if name == node.group)
    return {"is_cpu_op": False, "comm_type": int(comm), "comm_size": size, "pg_name": number}


def explicit_dependencies(dependencies: Sequence[int], previous: int | None) -> tuple[int, ...]:
    """Return the inverse of `all_dependencies`, as far as it exists."""
    return tuple(dependencies[:-1] if dependencies and dependencies[-1] == previous else dependencies)


_STANDARD_FIELDS = ("name", "after", "group", "peer", "tag", "sends")
"""Fields that Chakra's own attributes hold exactly."""


def _own_values(node: Node) -> dict[str, Any]:
    """Return the fields that the other attributes do not have, and that differ from their defaults."""
    default = type(node)(node.name)
    values = {one.name: getattr(node, one.name) for one in fields(node) if one.name not in _STANDARD_FIELDS}
    found = {name: value for name, value in values.items() if value != getattr(default, name)}
    if isinstance(node, Collective) and _COLLECTIVES[_COMMS[node.collective]] == node.collective:
        found.pop("collective", None)
    return found


def own_fields(node: EtNode) -> dict[str, Any] | None:
    """Return the fields that this module wrote in addition to the usual attributes; None if there are none."""
    text = node.attributes.get(OWN_ATTRIBUTE)
    if not isinstance(text, str):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def job_node(node: EtNode, place: Place) -> Node:
    """Return a node of a job's trace, without dependencies; raise TraceError, which names node and file."""
    own = own_fields(node)
    if own is None:
        return _read(node, place)
    # no estimate is needed, since the attribute `testbed` has the duration, even if it is 0
    made = _read(node, replace(place, estimate_s=place.estimate_s or _no_time))
    own = {name: tuple(value) if isinstance(value, list) else value for name, value in own.items()}
    try:
        exact = replace(type(made)(node.name), **{**_standard_values(made), **own})
        if _mutable_values(et_node(exact, place)) == _mutable_values(node):
            return exact
        kept = ("stream", "module", "site", "kind")
        return replace(made, **{name: own[name] for name in kept if name in own})
    except (TypeError, ValueError, TraceError, StopIteration):
        return made


def _no_time(flops: float, touched_bytes: float) -> float:
    return 0.0


def _standard_values(made: Node) -> dict[str, Any]:
    """Return the fields that the usual attributes represent exactly."""
    names = [one for one in (*_STANDARD_FIELDS, "collective") if one not in ("name", "after")]
    return {name: getattr(made, name) for name in names if hasattr(made, name)}


def _mutable_values(node: EtNode) -> tuple[Any, ...]:
    """Return the fields that other programs may have changed; the duration of communication is not one of them."""
    attributes = {name: value for name, value in node.attributes.items() if name != OWN_ATTRIBUTE}
    return node.type, node.duration_us if node.type == NodeType.COMP_NODE else 0, attributes


def _read(node: EtNode, place: Place) -> Node:
    cpu = bool(node.attributes.get("is_cpu_op"))
    if node.type in (NodeType.COMP_NODE, *_MEMORY):
        return _computing(node, place)
    if node.type == NodeType.COMM_COLL_NODE:
        # in PyTorch's traces, the CPU operation that starts a collective has this type, too, but no size
        return (
            _computing(node, place)
            if cpu and "comm_size" not in node.attributes
            else _collective(node, place)
        )
    if node.type in _SENDS:
        return _message(node, place)
    raise place.problem(
        node, "a type that is not supported", f"one of: {', '.join(one.name for one in NodeType)}"
    )


def _computing(node: EtNode, place: Place) -> Compute:
    flops, touched_bytes = _number(node, place, "num_ops"), _number(node, place, "tensor_size")
    duration_s = node.duration_us / 1e6
    if not duration_s and (flops or touched_bytes):
        estimated_s = place.estimate_s(flops, touched_bytes) if place.estimate_s else None
        if estimated_s is None:
            got = f"no duration_micros, {flops:g} operations on {touched_bytes:g} bytes"
            raise place.problem(node, got, "a duration, or an accelerator to estimate it for")
        duration_s = estimated_s
    stream = _stream(node)
    return Compute(node.name, stream, duration_s=duration_s, flops=flops, touched_bytes=touched_bytes)


def _stream(node: EtNode) -> str:
    """Return the stream of a computation: one of the accelerator's, a CPU thread, or memory."""
    if node.type in _MEMORY:
        return "memory"
    if node.attributes.get("is_cpu_op"):
        thread = node.attributes.get("tid")
        return "cpu" if thread is None else f"cpu {thread}"
    stream = node.attributes.get("stream")
    return COMPUTE_STREAM if stream is None else f"stream {stream}"


def _collective(node: EtNode, place: Place) -> Collective:
    comm = _number(node, place, "comm_type", needed=True)
    collective = _COLLECTIVES.get(comm)
    if collective is None:
        raise place.problem(node, f"comm_type {comm}", f"one of {sorted(_COLLECTIVES)}")
    group = place.names[group_key(node)]
    members = place.groups[group]
    size = 0 if collective == "barrier" else _number(node, place, "comm_size", needed=True)
    dtype = _dtype(node, size)
    whole = size * len(members) if collective in _SIZED_BY_PART else size
    return Collective(
        node.name,
        f"group {group}",
        group=group,
        collective=collective,
        numel=whole // element_bytes(dtype),
        dtype=dtype,
        root=members[0] if members else 0,
    )


def group_key(node: EtNode) -> str:
    """Return the key under which a collective names its group; "" for all ranks."""
    for name in ("pg_name", "comm_group"):
        if (value := node.attributes.get(name)) is not None:
            return str(value)
    dims = node.attributes.get("involved_dim")
    return f"involved_dim {dims}" if isinstance(dims, tuple) and not all(dims) else ""


def _message(node: EtNode, place: Place) -> PointToPoint:
    sends = _SENDS[NodeType(node.type)]
    mine, other = ("comm_src", "comm_dst") if sends else ("comm_dst", "comm_src")
    own = node.attributes.get(mine, place.rank)
    if own != place.rank:
        raise place.problem(node, f"{mine} {own}", f"{place.rank}, as the file's name says")
    peer = _number(node, place, other, needed=True)
    if peer == place.rank or not 0 <= peer < place.world:
        raise place.problem(node, f"{other} {peer}", f"another rank of 0 to {place.world - 1}")
    size, tag = _number(node, place, "comm_size", needed=True), _number(node, place, "comm_tag")
    dtype = _dtype(node, size)
    stream = f"{'send' if sends else 'receive'} {peer}" + (f" tag {tag}" if tag else "")
    return PointToPoint(
        node.name, stream, peer=peer, numel=size // element_bytes(dtype), dtype=dtype, tag=tag, sends=sends
    )


def _dtype(node: EtNode, size_bytes: int) -> str:
    """Return the type of the node's inputs, or else float32, or bytes if the size is not a multiple of 4."""
    match = _TENSOR.search(node.types)
    dtype = _TENSOR_DTYPES.get(match.group(1), "") if match else ""
    if dtype and size_bytes % element_bytes(dtype) == 0:
        return dtype
    return "uint8" if size_bytes % 4 else "float32"


def _number(node: EtNode, place: Place, name: str, needed: bool = False) -> int:
    value = node.attributes.get(name)
    if value is None and not needed:
        return 0
    if not isinstance(value, int) or value < 0:
        got = f"no {name}" if value is None else f"{name} {value}"
        raise place.problem(node, got, f"a whole number as {name}")
    return value

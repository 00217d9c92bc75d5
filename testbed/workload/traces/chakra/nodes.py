"""What one node of an execution trace is as a node of a job's trace, and the other way round.

Chakra has no place for some of what ours say (exact durations, element types, streams, places in the model): it stands
as JSON in an attribute `testbed` of each node that is written here. Where somebody changed a node's other attributes
since, these count, and what is still right of `testbed`.
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

OWN = "testbed"
USED = frozenset(
    (
        OWN,
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
"""Attributes that say what a node does here."""

Reckon = Callable[[float, float], "float | None"]
"""Seconds that an accelerator takes, from floating-point operations and bytes of its memory that are touched; None
where that is not known of it.
"""

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
_OF_PARTS = ("all_gather", "gather")
"""Collectives whose `comm_size` is what a rank gives; that of others is a rank's whole array, as ASTRA-sim has it."""

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
    """Where a node stands: file and rank, for messages too. world: how many ranks there are.

    groups: members by name. names: of groups, by `pg_name`. reckon: None where no accelerator is known.
    """

    path: str
    rank: int
    world: int
    groups: Mapping[str, Sequence[int]]
    names: Mapping[str, str]
    reckon: Reckon | None = None

    def problem(self, node: EtNode, got: str, expected: str) -> TraceError:
        """An error that names the node."""
        kind = NodeType(node.type).name if node.type in list(NodeType) else f"type {node.type}"
        where = f"{self.path}: node {node.id} ({node.name}, {kind})"
        return TraceError(where=where, got=got, expected=expected)


def et_node(node: Node, place: Place) -> EtNode:
    """Of a rank's node, without id and what it waits for. TraceError for a collective that Chakra does not know."""
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
        raise TraceError(where=node.name, got=type(node).__name__, expected="computing or communication")
    return replace(made, attributes={**made.attributes, OWN: json.dumps(_own(node), separators=(",", ":"))})


def whole_us(duration_s: float) -> int:
    """The nearest whole number of microseconds, which is all that files can say; 1 for what takes less, but some."""
    return max(round(duration_s * 1e6), int(duration_s > 0))


def _collective_attributes(node: Collective, place: Place) -> dict[str, Any]:
    comm = _COMMS.get(node.collective)
    if comm is None:
        raise TraceError(where=node.name, got=node.collective, expected=f"one of: {', '.join(_COMMS)}")
    size = node.numel * element_bytes(node.dtype)
    if node.collective in _OF_PARTS:
        size //= len(place.groups[node.group])
    number = next(number for number, name in place.names.items() if name == node.group)
    return {"is_cpu_op": False, "comm_type": int(comm), "comm_size": size, "pg_name": number}


def waited_for(after: Sequence[int], before: int | None) -> tuple[int, ...]:
    """All that a node waits for: `after`, and the one before it on its stream where there is one."""
    return tuple(dict.fromkeys([*after, *([] if before is None else [before])]))


def beside(all_of_it: Sequence[int], before: int | None) -> tuple[int, ...]:
    """The inverse, as far as there is one."""
    return tuple(all_of_it[:-1] if all_of_it and all_of_it[-1] == before else all_of_it)


_ELSEWHERE = ("name", "after", "group", "peer", "tag", "sends")
"""Fields of ours that the other attributes say exactly."""


def _own(node: Node) -> dict[str, Any]:
    """What the other attributes do not say, and is not as usual."""
    usual = type(node)(node.name)
    values = {one.name: getattr(node, one.name) for one in fields(node) if one.name not in _ELSEWHERE}
    found = {name: value for name, value in values.items() if value != getattr(usual, name)}
    if isinstance(node, Collective) and _COLLECTIVES[_COMMS[node.collective]] == node.collective:
        found.pop("collective", None)
    return found


def own_of(node: EtNode) -> dict[str, Any] | None:
    """What was written here beside the usual attributes; None where nothing was."""
    text = node.attributes.get(OWN)
    if not isinstance(text, str):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def job_node(node: EtNode, place: Place) -> Node:
    """A node of ours, without what it waits for. TraceError, with node and file, for what cannot be done."""
    own = own_of(node)
    if own is None:
        return _read(node, place)
    made = _read(
        node, replace(place, reckon=place.reckon or _no_time)
    )  # ours say how long, if it is nothing, too
    own = {name: tuple(value) if isinstance(value, list) else value for name, value in own.items()}
    try:
        exact = replace(type(made)(node.name), **{**_said(made), **own})
        if _usual(et_node(exact, place)) == _usual(node):
            return exact
        kept = ("stream", "module", "site", "kind")
        return replace(made, **{name: own[name] for name in kept if name in own})
    except (TypeError, ValueError, TraceError, StopIteration):
        return made


def _no_time(flops: float, touched_bytes: float) -> float:
    return 0.0


def _said(made: Node) -> dict[str, Any]:
    """Fields that the usual attributes say exactly."""
    names = [one for one in (*_ELSEWHERE, "collective") if one not in ("name", "after")]
    return {name: getattr(made, name) for name in names if hasattr(made, name)}


def _usual(node: EtNode) -> tuple[Any, ...]:
    """What others may have changed; how long communication took is no part of the job."""
    attributes = {name: value for name, value in node.attributes.items() if name != OWN}
    return node.type, node.duration_us if node.type == NodeType.COMP_NODE else 0, attributes


def _read(node: EtNode, place: Place) -> Node:
    cpu = bool(node.attributes.get("is_cpu_op"))
    if node.type in (NodeType.COMP_NODE, *_MEMORY):
        return _computing(node, place)
    if node.type == NodeType.COMM_COLL_NODE:
        # what starts a collective on a CPU, in traces of PyTorch, is of this type as well, and says no size
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
        reckoned_s = place.reckon(flops, touched_bytes) if place.reckon else None
        if reckoned_s is None:
            got = f"no duration_micros, {flops:g} operations on {touched_bytes:g} bytes"
            raise place.problem(node, got, "a duration, or an accelerator to reckon it for")
        duration_s = reckoned_s
    stream = _stream(node)
    return Compute(node.name, stream, duration_s=duration_s, flops=flops, touched_bytes=touched_bytes)


def _stream(node: EtNode) -> str:
    """On which computing comes one after the other: one of the accelerator's, a thread, or memory's."""
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
    whole = size * len(members) if collective in _OF_PARTS else size
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
    """By which a collective names its group; "" for all ranks."""
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
    """As the node's inputs say; else float32, or bytes where they are no whole number of those."""
    said = _TENSOR.search(node.types)
    dtype = _TENSOR_DTYPES.get(said.group(1), "") if said else ""
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
